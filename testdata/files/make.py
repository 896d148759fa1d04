"""Makes the files in this folder: tensors as other libraries write them.

    pip install numpy==2.4.6 ml_dtypes==0.6.0 safetensors==0.8.0 onnx==1.23.2
    python make.py

Element n of every array has the value n (n modulo 8 in 4-bit types), so that tests need no table.
"""

import pathlib

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).parent
SHAPE = (2, 3, 5)


def counted(dtype, shape=SHAPE, modulo=None):
    values = np.arange(np.prod(shape)).reshape(shape)
    return (values % modulo if modulo else values).astype(dtype)


def npy(name, array, **options):
    np.save(HERE / f"{name}.npy", array, **options)


for dtype in ["float32", "float16", "int64", "uint8", "bool", "complex64"]:
    npy(dtype, counted(dtype))
npy("scalar", np.float64(3))
for name in ["bfloat16", "float8_e4m3fn", "float8_e5m2"]:
    npy(name, counted(getattr(ml_dtypes, name)))
for name in ["int4", "uint4", "float4_e2m1fn"]:
    npy(name, counted(getattr(ml_dtypes, name), modulo=8))

npy("fortran", np.asfortranarray(counted("float32")))
npy("big_endian", counted(">f4"))
npy("object", np.array(["a", "bb"], dtype=object), allow_pickle=True)
npy("unicode", np.array(["a", "bb"]))
npy("structured", np.zeros(2, dtype=[("k", "<f4"), ("v", "<f4")]))
with open(HERE / "version2.npy", "wb") as file:
    np.lib.format.write_array(file, counted("float32"), version=(2, 0))

np.savez(HERE / "two.npz", k=counted("float32"), write_indices=np.array([3, 0]))
np.savez_compressed(HERE / "compressed.npz", counted("float32"))

# Sorted by name and dtype, so that the bytes are the same on every run.
save_file({"k": counted("float32"), "v": counted(ml_dtypes.bfloat16)}, HERE / "two.safetensors")


def pb(name, tensor):
    (HERE / f"{name}.pb").write_bytes(tensor.SerializeToString(deterministic=True))


pb("float16", numpy_helper.from_array(counted("float16"), "k"))
pb("int4", numpy_helper.from_array(counted(ml_dtypes.int4, modulo=8), "k"))
pb("typed", onnx.helper.make_tensor("k", TensorProto.FLOAT, SHAPE, counted("float32").ravel()))
pb("strings", numpy_helper.from_array(np.array([["κ", ""], ["bb", "ccc"]], dtype=object), "s"))

def kv_pair():
    """Makes a model that writes keys and values in a ring, one slot after a cursor. Every dimension has a name."""
    make = onnx.helper.make_tensor_value_info
    half, names = TensorProto.FLOAT16, ["k", "v"]
    cache, update = ["batch", 2, "capacity", 4], ["batch", 2, "rows", 4]
    nodes = [onnx.helper.make_node("Add", ["cursor", "one"], ["at"])] + [
        onnx.helper.make_node(
            "TensorScatter", [f"past_{name}", f"new_{name}", "at"], [f"present_{name}"], mode="circular"
        )
        for name in names
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "kv_pair",
        [make(f"past_{name}", half, cache) for name in names]
        + [make(f"new_{name}", half, update) for name in names]
        + [make("cursor", TensorProto.INT64, ["batch"])],
        [make(f"present_{name}", half, cache) for name in names],
        initializer=[numpy_helper.from_array(np.array([1]), "one")],
    )
    opset = onnx.helper.make_opsetid("", 24)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=12, producer_name="make.py")
    onnx.checker.check_model(model, full_check=True)
    (HERE / "kv_pair.onnx").write_bytes(model.SerializeToString(deterministic=True))


kv_pair()

SMALL = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn"]
with open(HERE / "small_floats.csv", "w") as file:
    for name in SMALL:
        codes = np.arange(16 if name == "float4_e2m1fn" else 256, dtype=np.uint8)
        values = codes.view(getattr(ml_dtypes, name)).astype(np.float64)
        print(name, *map(repr, values.tolist()), sep=",", file=file)

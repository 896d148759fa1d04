"""Writes tensors.onnx, external.onnx and external.bin with the onnx Python package.

    pip install onnx==1.23.2 ml_dtypes==0.6.0 && python make.py

tensors.onnx has two initializers per element type: `<type>/raw` has its values in raw_data, and `<type>/typed` has the
same values in the typed field. Strings have only the second one. Every shape is [3], so 4-bit types end on half a byte.
"""

import hashlib
import pathlib

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).parent
TYPES = """BFLOAT16 BOOL COMPLEX128 COMPLEX64 DOUBLE FLOAT FLOAT16 FLOAT4E2M1 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2
    FLOAT8E5M2FNUZ FLOAT8E8M0 INT16 INT32 INT4 INT64 INT8 UINT16 UINT32 UINT4 UINT64 UINT8""".split()


def values(dtype):
    if dtype.kind == "c":
        return np.array([1 - 2j, -0.0 + 3.5j, np.nan + 1j], dtype)
    if dtype.kind == "b":
        return np.array([True, False, True], dtype)
    if dtype.kind == "u":
        return np.array([0, 1, np.iinfo(dtype).max], dtype)
    if dtype.kind == "i":
        return np.array([np.iinfo(dtype).min, -1, np.iinfo(dtype).max], dtype)
    if dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        info = ml_dtypes.iinfo(dtype)
        return np.array([info.min, 5, info.max], dtype)
    if dtype == ml_dtypes.float4_e2m1fn:
        return np.array([-6.0, 0.5, 1.5], dtype)
    if dtype == ml_dtypes.float8_e8m0fnu:
        return np.array([0.5, 1.0, np.nan], dtype)
    return np.array([-1.5, 0.25, np.nan], dtype)


def initializers():
    for name in TYPES:
        code = getattr(TensorProto, name)
        array = values(np.dtype(helper.tensor_dtype_to_np_dtype(code)))
        name = name.lower()
        yield onnx.numpy_helper.from_array(array, f"{name}/raw")
        yield helper.make_tensor(f"{name}/typed", code, [3], array)
    yield helper.make_tensor("string/typed", TensorProto.STRING, [3], [b"", "schl\u00fcssel".encode(), b"\xff\x00"])


def external():
    data = np.arange(8, dtype="<i2").tobytes()
    (HERE / "external.bin").write_bytes(data)
    tensor = TensorProto(name="external", data_type=TensorProto.INT16, dims=[3], data_location=TensorProto.EXTERNAL)
    entries = {"location": "external.bin", "offset": "4", "length": "6", "checksum": hashlib.sha1(data).hexdigest()}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def save(name, tensors):
    graph = helper.make_graph([], name, [], [], list(tensors))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    (HERE / name).write_bytes(model.SerializeToString(deterministic=True))


save("tensors.onnx", initializers())
save("external.onnx", [external()])

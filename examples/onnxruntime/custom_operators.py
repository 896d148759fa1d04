"""Emits the operators of the domain com.kvscatter with onnx.helper, and runs them.

    python custom_operators.py target/release/libkvscatter_ort_plugin.so
"""

import pathlib
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

# ONNX Runtime resolves a relative path against its own folder, so the path must be absolute.
library = str(pathlib.Path(sys.argv[1]).resolve())
DOMAIN = "com.kvscatter"
f16, i32 = TensorProto.FLOAT16, TensorProto.INT32

# This is TensorRT's packed KVCacheUpdate. The tokens of all samples follow each other, and update_lengths is
# cumulative.
graph = helper.make_graph(
    [
        helper.make_node(
            "KVCacheUpdate",
            ["cache", "update", "write_indices", "update_lengths"],
            ["present"],
            domain=DOMAIN,
            update_form="packed_nhd",
        )
    ],
    "prefill",
    [
        helper.make_tensor_value_info("cache", f16, ["batch", 2, "slots", 4]),
        helper.make_tensor_value_info("update", f16, ["tokens", 2, 4]),
        helper.make_tensor_value_info("write_indices", i32, ["batch"]),
        helper.make_tensor_value_info("update_lengths", i32, ["batch_plus_1"]),
    ],
    [helper.make_tensor_value_info("present", f16, None)],
)
imports = [helper.make_opsetid("", 24), helper.make_opsetid(DOMAIN, 1)]
model = helper.make_model(graph, opset_imports=imports, ir_version=11)

options = ort.SessionOptions()
options.register_custom_ops_library(library)
session = ort.InferenceSession(model.SerializeToString(), options)
print("inferred shape of present:", session.get_outputs()[0].shape)

(present,) = session.run(
    None,
    {
        "cache": np.zeros((2, 2, 6, 4), np.float16),
        "update": np.arange(1, 6, dtype=np.float16)[:, None, None] * np.ones((5, 2, 4), np.float16),
        "write_indices": np.array([0, 4], np.int32),
        "update_lengths": np.array([0, 3, 5], np.int32),
    },
)
print("sample 0:", present[0, 0, :, 0])
print("sample 1:", present[1, 0, :, 0])

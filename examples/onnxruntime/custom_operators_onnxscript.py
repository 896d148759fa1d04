"""Emits an operator of the domain com.kvscatter with onnxscript, and runs it.

    python custom_operators_onnxscript.py target/release/libkvscatter_ort_plugin.so
"""

import pathlib
import sys

import numpy as np
import onnxruntime as ort
from onnxscript import FLOAT16, INT64, script
from onnxscript.values import Opset

# ONNX Runtime resolves a relative path against its own folder, so the path must be absolute.
library = str(pathlib.Path(sys.argv[1]).resolve())

kvscatter = Opset("com.kvscatter", 1)


@script()
def step(
    past: FLOAT16["batch", "heads", "slots", "width"],
    update: FLOAT16["batch", "heads", "rows", "width"],
    write_indices: INT64["batch"],
    lengths: INT64["batch"],
) -> FLOAT16["batch", "heads", "slots", "width"]:
    return kvscatter.TensorScatter(past, update, write_indices, lengths, mode="circular")


options = ort.SessionOptions()
options.register_custom_ops_library(library)
model = step.to_model_proto(opset_version=24, ir_version=11)
session = ort.InferenceSession(model.SerializeToString(), options)
(present,) = session.run(
    None,
    {
        "past": np.zeros((2, 1, 4, 1), np.float16),
        "update": np.array([1, 2, 3, 4], np.float16).reshape(2, 1, 2, 1),
        "write_indices": np.array([3, 1]),
        # Sample 1 is padded, so its second row is not written.
        "lengths": np.array([2, 1]),
    },
)
print("sample 0:", present[0].ravel())
print("sample 1:", present[1].ravel())

"""Writes a token into a static cache, in place, with the kvscatter plugin.

    python in_place.py target/release/libkvscatter_ort_plugin.so
"""

import pathlib
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

# ONNX Runtime resolves a relative path against its own folder, so the path must be absolute.
library = str(pathlib.Path(sys.argv[1]).resolve())

# The model has one node. An exporter makes such a node for the keys and the values of every layer.
f16, i64 = TensorProto.FLOAT16, TensorProto.INT64
cache_shape, update_shape = ["batch", "heads", "slots", "width"], ["batch", "heads", "rows", "width"]
graph = helper.make_graph(
    [helper.make_node("TensorScatter", ["past", "update", "write_indices"], ["present"], mode="circular")],
    "step",
    [
        helper.make_tensor_value_info("past", f16, cache_shape),
        helper.make_tensor_value_info("update", f16, update_shape),
        helper.make_tensor_value_info("write_indices", i64, ["batch"]),
    ],
    [helper.make_tensor_value_info("present", f16, cache_shape)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)

# Register the plugin once per process, and add it to the options of every session that should use it.
ort.register_execution_provider_library("kvscatter", library)
devices = [device for device in ort.get_ep_devices() if device.ep_name == "KvscatterExecutionProvider"]
options = ort.SessionOptions()
options.add_provider_for_devices(devices, {})
session = ort.InferenceSession(model.SerializeToString(), options)

# One buffer is bound as past and as present, so the write touches only the new rows.
cache = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 8, 4096, 128), np.float16))
binding = session.io_binding()
binding.bind_ortvalue_input("past", cache)
binding.bind_ortvalue_output("present", cache)
for step in range(3):
    binding.bind_cpu_input("update", np.full((2, 8, 1, 128), step + 1, np.float16))
    binding.bind_cpu_input("write_indices", np.array([4095 + step, 7 + step]))
    session.run_with_iobinding(binding)

written = cache.numpy()[:, 0, :, 0]
print("sample 0, slots 4095, 0, 1:", written[0, [4095, 0, 1]])
print("sample 1, slots 7, 8, 9:   ", written[1, 7:10])

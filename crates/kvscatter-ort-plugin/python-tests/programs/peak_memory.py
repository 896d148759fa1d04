"""Prints how much more memory a run with an intermediate cache needs, in multiples of the cache.

    peak_memory.py DOMAIN CONSUMERS

With one consumer, the write, the cache may be written in place. With two consumers it must be copied.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from support import models
from support.sessions import LIBRARY, PROVIDER, add_provider, options

CACHE = (1, 64, 1 << 18)  # 64 MiB of float
domain, consumers = sys.argv[1].replace("ai.onnx", ""), int(sys.argv[2])

nodes = [
    helper.make_node("Neg", ["past"], ["cache"]),
    helper.make_node("TensorScatter", ["cache", "update"], ["present"], domain=domain),
    helper.make_node("ReduceMax", ["present"], ["written"], keepdims=0),
    # This node waits for the write. Then the model reads an element of the cache before the write.
    helper.make_node("Cast", ["written"], ["zero"], to=TensorProto.INT64),
    helper.make_node("Constant", [], ["rank"], value_ints=[3]),
    helper.make_node("Expand", ["zero", "rank"], ["place"]),
    helper.make_node("GatherND", ["cache", "place"], ["kept"]),
]
nodes = nodes[: 3 if consumers == 1 else None]
outputs = [models.value("written", TensorProto.FLOAT), models.value("kept", TensorProto.FLOAT)][:consumers]
# ONNX Runtime reuses memory only if it knows that shapes are equal. Equal names of dimensions are enough.
inputs = [
    models.value("past", TensorProto.FLOAT, ["batch", "capacity", "width"]),
    models.value("update", TensorProto.FLOAT, ["batch", "rows", "width"]),
]
made = options()
made.enable_cpu_mem_arena = False
if domain:
    made.register_custom_ops_library(LIBRARY)
else:
    ort.register_execution_provider_library(PROVIDER, LIBRARY)
    add_provider(made)
session = ort.InferenceSession(models.model(nodes, inputs, outputs), made, enable_fallback=0)


def resident(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))


past, update = np.full(CACHE, 2, np.float32), np.zeros((1, 1, CACHE[2]), np.float32)
pathlib.Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
results = session.run(None, {"past": past, "update": update})
assert [float(result) for result in results] == [0.0, -2.0][:consumers]
print((resident("VmHWM") - before) / past.nbytes)

"""tinygrad's ONNX runner, on its device that emulates a GPU in Python and needs no compiler."""

import os
import tempfile

os.environ["DEV"] = "PYTHON"

from importlib.metadata import version as installed

import ml_dtypes
import numpy as np
import onnx
from tinygrad import Tensor, dtypes
from tinygrad.nn.onnx import OnnxRunner

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]
# The types that NumPy lacks.
TYPES = {
    "bfloat16": dtypes.bfloat16,
    "float8_e4m3fn": dtypes.fp8e4m3,
    "float8_e5m2": dtypes.fp8e5m2,
}


def name():
    return "tinygrad"


def version():
    return installed("tinygrad")


def run(case, in_place):
    if in_place:
        raise NotPossible("OnnxRunner returns new tensors")
    inputs = {name: tensor(values) for name, values in case.inputs.items()}
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(without_default_axis(case.model), file.name)
        outputs = OnnxRunner(file.name)(inputs)
        return [array(outputs[name]) for name in case.outputs]


def without_default_axis(path):
    """Returns the model without an axis of -2. tinygrad knows no such attribute, and the meaning is the same."""
    model = onnx.load(path)
    for node in model.graph.node:
        for attribute in list(node.attribute):
            if node.op_type == "TensorScatter" and attribute.name == "axis" and attribute.i == -2:
                node.attribute.remove(attribute)
    return model


def tensor(values):
    if values.dtype.name in TYPES:
        return Tensor(values.tobytes(), dtype=TYPES[values.dtype.name]).reshape(values.shape)
    return Tensor(values)


def array(values):
    for name, dtype in TYPES.items():
        if values.dtype == dtype:
            same = dtypes.uint16 if dtype.itemsize == 2 else dtypes.uint8
            return values.bitcast(same).numpy().view(getattr(ml_dtypes, name))
    return np.array(values.numpy())

"""emx-onnx-cgen: C code of a model, compiled with gcc."""

import contextlib
import ctypes
import io
import subprocess
import tempfile
from importlib.metadata import version as installed
from pathlib import Path

import numpy as np
import onnx
from emx_onnx_cgen.cli import main as generate
from onnx import helper

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]


def name():
    return "emx-onnx-cgen"


def version():
    return installed("emx-onnx-cgen")


def run(case, in_place):
    if in_place:
        raise NotPossible("the parameters of the generated function are restrict")
    graph = onnx.load(case.model).graph
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "model.c", Path(folder) / "model.so"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = generate(["compile", str(case.model), str(source)])
        if code:
            raise RuntimeError(printed.getvalue().strip().splitlines()[-1])
        gcc = ["gcc", "-O1", "-shared", "-fPIC", source, "-o", library, "-lm"]
        done = subprocess.run(gcc, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(next(line for line in done.stderr.splitlines() if "error:" in line))
        model = ctypes.CDLL(str(library)).model
        outputs = [np.zeros(shape(value), dtype(value)) for value in graph.output]
        model(*(array.ctypes.data_as(ctypes.c_void_p) for array in [*case.inputs.values(), *outputs]))
    return outputs


def shape(value):
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def dtype(value):
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)

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
from onnx import TensorProto, helper

from harness.case import NotPossible

OPERATORS = ["TensorScatter", "Attention"]
# The code has 256 bytes for a string.
TEXT = np.dtype("S256")


def name():
    return "emx-onnx-cgen"


def version():
    return installed("emx-onnx-cgen")


def run(case, in_place):
    if in_place:
        raise NotPossible("the parameters of the generated function are restrict")
    model = with_shapes(case)
    with tempfile.TemporaryDirectory() as folder:
        static, source, library = (Path(folder) / f"model.{end}" for end in ("onnx", "c", "so"))
        onnx.save(model, static)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = generate(["compile", str(static), str(source)])
        if code:
            raise RuntimeError(printed.getvalue().strip().splitlines()[-1])
        gcc = ["gcc", "-O1", "-shared", "-fPIC", source, "-o", library, "-lm"]
        done = subprocess.run(gcc, capture_output=True, text=True)
        if done.returncode:
            error = next(line for line in done.stderr.splitlines() if "error:" in line)
            raise RuntimeError(f"gcc: {error.removeprefix(folder)}")
        inputs = [
            np.char.encode(array.astype(str), "utf-8").astype(TEXT) if array.dtype == object else array
            for array in case.inputs.values()
        ]
        outputs = [np.zeros(shape(value), dtype(value)) for value in model.graph.output]
        arguments = [array.ctypes.data_as(ctypes.c_void_p) for array in [*inputs, *outputs]]
        ctypes.CDLL(str(library)).model(*arguments)
    return [
        np.char.decode(array, "utf-8").astype(object) if array.dtype == TEXT else array for array in outputs
    ]


def with_shapes(case):
    """Returns the model with sizes instead of symbols, which would be further parameters of the code."""
    model = onnx.load(case.model)
    shapes = [value.type.tensor_type.shape for value in model.graph.input]
    if not any(dimension.dim_param for shape in shapes for dimension in shape.dim):
        return model
    for value in model.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, case.inputs[value.name].shape, strict=True
        ):
            dimension.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def shape(value):
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def dtype(value):
    if value.type.tensor_type.elem_type == TensorProto.STRING:
        return TEXT
    return helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)

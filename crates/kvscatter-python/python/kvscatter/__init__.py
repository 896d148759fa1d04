"""Writes new keys and values into a KV cache: in place, exactly as ONNX, TensorRT and Ascend define it."""

from kvscatter._native import Prepared, in_place_many, prepare, tensor_scatter, tensor_scatter_
from kvscatter.errors import (
    ArrayError,
    DeviceError,
    ElementTypeError,
    Error,
    OptionError,
    PositionError,
    ShapeError,
)

__all__ = [
    "ArrayError",
    "DeviceError",
    "ElementTypeError",
    "Error",
    "OptionError",
    "PositionError",
    "Prepared",
    "ShapeError",
    "in_place_many",
    "prepare",
    "tensor_scatter",
    "tensor_scatter_",
]

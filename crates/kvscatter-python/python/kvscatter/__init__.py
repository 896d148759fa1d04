"""Writes new keys and values into a KV cache: in place, exactly as ONNX, TensorRT and Ascend define it."""

from kvscatter import errors, positions
from kvscatter._native import (
    Plan,
    Prepared,
    __version__,
    in_place_many,
    kv_cache_operation_,
    kv_cache_update_,
    plan,
    prepare,
    tensor_scatter,
    tensor_scatter_,
)
from kvscatter._plan import Block, Loop, Segment
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
    "Block",
    "DeviceError",
    "ElementTypeError",
    "Error",
    "Loop",
    "OptionError",
    "Plan",
    "PositionError",
    "Prepared",
    "Segment",
    "ShapeError",
    "__version__",
    "errors",
    "in_place_many",
    "kv_cache_operation_",
    "kv_cache_update_",
    "plan",
    "positions",
    "prepare",
    "tensor_scatter",
    "tensor_scatter_",
]

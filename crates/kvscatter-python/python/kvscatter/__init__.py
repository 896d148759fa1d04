"""Writes new keys and values into a KV cache: in place, exactly as ONNX, TensorRT and Ascend define it."""

from kvscatter import errors, positions
from kvscatter._native import (
    KvSession,
    Plan,
    Prepared,
    Sample,
    Scores,
    __version__,
    generate,
    in_place_many,
    kv_cache_operation_,
    kv_cache_update_,
    plan,
    prepare,
    tensor_scatter,
    tensor_scatter_,
)
from kvscatter._plan import Block, Loop, Segment
from kvscatter._session import CacheMemory, Generated, MemoryReport
from kvscatter.errors import (
    ArrayError,
    DeviceError,
    ElementTypeError,
    Error,
    OptionError,
    PositionError,
    SessionError,
    ShapeError,
)

__all__ = [
    "ArrayError",
    "Block",
    "CacheMemory",
    "DeviceError",
    "ElementTypeError",
    "Error",
    "Generated",
    "KvSession",
    "Loop",
    "MemoryReport",
    "OptionError",
    "Plan",
    "PositionError",
    "Prepared",
    "Sample",
    "Scores",
    "Segment",
    "SessionError",
    "ShapeError",
    "__version__",
    "errors",
    "generate",
    "in_place_many",
    "kv_cache_operation_",
    "kv_cache_update_",
    "plan",
    "positions",
    "prepare",
    "tensor_scatter",
    "tensor_scatter_",
]

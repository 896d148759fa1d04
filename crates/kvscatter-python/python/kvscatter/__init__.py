"""Writes new keys and values into a KV cache in place, exactly as ONNX, TensorRT and Ascend define it."""

from kvscatter import cuda, errors, onnxruntime, onnxruntime_genai, paged, positions, ring
from kvscatter._generate import Generator, chat, generate
from kvscatter._models import certify, convert, inspect, lower, verify
from kvscatter._native import (
    KvSession,
    Logits,
    Plan,
    Prepared,
    PreparedAttention,
    Sample,
    Transaction,
    __version__,
    attention,
    kv_cache_operation_,
    kv_cache_update_,
    plan,
    prepare,
    prepare_attention,
    tensor_scatter,
    tensor_scatter_,
    write_many,
)
from kvscatter._plan import Block, Loop, Segment
from kvscatter._session import CacheMemory, Generated, MemoryReport
from kvscatter._stream import Stream
from kvscatter.errors import (
    ArrayError,
    CudaError,
    DeviceError,
    ElementTypeError,
    Error,
    FileError,
    ModelError,
    OptionError,
    PositionError,
    SessionError,
    ShapeError,
)

__all__ = [
    "ArrayError",
    "Block",
    "CacheMemory",
    "CudaError",
    "DeviceError",
    "ElementTypeError",
    "Error",
    "FileError",
    "Generated",
    "Generator",
    "KvSession",
    "Logits",
    "Loop",
    "MemoryReport",
    "ModelError",
    "OptionError",
    "Plan",
    "PositionError",
    "Prepared",
    "PreparedAttention",
    "Sample",
    "Segment",
    "SessionError",
    "ShapeError",
    "Stream",
    "Transaction",
    "__version__",
    "attention",
    "certify",
    "chat",
    "convert",
    "cuda",
    "errors",
    "generate",
    "inspect",
    "kv_cache_operation_",
    "kv_cache_update_",
    "lower",
    "onnxruntime",
    "onnxruntime_genai",
    "paged",
    "plan",
    "positions",
    "prepare",
    "prepare_attention",
    "ring",
    "tensor_scatter",
    "tensor_scatter_",
    "verify",
    "write_many",
]


def __dir__() -> list[str]:
    return __all__

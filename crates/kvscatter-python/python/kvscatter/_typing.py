"""The types of the package's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, TypedDict, TypeVar

import numpy as np


class SupportsDLPack(Protocol):
    """An array of any library: NumPy, PyTorch, JAX, CuPy and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns a capsule that contains the array."""


class SupportsCudaArrayInterface(Protocol):
    """An array on a CUDA device, of a library such as Numba that has no DLPack."""

    @property
    def __cuda_array_interface__(self) -> Any:
        """The dict that Numba's documentation defines."""
        ...


class SupportsCudaStream(Protocol):
    """A stream of a library that follows CUDA's protocol for Python, such as PyTorch or CuPy."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Returns the protocol's version and the stream's address."""
        ...


class TorchStream(Protocol):
    """A ``torch.cuda.Stream``."""

    @property
    def cuda_stream(self) -> int:
        """The stream's address."""
        ...


class CupyStream(Protocol):
    """A ``cupy.cuda.Stream``."""

    @property
    def ptr(self) -> int:
        """The stream's address."""
        ...


class TorchDType(Protocol):
    """A ``torch.dtype``, without importing PyTorch."""

    @property
    def is_floating_point(self) -> bool:
        """Whether it is one of the float types."""
        ...

    @property
    def itemsize(self) -> int:
        """The number of bytes of an element."""
        ...


AnyArray = TypeVar("AnyArray", bound=SupportsDLPack)

CudaArray: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface
"""An array on a CUDA device."""

CudaStream: TypeAlias = int | SupportsCudaStream | TorchStream | CupyStream
"""A stream, or its address."""

Integer: TypeAlias = int | np.integer[Any]

Indices: TypeAlias = SupportsDLPack | Sequence[SupportsIndex]
"""An integer array of one dimension, or a sequence of integers."""

Shape: TypeAlias = tuple[int, ...] | list[int]

CacheType: TypeAlias = Literal["float32", "float16", "bfloat16", "int8"]
Feeding: TypeAlias = Literal["without_padding", "padded_on_the_right", "idle"]
AttentionLayout: TypeAlias = Literal["bhsd", "bshd"]
"""Whether arrays are ``[batch, heads, sequence, size]`` or ``[batch, sequence, heads, size]``."""

Mode: TypeAlias = Literal["linear", "circular"]
OutOfRange: TypeAlias = Literal["error", "skip"]
NegativeIndex: TypeAlias = Literal["modulo", "reject"]


class ModelOptions(TypedDict, total=False):
    """The options with which a model is loaded."""

    convert: bool
    max_seq: int | None
    cache_type: CacheType | None
    rotation: bool
    capacity: int | None
    threads: int | None
    memory: int
    onnxruntime: str | PathLike[str] | None
    plugin: bool | str | PathLike[str]


class GenerateOptions(TypedDict, total=False):
    """The options of a generation, except for those that its functions name themselves."""

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    eos: Indices | None
    chunk: int
    draft: int
    progress: Callable[[int, int], object] | None


class ModelAndGenerateOptions(ModelOptions, GenerateOptions, total=False):
    """The options of a generation that also loads the model."""

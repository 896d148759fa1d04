"""The types of the package's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias, TypeVar

import numpy as np

__all__ = [
    "AnyArray",
    "Indices",
    "Integer",
    "Mode",
    "NegativeIndex",
    "OutOfRange",
    "Shape",
    "SupportsDLPack",
    "TorchDType",
]


class SupportsDLPack(Protocol):
    """An array of any library: NumPy, PyTorch, JAX, CuPy and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule that holds the array."""


class TorchDType(Protocol):
    """A ``torch.dtype``, which PyTorch need not be there for."""

    @property
    def is_floating_point(self) -> bool:
        """Whether it is one of the float types."""
        ...

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        ...


AnyArray = TypeVar("AnyArray", bound=SupportsDLPack)

Integer: TypeAlias = int | np.integer[Any]

Indices: TypeAlias = SupportsDLPack | Sequence[SupportsIndex]
"""An integer array of one dimension, or numbers."""

Shape: TypeAlias = tuple[int, ...] | list[int]

Mode: TypeAlias = Literal["linear", "circular"]
OutOfRange: TypeAlias = Literal["error", "skip"]
NegativeIndex: TypeAlias = Literal["modulo", "reject"]

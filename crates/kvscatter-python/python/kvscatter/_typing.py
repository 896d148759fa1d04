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
]


class SupportsDLPack(Protocol):
    """An array of any library: NumPy, PyTorch, JAX, CuPy and others."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any:
        """A capsule that holds the array."""


AnyArray = TypeVar("AnyArray", bound=SupportsDLPack)

Integer: TypeAlias = int | np.integer[Any]

Indices: TypeAlias = SupportsDLPack | Sequence[SupportsIndex]
"""An integer array of one dimension, or numbers."""

Shape: TypeAlias = tuple[int, ...] | list[int]

Mode: TypeAlias = Literal["linear", "circular"]
OutOfRange: TypeAlias = Literal["error", "skip"]
NegativeIndex: TypeAlias = Literal["modulo", "reject"]

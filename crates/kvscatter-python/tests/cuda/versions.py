"""PyTorch's `increment_version`, played: the package looks it up once in a process, for all tests."""

from __future__ import annotations

from typing import Any

counted: list[int] = []


def increment_version(tensors: Any) -> None:
    """Notes how many tensors have been written."""
    counted.append(len(tensors))

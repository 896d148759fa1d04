"""Writes new keys and values into a KV cache."""

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
    "ShapeError",
]

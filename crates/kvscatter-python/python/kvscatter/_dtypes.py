"""NumPy's dtypes by name, including those of ml_dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

ONNX_NAMES: Final = {
    "bfloat16": "bfloat16",
    "bool": "bool",
    "complex128": "complex128",
    "complex64": "complex64",
    "float64": "double",
    "float32": "float",
    "float16": "float16",
    "float4_e2m1fn": "float4e2m1",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0fnu": "float8e8m0",
    "int16": "int16",
    "int32": "int32",
    "int4": "int4",
    "int64": "int64",
    "int8": "int8",
    "object": "string",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint4": "uint4",
    "uint64": "uint64",
    "uint8": "uint8",
}
"""The NumPy name of each of the 24 element types, and the name that ONNX uses inside ``tensor(...)``."""

FOUR_BITS: Final = frozenset({"float4_e2m1fn", "int4", "uint4"})
"""The types that ml_dtypes stores with one value per byte, in the low nibble, and ONNX with two."""

_OF_ML_DTYPES: Final = frozenset({"bfloat16", "float4_e2m1fn", "int4", "uint4"})


@cache
def dtype_named(name: str) -> np.dtype[Any] | None:
    """Returns the dtype with this NumPy name, or None if ml_dtypes is missing or does not have it yet."""
    if name not in _OF_ML_DTYPES and not name.startswith("float8"):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        return None
    scalar = getattr(ml_dtypes, name, None)
    return None if scalar is None else np.dtype(scalar)


def unpacked(packed: Bytes, count: int) -> Bytes:
    """Unpacks ``count`` 4-bit values to one per byte. Each packed byte contains two, the first in the low
    nibble."""
    return np.stack([packed & np.uint8(0xF), packed >> np.uint8(4)], axis=1).reshape(-1)[:count].copy()


def packed(values: Bytes) -> Bytes:
    """Packs two 4-bit values into a byte, the first in the low nibble. If the count is odd, the last nibble
    is 0."""
    even = np.zeros(values.size + values.size % 2, np.uint8)
    even[: values.size] = values & 0xF
    both: Bytes = even[0::2] | (even[1::2] << np.uint8(4))
    return both

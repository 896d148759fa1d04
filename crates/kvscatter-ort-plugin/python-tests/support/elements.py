"""The element types of TensorScatter by ONNX's number, with their widths and their NumPy types."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto


@dataclass(frozen=True)
class Element:
    """A type whose elements have a fixed width."""

    name: str
    code: int
    bits: int

    def bytes(self, shape) -> int:
        """Returns the size of a dense tensor of this shape. Two 4-bit elements share a byte."""
        return (int(np.prod(shape, dtype=np.int64)) * self.bits + 7) // 8

    def __str__(self):
        return self.name


def _element(name: str, bits: int) -> Element:
    return Element(name.lower(), getattr(TensorProto, name), bits)


# The types that ONNX Runtime's own kernel takes.
BUILTIN = [
    _element(name, bits)
    for name, bits in [
        ("FLOAT", 32), ("UINT8", 8), ("INT8", 8), ("UINT16", 16), ("INT16", 16), ("INT32", 32), ("INT64", 64),
        ("BOOL", 8), ("FLOAT16", 16), ("DOUBLE", 64), ("UINT32", 32), ("UINT64", 64), ("BFLOAT16", 16),
    ]
]  # fmt: skip

# The types that only the plugin takes.
PLUGIN_ONLY = [
    _element(name, bits)
    for name, bits in [
        ("FLOAT8E4M3FN", 8), ("FLOAT8E4M3FNUZ", 8), ("FLOAT8E5M2", 8), ("FLOAT8E5M2FNUZ", 8),
        ("FLOAT8E8M0", 8), ("UINT4", 4), ("INT4", 4), ("FLOAT4E2M1", 4),
    ]
]  # fmt: skip

ALL = BUILTIN + PLUGIN_ONLY
BY_CODE = {element.code: element for element in ALL}
BY_NAME = {element.name: element for element in ALL}

FLOAT = BY_NAME["float"]
FLOAT16 = BY_NAME["float16"]
INT32 = BY_NAME["int32"]
INT64 = BY_NAME["int64"]


def unpack(data: np.ndarray, element: Element, shape) -> np.ndarray:
    """Returns bytes as an array with one entry for each element, of an unsigned type that is wide enough."""
    if element.bits == 4:
        nibbles = np.stack([data & 0xF, data >> 4], axis=-1).reshape(-1)
        return nibbles[: int(np.prod(shape, dtype=np.int64))].reshape(shape)
    return data.view(f"u{element.bits // 8}").reshape(shape)


def pack(array: np.ndarray, element: Element) -> bytes:
    """Reverses :func:`unpack`. The first element is in the low nibble, and the last pad nibble is 0."""
    flat = array.reshape(-1)
    if element.bits == 4:
        padded = np.append(flat, np.zeros(flat.size % 2, flat.dtype)).reshape(-1, 2)
        flat = padded[:, 0] | padded[:, 1] << 4
    return flat.tobytes()

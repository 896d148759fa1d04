"""Tensors in memory of our own, with guards on both sides, that any session can be bound to."""

from dataclasses import dataclass

import numpy as np

from support.elements import INT32, INT64, Element, pack, unpack

GUARD = 64
CANARY = 0xA5


class Tensor:
    """A dense tensor whose every byte, and 64 bytes on either side, can be compared."""

    def __init__(self, element: Element, shape, data: bytes):
        self.element, self.shape = element, tuple(shape)
        size = element.bytes(shape)
        assert len(data) == size, f"{len(data)} bytes for {element} {self.shape}"
        # Aligned as ONNX Runtime's own allocations are.
        whole = np.full(size + 3 * GUARD, CANARY, np.uint8)
        begin = GUARD + -whole.ctypes.data % GUARD
        self._memory = whole[begin - GUARD : begin + size + GUARD]
        self.data = whole[begin : begin + size]
        self.data[:] = np.frombuffer(data, np.uint8)

    @classmethod
    def painted(cls, element: Element, shape, seed: int) -> "Tensor":
        """Random bytes, the same for the same seed. In a bool every byte is 0 or 1; a pad nibble is 0."""
        data = np.random.default_rng(seed).integers(0, 256, element.bytes(shape), np.uint8)
        if element.name == "bool":
            data &= 1
        return cls(element, shape, pack(unpack(data, element, shape), element))

    @classmethod
    def garbage(cls, element: Element, shape) -> "Tensor":
        """Memory that is to be written whole."""
        return cls(element, shape, bytes([0x5C]) * element.bytes(shape))

    @classmethod
    def of(cls, array) -> "Tensor":
        """A copy of an int32 or int64 array, or of a list as int64."""
        array = np.asarray(array, None if isinstance(array, np.ndarray) else np.int64)
        element = {"int32": INT32, "int64": INT64}[array.dtype.name]
        return cls(element, array.shape, array.tobytes())

    def holding(self, values: np.ndarray, offset: int = 0) -> "Part":
        """Writes an int32 or int64 array into its memory: a tensor that lies there."""
        self.data[offset : offset + values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
        element = {"int32": INT32, "int64": INT64}[values.dtype.name]
        return Part(element, values.shape, self.address + offset)

    def copy(self) -> "Tensor":
        """The same in memory of its own."""
        return Tensor(self.element, self.shape, self.bytes())

    def bytes(self) -> bytes:
        """The contents."""
        return self.data.tobytes()

    def array(self) -> np.ndarray:
        """The elements, as unsigned integers."""
        return unpack(self.data, self.element, self.shape)

    @property
    def address(self) -> int:
        """Where the first byte lies."""
        return self.data.ctypes.data

    def check_guards(self):
        """Fails if a byte beside the tensor was written."""
        guards = np.concatenate([self._memory[:GUARD], self._memory[-GUARD:]])
        assert (guards == CANARY).all(), "bytes beside the tensor were written"


@dataclass
class Part:
    """A tensor in the memory of another."""

    element: Element
    shape: tuple[int, ...]
    address: int


def same(got: Tensor, expected: bytes):
    """Every byte and both guards."""
    got.check_guards()
    if got.bytes() != expected:
        wrong = np.flatnonzero(got.data != np.frombuffer(expected, np.uint8))
        raise AssertionError(f"{wrong.size} of {len(expected)} bytes differ, the first is byte {wrong[0]}")

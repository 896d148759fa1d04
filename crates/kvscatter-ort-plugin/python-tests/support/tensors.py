"""Tensors in memory of the test, with guards on both sides, that any session can be bound to."""

from dataclasses import dataclass

import numpy as np

from support.elements import INT32, INT64, Element, pack, unpack

GUARD = 64
CANARY = 0xA5


class Tensor:
    """A dense tensor whose bytes can be compared, and the 64 bytes on either side too."""

    def __init__(self, element: Element, shape, data: bytes):
        self.element, self.shape = element, tuple(shape)
        size = element.bytes(shape)
        assert len(data) == size, f"{len(data)} bytes for {element} {self.shape}"
        # The alignment is that of ONNX Runtime's own allocations.
        whole = np.full(size + 3 * GUARD, CANARY, np.uint8)
        begin = GUARD + -whole.ctypes.data % GUARD
        self._memory = whole[begin - GUARD : begin + size + GUARD]
        self.data = whole[begin : begin + size]
        self.data[:] = np.frombuffer(data, np.uint8)

    @classmethod
    def painted(cls, element: Element, shape, seed: int) -> "Tensor":
        """Returns random bytes that depend on the seed. Bytes of a bool are 0 or 1, and pad nibbles are 0."""
        data = np.random.default_rng(seed).integers(0, 256, element.bytes(shape), np.uint8)
        if element.name == "bool":
            data &= 1
        return cls(element, shape, pack(unpack(data, element, shape), element))

    @classmethod
    def garbage(cls, element: Element, shape) -> "Tensor":
        """Returns memory that is to be overwritten completely."""
        return cls(element, shape, bytes([0x5C]) * element.bytes(shape))

    @classmethod
    def of(cls, array) -> "Tensor":
        """Returns a copy of an int32 or int64 array, or of a list as int64."""
        array = np.asarray(array, None if isinstance(array, np.ndarray) else np.int64)
        element = {"int32": INT32, "int64": INT64}[array.dtype.name]
        return cls(element, array.shape, array.tobytes())

    def holding(self, values: np.ndarray, offset: int = 0) -> "Part":
        """Writes an int32 or int64 array into this tensor's memory, and returns a tensor at that place."""
        self.data[offset : offset + values.nbytes] = np.frombuffer(values.tobytes(), np.uint8)
        element = {"int32": INT32, "int64": INT64}[values.dtype.name]
        return Part(element, values.shape, self.address + offset)

    def copy(self) -> "Tensor":
        """Returns a copy in separate memory."""
        return Tensor(self.element, self.shape, self.bytes())

    def bytes(self) -> bytes:
        """Returns the contents."""
        return self.data.tobytes()

    def array(self) -> np.ndarray:
        """Returns the elements as unsigned integers."""
        return unpack(self.data, self.element, self.shape)

    @property
    def address(self) -> int:
        """Returns the address of the first byte."""
        return self.data.ctypes.data

    def check_guards(self):
        """Fails if a byte beside the tensor was written."""
        guards = np.concatenate([self._memory[:GUARD], self._memory[-GUARD:]])
        assert (guards == CANARY).all(), "bytes beside the tensor were written"


@dataclass
class Part:
    """A tensor in the memory of another tensor."""

    element: Element
    shape: tuple[int, ...]
    address: int


def same(got: Tensor, expected: bytes):
    """Checks every byte and both guards."""
    got.check_guards()
    if got.bytes() != expected:
        wrong = np.flatnonzero(got.data != np.frombuffer(expected, np.uint8))
        raise AssertionError(f"{wrong.size} of {len(expected)} bytes differ, the first is byte {wrong[0]}")

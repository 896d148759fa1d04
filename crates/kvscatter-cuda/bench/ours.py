"""This project's write, through the C functions of `library.rs`."""

import ctypes
import os
import pathlib
from collections.abc import Callable, Sequence

import torch

from cases import HEADS, WIDTH, Case
from choices import Choices, variations
from memory import Memory
from names import AGAIN, NO_STATUS, OURS, SKIP_ALL
from way import Role, Way

STATUS_BYTES = 16


class Shape(ctypes.Structure):
    """The struct `Shape` of `library.rs`."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("batch", "heads", "rows", "capacity", "width", "functional", "skip_all")
    ]


class Failed(Exception):
    """An error of the library."""


class Library:
    """The functions, with their types."""

    def __init__(self, path: pathlib.Path, driver: pathlib.Path | None = None) -> None:
        """Loads the library, and the driver that it uses: this machine's, or another one."""
        library = ctypes.CDLL(str(path.resolve()))
        numbers, pointer = ctypes.POINTER(ctypes.c_uint64), ctypes.c_void_p
        self._error = library.kvscatter_bench_error
        self._error.restype = ctypes.c_char_p
        self._choices = library.kvscatter_bench_choices
        self._choices.argtypes = [ctypes.POINTER(Choices)]
        self._choices.restype = None
        self._open = library.kvscatter_bench_open
        self._open.argtypes = [ctypes.c_char_p]
        self._prepare = library.kvscatter_bench_prepare
        self._prepare.argtypes = [ctypes.POINTER(Shape), numbers, ctypes.c_size_t, pointer]
        self._prepare.restype = pointer
        self.free = library.kvscatter_bench_free
        self.free.argtypes = [pointer]
        self.free.restype = None
        self.launch = library.kvscatter_bench_launch
        self.launch.argtypes = [pointer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64]
        self._time = library.kvscatter_bench_time
        self._time.argtypes = [
            ctypes.POINTER(pointer),
            numbers,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_uint64,
        ]
        self._time.restype = ctypes.c_int64
        if self._open(os.fsencode(driver) if driver else None):
            raise Failed(self.error())

    def choices(self) -> Choices:
        """Returns the default spread of a write over the device."""
        found = Choices()
        self._choices(ctypes.byref(found))
        return found

    def prepare(
        self, case: Case, addresses: Sequence[int], skip_all: bool, choices: Choices | None = None
    ) -> int:
        """Prepares a write, and returns its handle.

        `addresses` are the cache and the update of each tensor, or in the functional form the present, past
        and update.
        """
        shape = Shape(case.batch, HEADS, case.rows, case.capacity, WIDTH, case.is_functional, skip_all)
        chosen = ctypes.byref(choices) if choices else None
        found = self._prepare(ctypes.byref(shape), numbers(addresses), case.tensors, chosen)
        if not found:
            raise Failed(self.error())
        return int(found)

    def time(self, writes: Sequence[int], starts: Sequence[int], stream: int, status: int) -> float:
        """Returns the microseconds of the host per launch. Rust makes the launches one after the other."""
        handles = (ctypes.c_void_p * len(writes))(*writes)
        nanoseconds = self._time(handles, numbers(starts), len(writes), stream, status)
        if nanoseconds < 0:
            raise Failed(self.error())
        return float(nanoseconds) / len(writes) / 1e3

    def error(self) -> str:
        """Returns the last error."""
        return bytes(self._error()).decode()


class Ours:
    """The prepared writes of a case."""

    def __init__(self, library: Library, memory: Memory) -> None:
        """Prepares the writes with the default choices."""
        self.library = library
        self.memory = memory
        self.status = memory.place.empty(STATUS_BYTES, torch.uint8).zero_()
        self.starts = [row.data_ptr() for row in memory.starts]
        self._prepared: list[int] = []
        self.usual = self._prepare()

    def ways(self) -> list[Way]:
        """Returns the write twice, and the write with other options."""
        skip_all = self._prepare(skip_all=True)
        return [
            *self._twice(),
            Way(NO_STATUS, Role.VARIANT, self._writer(self.usual, 0)),
            Way(SKIP_ALL, Role.VARIANT, self._writer(skip_all, self.status.data_ptr())),
        ]

    def ways_of_choices(self) -> list[Way]:
        """Returns the write twice, and the write with each choice changed."""
        status = self.status.data_ptr()
        varied = variations(self.library.choices()).items()
        ways = (
            Way(name, Role.VARIANT, self._writer(self._prepare(choices), status)) for name, choices in varied
        )
        return [*self._twice(), *ways]

    def host_time(self) -> float:
        """Returns the microseconds of the host for a launch."""
        stream, status = self.memory.place.stream(), self.status.data_ptr()
        return self.library.time(self.usual, self.starts, stream, status)

    def close(self) -> None:
        """Frees the prepared writes."""
        while self._prepared:
            self.library.free(self._prepared.pop())

    def _prepare(self, choices: Choices | None = None, skip_all: bool = False) -> list[int]:
        memory, found = self.memory, []
        for at in memory.writes:
            kept = [memory.pasts[at.caches]] if memory.pasts else []
            of_tensors = zip(memory.caches[at.caches], *kept, memory.updates[at.update], strict=True)
            addresses = [tensor.data_ptr() for tensors in of_tensors for tensor in tensors]
            found.append(self.library.prepare(memory.case, addresses, skip_all, choices))
        self._prepared += found
        return found

    def _twice(self) -> list[Way]:
        # A comparison of the write with itself shows the accuracy of the other comparisons.
        return [
            Way(name, Role.OURS, self._writer(self.usual, self.status.data_ptr())) for name in (OURS, AGAIN)
        ]

    def _writer(self, writes: list[int], status: int) -> Callable[[int], None]:
        launch, starts, stream = self.library.launch, self.starts, self.memory.place.stream

        def write(number: int) -> None:
            if launch(writes[number], stream(), starts[number], status):
                raise Failed(self.library.error())

        return write


def check_contract(library: Library, memory: Memory) -> None:
    """Checks a launch in place with a bad start.

    The launch leaves that sample, writes the others and counts the sample. With SkipAll it writes nothing.
    """
    case, write = memory.case, memory.writes[0]
    bad, value = case.batch - 1, case.capacity + 7
    starts = memory.place.empty(case.batch, torch.int64).copy_(memory.starts[0])
    starts[bad] = value
    for skip_all in (False, True):
        memory.paint()
        wanted = [block.copy() for block in memory.written[write.caches]]
        for block, update in zip(wanted, memory.updates[write.update], strict=True):
            for sample, start in enumerate([] if skip_all else write.starts[:bad]):
                block.tensor[sample, :, start : start + case.rows] = update[sample]
        ours = Ours(library, memory)
        ours.starts[0] = starts.data_ptr()
        way = ours.ways()[-1 if skip_all else 0]
        way.write(0)
        memory.place.synchronize()
        ours.close()
        status = ours.status.cpu()
        reported = (*status[:8].view(torch.int32).tolist(), int(status[8:].view(torch.int64)))
        if reported != (1, bad, value):
            raise Failed(f"{way.name}: {value} for sample {bad} was reported as {reported}")
        for number, (want, got) in enumerate(zip(wanted, memory.written[write.caches], strict=True)):
            if not torch.equal(want.whole.view(torch.int16), got.whole.view(torch.int16)):
                raise Failed(f"{way.name}: a bad start, and tensor {number} is wrong")
    memory.paint()


def numbers(values: Sequence[int]) -> "ctypes.Array[ctypes.c_uint64]":
    """Returns the values as an array for C."""
    return (ctypes.c_uint64 * len(values))(*values)

"""The ceiling. The driver copies the same number of bytes to other memory in one copy."""

import ctypes
import sys

import torch

from memory import Memory
from names import MEMCPY
from way import Absent, Role, Way

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def ways(memory: Memory) -> list[Way]:
    """Returns one way on the current stream, with the driver function that cudaMemcpyAsync calls."""
    if memory.device.type != "cuda":
        raise Absent("no GPU")
    copy = ctypes.CDLL(DRIVER).cuMemcpyDtoDAsync_v2
    copy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    size = memory.case.copied_bytes
    # As much memory is used in turn as by the other ways.
    sets = max(2, len(memory.written) if memory.case.is_functional else len(memory.new))
    turns = [torch.empty(2, size, dtype=torch.uint8, device=memory.device).random_() for _ in range(sets)]
    places = [(turn[0].data_ptr(), turn[1].data_ptr()) for turn in turns]

    def write(number: int, keep: object = turns) -> None:
        to, from_ = places[number % sets]
        if copy(to, from_, size, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError("cuMemcpyDtoDAsync failed")

    return [Way(MEMCPY, Role.CEILING, write)]

"""A stand-in for the scalar design of ONNX Runtime's CUDA kernel.

ONNX Runtime's Python package for CPUs does not contain that kernel. The stand-in uses one thread
for each element, 64-bit divisions, and one launch for each tensor. If a past is kept, it is copied first.
"""

from collections.abc import Callable

import cupy
import numpy as np
import torch

from cases import HEADS, WIDTH
from memory import Memory
from way import Absent, Role, Way

THREADS = 256

SOURCE = """
extern "C" __global__ void scatter(unsigned short* present, const unsigned short* update, const long long* starts,
                                   long long lines_per_sample, long long capacity, long long rows, long long width,
                                   long long elements) {
    const long long element = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (element >= elements) return;
    const long long line = element / (rows * width), within = element % (rows * width);
    const long long slot = starts[line / lines_per_sample] + within / width;
    present[(line * capacity + slot) * width + within % width] = update[element];
}
"""


def ways(memory: Memory) -> list[Way]:
    """Returns one way, on PyTorch's current stream."""
    if memory.device.type != "cuda":
        raise Absent("no GPU")
    return [Way("scalar kernel, ONNX Runtime's stand-in (CuPy)", Role.PEER, writer(memory))]


def writer(memory: Memory) -> Callable[[int], None]:
    """Returns a function that makes a launch for each tensor."""
    case = memory.case
    kernel = cupy.RawKernel(SOURCE, "scatter")
    elements = case.batch * HEADS * case.rows * WIDTH
    blocks = -(-elements // THREADS)
    sizes = [np.int64(size) for size in (HEADS, case.capacity, case.rows, WIDTH, elements)]
    pasts, cache_tensors = memory.pasts, memory.caches
    caches = [[np.uint64(tensor.data_ptr()) for tensor in tensors] for tensors in memory.caches]
    updates = [[np.uint64(tensor.data_ptr()) for tensor in tensors] for tensors in memory.updates]
    starts = [np.uint64(row.data_ptr()) for row in memory.starts]

    def write(number: int) -> None:
        at = memory.writes[number]
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            for k, cache in enumerate(caches[at.caches]):
                if pasts:
                    cache_tensors[at.caches][k].copy_(pasts[at.caches][k])
                kernel((blocks,), (THREADS,), (cache, updates[at.update][k], starts[number], *sizes))

    return write

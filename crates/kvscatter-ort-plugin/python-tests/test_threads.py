"""Large writes use the session's own threads, and small writes do not."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto

from support import models
from support.sessions import add_provider, options
from support.threads import thread_time, time_of_others

MIB = 1 << 20


def session(threads: int) -> ort.InferenceSession:
    # Threads that spin while they wait would look busy.
    made = options(threads, **{"session.intra_op.allow_spinning": "0"})
    add_provider(made)
    return ort.InferenceSession(models.tensor_scatter(TensorProto.UINT8), made, enable_fallback=0)


def work(rows: int, in_place: bool, repeats: int, threads: int) -> tuple[int, int]:
    """Returns the time of this thread and of all others for writing a cache of 64 slots of 1 MiB."""
    past = np.zeros((2, 64, MIB // 2), np.uint8)
    present = past if in_place else np.ones_like(past)
    update = np.random.default_rng(rows).integers(1, 256, (2, rows, MIB // 2), np.uint8)
    made = session(threads)
    binding = made.io_binding()
    binding.bind_input("past_cache", "cpu", 0, np.uint8, past.shape, past.ctypes.data)
    binding.bind_cpu_input("update", update)
    binding.bind_cpu_input("write_indices", np.array([0, 64 - rows]))
    binding.bind_output("present_cache", "cpu", 0, np.uint8, present.shape, present.ctypes.data)
    made.run_with_iobinding(binding)

    begin, others = thread_time(), time_of_others()
    for _ in range(repeats):
        made.run_with_iobinding(binding)
    spent = thread_time() - begin, time_of_others() - others

    assert (present[0, :rows] == update[0]).all() and not present[0, rows:].any()
    assert (present[1, 64 - rows :] == update[1]).all() and not present[1, : 64 - rows].any()
    return spent


@pytest.mark.parametrize("rows, in_place", [(32, True), (1, False)], ids=["in place", "functional"])
def test_a_large_write_is_shared_among_the_sessions_threads(rows, in_place):
    mine, others = work(rows, in_place, repeats=20, threads=2)
    assert others > mine / 10, (mine, others)


def test_a_small_write_wakes_no_thread():
    mine, others = work(rows=0, in_place=True, repeats=2000, threads=2)
    assert others < mine / 10, (mine, others)


def test_one_thread_suffices():
    _, others = work(rows=32, in_place=True, repeats=3, threads=1)
    assert others < 1_000_000, others

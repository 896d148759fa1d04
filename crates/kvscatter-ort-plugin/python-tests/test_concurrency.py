"""Many threads at once, in one session and in several sessions."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support import documents, models
from support.elements import FLOAT16, pack
from support.sessions import plugin, run
from support.tensors import Tensor, same

THREADS, STEPS = 64, 40
MODEL = models.tensor_scatter(FLOAT16.code, mode="circular")


def decode(session, thread: int, barrier: threading.Barrier) -> None:
    """Runs steps with shapes and positions that no other thread has. Every eleventh step fails."""
    batch, capacity, width = 1 + thread % 3, 5 + thread % 7, 1 + thread % 5
    cache = Tensor.painted(FLOAT16, (batch, 2, capacity, width), thread)
    want = cache.array().copy()
    session = session or plugin(MODEL)
    barrier.wait()
    for step in range(STEPS):
        rows = 1 + (thread + step) % 3
        update = Tensor.painted(FLOAT16, (batch, 2, rows, width), 1000 * thread + step)
        indices = np.arange(batch) * 13 + thread + step
        inputs = {"past_cache": cache, "update": update, "write_indices": Tensor.of(indices)}
        if step % 11 == 10:
            inputs["write_indices"] = Tensor.of(indices * 0 - 1)
            with pytest.raises(Exception, match="is negative"):
                run(session, inputs, {"present_cache": cache})
        elif step % 2:
            run(session, inputs, {"present_cache": cache})
            want = documents.tensor_scatter(want, update.array(), indices, mode="circular")
        else:
            present = Tensor.garbage(FLOAT16, cache.shape)
            run(session, inputs, {"present_cache": present})
            want = documents.tensor_scatter(want, update.array(), indices, mode="circular")
            cache = present
        same(cache, pack(want, FLOAT16))


@pytest.mark.parametrize("is_shared", [True, False], ids=["one session", "a session each"])
def test_sixty_four_threads(is_shared):
    session = plugin(MODEL) if is_shared else None
    barrier = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(decode, session, thread, barrier) for thread in range(THREADS)]:
            future.result()

"""Attention on many threads at once, and which threads and which memory one call uses."""

import pathlib
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto

from support import attention
from support.attention import random, reference
from support.sessions import plugin
from support.threads import thread_time, time_of_others

THREADS, STEPS = 32, 40
TYPES = dict.fromkeys("QKV", TensorProto.FLOAT) | {"nonpad_kv_seqlen": TensorProto.INT64}
MODEL = attention.model(TYPES, ["Y"], 24, is_causal=1)


def feed(batch: int, heads: int, queries: int, slots: int, size: int, seed: int) -> dict[str, np.ndarray]:
    lengths = np.random.default_rng(seed).integers(queries, slots + 1, batch)
    q, k, v = (random((batch, heads, rows, size), seed + i) for i, rows in enumerate([queries, slots, slots]))
    return {"Q": q, "K": k, "V": v, "nonpad_kv_seqlen": lengths}


def decode(session, thread: int, barrier: threading.Barrier) -> None:
    """Runs steps with shapes and lengths that no other thread has. Every eleventh step fails."""
    session = session or plugin(MODEL, threads=1 + thread % 3)
    barrier.wait()
    for step in range(STEPS):
        shape = (1 + thread % 3, 1 + thread % 4, 1 + (thread + step) % 3, 5 + thread, 3 + thread % 20)
        inputs = feed(*shape, seed=100 * thread + step)
        if step % 11 == 10:
            inputs["nonpad_kv_seqlen"] = inputs["nonpad_kv_seqlen"] * 0 - 1
            with pytest.raises(Exception, match="must be between"):
                session.run(None, inputs)
            continue
        (y,) = session.run(None, inputs)
        expected = reference(inputs["Q"], inputs["K"], inputs["V"], inputs["nonpad_kv_seqlen"])
        np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("is_shared", [True, False], ids=["one session", "a session each"])
def test_many_threads(is_shared):
    session = plugin(MODEL, threads=2) if is_shared else None
    barrier = threading.Barrier(THREADS)
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(decode, session, thread, barrier) for thread in range(THREADS)]:
            future.result()


def test_the_number_of_threads_does_not_change_the_result():
    for shape in [(1, 2, 1, 4000, 64), (3, 4, 33, 700, 40), (1, 1, 300, 300, 16)]:
        inputs = feed(*shape, seed=1)
        results = [plugin(MODEL, threads).run(None, inputs)[0].tobytes() for threads in (1, 2, 5)]
        assert results[0] == results[1] == results[2], shape


def work(shape, repeats: int, threads: int) -> tuple[int, int]:
    """Returns the time of this thread and of all others for some calls."""
    entries = {"session.intra_op.allow_spinning": "0"}
    session = plugin(MODEL, threads, entries=entries)
    inputs = feed(*shape, seed=1)
    session.run(None, inputs)
    begin, others = thread_time(), time_of_others()
    for _ in range(repeats):
        session.run(None, inputs)
    return thread_time() - begin, time_of_others() - others


def test_a_large_call_is_shared_among_the_sessions_threads():
    mine, others = work((1, 8, 16, 4096, 64), repeats=100, threads=2)
    assert others > mine / 10, (mine, others)


def test_a_small_call_wakes_no_thread():
    mine, others = work((1, 2, 1, 16, 8), repeats=5000, threads=2)
    assert others < mine / 10, (mine, others)


def test_one_thread_suffices():
    _, others = work((1, 8, 16, 4096, 64), repeats=2, threads=1)
    assert others < 1_000_000, others


def program(length: int) -> subprocess.CompletedProcess:
    path = pathlib.Path(__file__).parent / "programs" / "unread_pages.py"
    return subprocess.run([sys.executable, path, str(length)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("length", [3, 8, 21])
def test_only_slots_that_a_query_sees_are_read(length):
    done = program(length)
    assert done.returncode == 0, done.stderr


def test_the_pages_are_protected():
    assert program(22).returncode == -signal.SIGSEGV

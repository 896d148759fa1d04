"""Signal handlers that run during a step of a session, such as that of Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvscatter import KvSession, Sample
from support import TESTDATA, edited, refused

STATIC = TESTDATA / "mobius-llama-static/model.onnx"
GROUP_QUERY = TESTDATA / "genai-llama-gqa/model.onnx"
PROMPT = [5, 9, 200, 17, 33]

# A prefill of so many runs takes longer than the timer of the tests below.
LONG = 4000


@pytest.fixture(scope="module")
def long_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model that takes many tokens. Its angles repeat."""

    def repeat(angles: NDArray[Any]) -> NDArray[Any]:
        return np.resize(angles, (LONG + 128, angles.shape[1]))

    into = tmp_path_factory.mktemp("long") / "model.onnx"
    return edited(GROUP_QUERY, into, {"cos_cache": repeat, "sin_cache": repeat})


def long_prefill(session: KvSession, sample: Sample, on_signal: Callable[[], object]) -> None:
    """Runs a prefill of many runs. A signal handler calls the function meanwhile."""

    def handle(number: int, frame: object) -> None:
        on_signal()

    # A timer sends the signal, because no thread that waits for its turn can delay a timer.
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        session.prefill({sample: [7] * LONG}, chunk=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("of", [KeyboardInterrupt, LookupError])
def test_ctrl_c_interrupts_a_prefill_and_undoes_it(long_model: Path, of: type[BaseException]) -> None:
    raised = of("by the handler")

    def stop() -> None:
        raise raised

    with KvSession(long_model, capacity=LONG + 10, threads=1) as session:
        sample = session.add()
        session.step({sample: PROMPT})
        with pytest.raises(of) as caught:
            long_prefill(session, sample, stop)
        assert caught.value is raised
        assert 0 < session.bytes_written < LONG * session.memory().per_token
        assert (session.tokens(sample), session.begun(sample)) == (PROMPT, None)
        got = session.step({sample: [42]}).last(sample)
    with KvSession(long_model, capacity=LONG + 10, threads=1) as fresh:
        sample = fresh.add()
        fresh.step({sample: PROMPT})
        np.testing.assert_array_equal(got, fresh.step({sample: [42]}).last(sample))


def test_sigint_interrupts_a_prefill(long_model: Path) -> None:
    def send() -> None:
        time.sleep(0.05)
        signal.raise_signal(signal.SIGINT)

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with KvSession(long_model, capacity=LONG, threads=1) as session:
        sample = session.add()
        sender = threading.Thread(target=send)
        with pytest.raises(KeyboardInterrupt):
            sender.start()
            try:
                session.prefill({sample: [7] * LONG}, chunk=1)
            finally:
                sender.join()
        assert 0 < session.bytes_written < LONG * session.memory().per_token
        assert session.cached_tokens(sample) == 0


def test_a_handler_that_calls_its_session_does_not_wait_for_itself(long_model: Path) -> None:
    seen: list[object] = []

    def call() -> None:
        seen.append(session.closed)
        seen.extend(refused("busy", None, each).kind for each in (session.add, session.close))
        with KvSession(STATIC) as other:
            seen.append(other.step({(one := other.add()): [1]}).last(one).shape)

    with KvSession(long_model, capacity=LONG, threads=1) as session:
        sample = session.add()
        long_prefill(session, sample, call)
        assert session.cached_tokens(sample) == LONG
    assert seen == [False, "busy", "busy", (256,)]


def test_a_thread_is_not_interrupted(long_model: Path) -> None:
    """Python runs signal handlers in the main thread only, which waits here."""

    def stop() -> None:
        raise KeyboardInterrupt

    with KvSession(long_model, capacity=LONG, threads=1) as session:
        sample = session.add()
        working = threading.Thread(target=lambda: session.prefill({sample: [7] * LONG}, chunk=1))
        before = signal.signal(signal.SIGALRM, lambda number, frame: stop())
        try:
            working.start()
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                working.join()
        finally:
            signal.signal(signal.SIGALRM, before)
        working.join()
        assert session.cached_tokens(sample) == LONG

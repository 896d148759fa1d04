"""Compares sessions with ONNX Runtime's own Python interface, which runs each sample separately, token by
token."""

from __future__ import annotations

import gc
import importlib.util
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import KvSession, errors
from support import TESTDATA, refused

STATIC = TESTDATA / "mobius-llama-static/model.onnx"
GROWING = TESTDATA / "optimum-llama/model.onnx"
GROUP_QUERY = TESTDATA / "genai-llama-gqa/model.onnx"
CAPACITY = 64
LAYERS = 2

A, B = [5, 9, 200, 17, 33], [101, 7]


class Alone:
    """A single sample with one token per run. Its caches are copied in and out, and NumPy counts its
    positions."""

    def __init__(self) -> None:
        self.runtime = onnxruntime.InferenceSession(STATIC, providers=["CPUExecutionProvider"])
        names = [f"{kind}_cache.{layer}" for layer in range(LAYERS) for kind in ("key", "value")]
        self.caches = {name: np.zeros((1, CAPACITY, 32), np.float32) for name in names}
        self.length = 0

    def feed(self, tokens: list[int]) -> NDArray[np.float32]:
        """Returns the logits after each token."""
        scores = []
        for token in tokens:
            given = {
                "input_ids": np.array([[token]]),
                "position_ids": np.array([[self.length]]),
                "write_indices": np.array([self.length]),
                "nonpad_kv_seqlen": np.array([self.length + 1]),
            }
            outputs = ["logits", *(f"updated_{name}" for name in self.caches)]
            logits, *caches = self.runtime.run(outputs, {**given, **self.caches})
            self.caches = dict(zip(self.caches, caches, strict=True))
            self.length += 1
            scores.append(logits[0, 0])
        return np.array(scores)

    def greedy(self, prompt: list[int], tokens: int) -> list[int]:
        chosen = [int(self.feed(prompt)[-1].argmax())]
        while len(chosen) < tokens:
            chosen.append(int(self.feed(chosen[-1:])[-1].argmax()))
        return chosen


@pytest.fixture
def session() -> Iterator[KvSession]:
    with KvSession(STATIC, batch=3, threads=1) as opened:
        yield opened


def alone(tokens: list[int]) -> NDArray[np.float32]:
    return Alone().feed(tokens)


def close(got: NDArray[np.float32], want: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_ragged_steps_score_as_each_sample_alone(session: KvSession) -> None:
    first, second = session.add(), session.add()
    want_first, want_second = alone([*A, 1, 2, 3]), alone([*B, 9])
    scores = session.step({first: A, second: np.array(B)})
    assert (session.cached_tokens(first), session.cached_tokens(second)) == (len(A), len(B))
    for index in range(len(A)):
        close(scores.after(first, index), want_first[index])
    for index in range(len(B)):
        close(scores.after(second, index), want_second[index])
    scores = session.step({second: [9], first: (1, 2, 3)})
    assert scores.samples == [second, first]
    close(scores.last(second), want_second[-1])
    close(scores.last(first), want_first[-1])


def test_a_sample_that_is_not_named_stays_as_it_is(session: KvSession) -> None:
    first, second = session.add(), session.add()
    session.step({first: A, second: B})
    for token in range(CAPACITY - len(A)):
        session.step({first: [token]})
    assert (session.cached_tokens(first), session.cached_tokens(second)) == (CAPACITY, len(B))
    close(session.step({second: [9]}).last(second), alone([*B, 9])[-1])


def test_an_operator_that_writes_its_caches_scores_as_each_sample_alone() -> None:
    """All exports have the same weights."""
    with KvSession(GROUP_QUERY, batch=3, capacity=CAPACITY, threads=1) as session:
        assert session.group_query_nodes == (2, 2)
        first, second = session.add(), session.add()
        want_first, want_second = alone([*A, 1, 2, 3]), alone([*B, 9, 4])
        scores = session.step({first: A, second: B})
        for index in range(len(B)):
            close(scores.after(second, index), want_second[index])
        scores = session.step({first: [1, 2, 3], second: [9]})
        close(scores.last(first), want_first[-1])
        third = session.add()
        scores = session.step({third: A, second: [4]})
        close(scores.last(third), want_first[len(A) - 1])
        close(scores.last(second), want_second[-1])
        session.truncate(first, len(A))
        close(session.step({first: [1]}).last(first), want_first[len(A)])
        assert session.bytes_copied == 0
    with pytest.raises(errors.OptionError) as no_capacity:
        KvSession(GROUP_QUERY)
    assert no_capacity.value.kind == "capacity_open"


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_a_prompt_in_chunks_scores_its_last_token(session: KvSession, chunk: int) -> None:
    first, second = session.add(), session.add()
    prompt = [(7 * index) % 256 for index in range(20)]
    scores = session.prefill({first: prompt, second: B}, chunk=chunk)
    close(scores.last(first), alone(prompt)[-1])
    close(scores.last(second), alone(B)[-1])
    with pytest.raises(IndexError, match="no logits after token 0"):
        scores.after(first, 0)


def test_a_step_writes_its_rows_and_copies_no_cache(session: KvSession) -> None:
    samples = [session.add() for _ in range(3)]
    session.step({sample: [1] for sample in samples})
    rows = len(samples)
    assert (session.bytes_written, session.bytes_copied) == (rows * session.memory().per_token, 0)


def test_memory_is_told_by_cache_layer_and_token(session: KvSession) -> None:
    report = session.memory()
    each = 3 * CAPACITY * 32 * 4
    assert [(cache.past, cache.layer) for cache in report.caches] == [
        ("key_cache.0", 0),
        ("value_cache.0", 0),
        ("key_cache.1", 1),
        ("value_cache.1", 1),
    ]
    assert {(cache.dtype, cache.shape, cache.bytes) for cache in report.caches} == {
        ("float32", (3, CAPACITY, 32), each)
    }
    assert (report.layers, report.per_token, report.total) == ((2 * each, 2 * each), 4 * 32 * 4, 4 * each)


def test_scores_are_views_that_are_not_written_and_outlive_their_step(session: KvSession) -> None:
    sample = session.add()
    scores = session.step({sample: A})
    last = scores.last(sample)
    assert (last.dtype.name, last.shape, scores.vocabulary) == ("float32", (256,), 256)
    assert np.shares_memory(last, scores.after(sample, len(A) - 1))
    with pytest.raises(ValueError, match="read-only"):
        last[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        last.setflags(write=True)
    want = last.copy()
    del scores
    session.step({sample: B})
    session.close()
    gc.collect()
    np.testing.assert_array_equal(last, want)


def test_a_sample_is_a_key(session: KvSession) -> None:
    first, second = session.add(), session.add()
    assert {first: 1, second: 2}[session.samples[1]] == 2
    assert (first == second, first == 0) == (False, False)
    assert repr(second) == "<kvscatter.Sample: batch index 1>"
    with pytest.raises(KeyError):
        session.step({first: A}).last(second)
    session.remove(first)
    third = session.add()
    assert (third.batch_index, third != first, session.samples) == (0, True, [third, second])


def test_a_new_session_has_sizes_and_no_samples(session: KvSession) -> None:
    assert (session.batch, session.capacity, session.vocabulary) == (3, CAPACITY, 256)
    assert (session.samples, session.closed, session.bytes_written) == ([], False, 0)
    assert repr(session) == "<kvscatter.KvSession: batch 3, capacity 64>"


@pytest.mark.parametrize(
    ("kind", "of", "options", "expected"),
    [
        ("size_fixed", errors.OptionError, {"capacity": 65}, "capacity is fixed to 64, got 65 (capacity=)"),
        ("integer_range", errors.OptionError, {"batch": 0}, "batch = 0: must be at least 1"),
        ("memory_limit", errors.OptionError, {"memory": 1000}, "the limit is 1000 bytes (memory=)"),
        ("runtime_unusable", errors.SessionError, {"onnxruntime": TESTDATA}, "no libonnxruntime in it"),
    ],
)
def test_a_session_that_cannot_be(
    kind: str, of: type[errors.Error], options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(of) as caught:
        KvSession(STATIC, **options)
    assert caught.value.kind == kind
    assert expected in str(caught.value)


def test_the_plugin_is_that_of_the_package() -> None:
    engine = f"ONNX Runtime {onnxruntime.__version__}"
    plugin = f"{engine} with plugin kvscatter {kvscatter.__version__}"
    module = Path(kvscatter.onnxruntime.library())
    scores = []
    for given, expected in [(True, plugin), (module, plugin), (str(module), plugin), (False, engine)]:
        with KvSession(STATIC, threads=1, plugin=given) as session:
            assert session.engine == expected
            sample = session.add()
            scores.append(session.step({sample: [5, 9, 200]}).last(sample))
    for other in scores:
        np.testing.assert_allclose(other, scores[0], rtol=0, atol=1e-4)
    for given, expected in [(True, plugin), (False, engine)]:
        assert kvscatter.generate(STATIC, [[5]], 1, plugin=given).engine == expected


@pytest.mark.parametrize(
    ("plugin", "kind", "expected"),
    [
        (TESTDATA / "absent.so", "plugin_unusable", "absent.so: no such file or directory (plugin=)"),
        (STATIC, "plugin_loaded", "this process already uses the plugin "),
    ],
)
def test_a_plugin_that_cannot_be(plugin: Path, kind: str, expected: str) -> None:
    KvSession(STATIC).close()
    error = refused(kind, "plugin", KvSession, STATIC, plugin=plugin, of=errors.SessionError)
    assert expected in str(error)
    with pytest.raises(TypeError):
        KvSession(STATIC, plugin=None)  # type: ignore[arg-type]


def test_a_runtime_that_is_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for variable in ("KVSCATTER_ORT_LIB", "ORT_DYLIB_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    error = refused("runtime_missing", "onnxruntime", KvSession, STATIC, of=errors.SessionError)
    assert str(error).endswith("can be given (onnxruntime=)")


def test_a_model_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(errors.SessionError) as grows:
        KvSession(GROWING)
    assert grows.value.kind == "not_static"
    with pytest.raises(errors.SessionError) as absent:
        KvSession(tmp_path / "absent.onnx")
    assert "absent.onnx" in str(absent.value)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(errors.SessionError):
        KvSession(broken)
    # The model is copied without its weights, which are looked up before ONNX Runtime reads them.
    shutil.copy(STATIC, tmp_path / "model.onnx")
    with pytest.raises(errors.SessionError) as load:
        KvSession(tmp_path / "model.onnx")
    assert (load.value.kind, "model.onnx.data" in str(load.value)) == ("io", True)


def test_threads_share_a_session() -> None:
    threads = 4
    prompts = [[thread + 1, 2 * thread + 3, 200 - thread] for thread in range(threads)]
    got: list[list[int]] = [[] for _ in prompts]

    def generate(session: KvSession, prompt: list[int], into: list[int]) -> None:
        sample = session.add()
        tokens = prompt
        for _ in range(20):
            # A call that waits for another thread's step must let that thread finish.
            last = session.step({sample: tokens}).last(sample)
            into.append(int(last.argmax()))
            tokens = into[-1:]

    with KvSession(STATIC, batch=threads, threads=1) as session:
        running = [
            threading.Thread(target=generate, args=(session, prompt, into), daemon=True)
            for prompt, into in zip(prompts, got, strict=True)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(timeout=120)
            assert not thread.is_alive()
    assert got == [Alone().greedy(prompt, 20) for prompt in prompts]


def test_generate_continues_ragged_prompts_as_each_alone() -> None:
    generated = kvscatter.generate(STATIC, [A, np.array(B)], 12)
    want = [Alone().greedy(prompt, 12) for prompt in (A, B)]
    assert generated.samples == want
    assert (generated.prompt_tokens, generated.steps, generated.decoded) == (len(A) + len(B), 11, 22)
    assert (generated.written_per_step, generated.copied) == (2 * 4 * 32 * 4, 0)
    assert min(generated.prefill_seconds, generated.decode_seconds) > 0
    end = want[0][3]
    ended = kvscatter.generate(STATIC, [A], 12, eos=[end]).samples[0]
    assert ended == want[0][: want[0].index(end) + 1]


def test_generate_without_a_limit_ends_with_a_token_or_the_cache() -> None:
    full = kvscatter.generate(STATIC, [A])
    assert (len(full.samples[0]), full.ends) == (65 - len(A), ["full"])
    ended = kvscatter.generate(STATIC, [A], eos=full.samples[0][:1])
    assert (ended.samples, ended.ends) == ([full.samples[0][:1]], ["eos"])
    assert kvscatter.generate(STATIC, [A], 3).ends == ["length"]


def test_generate_draws_tokens() -> None:
    def draw(prompts: list[list[int]], **options: Any) -> list[list[int]]:
        return kvscatter.generate(STATIC, prompts, 12, do_sample=True, temperature=3.0, **options).samples

    [first, second] = draw([A, A], seed=5)
    assert draw([A], seed=5) == [first]
    assert second != first and draw([A], seed=6) != [first]
    [greedy] = kvscatter.generate(STATIC, [A], 12).samples
    assert draw([A], top_k=1) == draw([A], top_p=1e-6) == draw([A], min_p=1.0) == [greedy] != [first]
    [penalised] = kvscatter.generate(STATIC, [A], 12, repetition_penalty=1e9).samples
    assert len({*penalised, *A}) == 12 + len({*A})


def test_generate_runs_what_a_static_cache_is_compared_with() -> None:
    ragged = kvscatter.generate(GROUP_QUERY, [A, B], 8, convert=False)
    assert (ragged.samples, ragged.copied) == (kvscatter.generate(STATIC, [A, B], 8).samples, 0)
    without = kvscatter.generate(GROUP_QUERY, [A, B], 8, convert=False, plugin=False)
    converted = kvscatter.generate(GROUP_QUERY, [A, B], 8)
    assert without.samples == converted.samples == ragged.samples
    nodes = [generated.group_query_nodes for generated in (ragged, without, converted)]
    assert nodes == [(2, 2), (0, 2), (0, 0)]
    one, again = (
        kvscatter.generate(GROWING, [A], 8, convert=False).samples[0],
        kvscatter.generate(GROWING, [A], 4, convert=False).samples[0],
    )
    assert (len(one), one[:4]) == (8, again)


@pytest.mark.parametrize(("model", "prompts"), [(STATIC, [[9], A]), (GROUP_QUERY, [[9]]), (GROWING, [[9]])])
def test_drafts_take_fewer_steps_to_the_same_tokens(model: Path, prompts: list[list[int]]) -> None:
    plain = kvscatter.generate(model, prompts, 30, convert=False)
    drafted = kvscatter.generate(model, prompts, 30, draft=6, convert=False)
    assert (drafted.samples, drafted.decoded) == (plain.samples, plain.decoded)
    assert (plain.steps, plain.drafted, plain.accepted) == (29, 0, 0)
    if model == GROWING:
        assert (drafted.steps, drafted.drafted) == (29, 0)
    else:
        assert drafted.accepted <= drafted.drafted
        assert drafted.drafted > 0
    if prompts == [[9]]:
        assert drafted.steps == plain.steps - drafted.accepted
    again = kvscatter.generate(model, prompts, 30, draft=6, convert=False)
    assert (again.steps, again.drafted) == (drafted.steps, drafted.drafted)


def test_generate_tells_its_progress() -> None:
    reported: list[tuple[int, int]] = []
    whole = kvscatter.generate(STATIC, [A, B], 5, progress=lambda *at: reported.append(at)).samples
    assert reported == [(1, 2), (2, 2), (3, 2), (4, 2), (5, 0)]
    reported.clear()
    assert whole[0][0] not in whole[1]
    kvscatter.generate(STATIC, [A, B], 3, eos=whole[0][:1], progress=lambda *at: reported.append(at))
    assert reported == [(1, 1), (2, 1), (3, 0)]


def test_an_exception_of_progress_ends_the_generation() -> None:
    calls: list[int] = []

    def stop(tokens: int, samples: int) -> None:
        calls.append(tokens)
        if tokens == 2:
            raise LookupError(samples)

    with pytest.raises(LookupError, match="1"):
        kvscatter.generate(STATIC, [A], 9, progress=stop)
    assert calls == [1, 2]
    with pytest.raises(TypeError, match="progress must be callable"):
        kvscatter.generate(STATIC, [A], 9, progress=3)  # type: ignore[call-overload]


def test_ctrl_c_interrupts_a_generation() -> None:
    # The list is filled without running Python code, which would itself check for signals.
    seen: list[int] = []
    interrupted: list[int] = []

    # A timer sends the signal, because no thread that waits for its turn can delay a timer.
    def interrupt(number: int, _frame: object) -> None:
        if seen and not interrupted:
            interrupted.append(number)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    prompts = [[prompt % 256] for prompt in range(300)]
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            kvscatter.generate(STATIC, prompts, 60, progress=seen.insert)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 0 < len(seen) < 60


@pytest.mark.parametrize(
    ("kind", "of", "prompts", "options"),
    [
        ("no_prompts", errors.OptionError, [], {}),
        ("prompt_empty", errors.OptionError, [A, []], {}),
        ("integer_range", errors.OptionError, [A], {"chunk": 0}),
        ("integer_range", errors.OptionError, [A], {"draft": -1}),
        ("prompt_token_unknown", errors.PositionError, [[1, 999]], {}),
        ("eos_unknown", errors.PositionError, [A], {"eos": [1, 256]}),
        ("eos_unknown", errors.PositionError, [A], {"eos": [-5]}),
        ("prompt_too_long", errors.PositionError, [[1] * 60], {}),
        *(
            ("option_range", errors.OptionError, [A], {name: value})
            for name in ("temperature", "top_p", "repetition_penalty")
            for value in (0.0, -1, float("nan"), float("inf"))
        ),
        ("option_range", errors.OptionError, [A], {"min_p": 1.5}),
        ("keyword_type", errors.ElementTypeError, [A], {"temperature": "hot"}),
        ("not_integers", errors.ElementTypeError, [A], {"eos": 1}),
    ],
)
def test_generation_that_cannot_be(
    kind: str, of: type[errors.Error], prompts: list[list[int]], options: dict[str, Any]
) -> None:
    with pytest.raises(of) as caught:
        kvscatter.generate(STATIC, prompts, 8, **options)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        *(
            (
                wrong,
                f"prompts is of type {type(wrong).__name__}: must be a text, or a sequence of texts or of sequences "
                "of token ids",
            )
            for wrong in (5, b"bytes")
        ),
        (["text", A], "prompts[1] is of type list: must be a text"),
        ([A, "text"], "prompts[1] is of type str: must be an array or a sequence of integers"),
        ([1, 2], "prompts[0] is of type int: must be an array or a sequence of integers"),
        ([A, [1, "text"]], "prompts[1] holds str: must hold integers"),
        ([A, [1, 2**63]], "prompts[1][1] = 9223372036854775808: must fit 64 bits"),
        ([np.ones((1, 2), int)], "prompts[0] has 2 dimensions, must have 1"),
    ],
)
def test_an_error_names_the_prompt(prompts: Any, message: str) -> None:
    with pytest.raises(errors.Error) as caught:
        kvscatter.generate(STATIC, prompts, 8)
    assert (str(caught.value), caught.value.argument) == (message, "prompts")


def test_caches_that_grow_take_one_length_and_no_capacity() -> None:
    with pytest.raises(errors.OptionError) as ragged:
        kvscatter.generate(GROWING, [A, B], 8, convert=False)
    assert (ragged.value.kind, ragged.value.fields) == ("ragged", {"got": len(B), "expected": len(A)})
    with pytest.raises(errors.OptionError) as useless:
        kvscatter.generate(GROWING, [A], 8, capacity=64, convert=False)
    assert useless.value.kind == "capacity_useless"

"""Undoes steps and copies samples, and compares every logit with a session in which only the remaining steps have
happened: bit for bit, but for `GroupQueryAttention` up to the order of a sum."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import KvSession, Sample, errors
from support import TESTDATA, edited, refused

STATIC = TESTDATA / "mobius-llama-static/model.onnx"
GROUP_QUERY = TESTDATA / "genai-llama-gqa/model.onnx"
MODELS = [STATIC, GROUP_QUERY]
BATCH, CAPACITY = 4, 64
# ONNX Runtime sums the products of a single row in another order than those of several rows. In the decoder with
# `GroupQueryAttention`, a step of one sample has one row. Its logits are below 1.
ORDER_OF_SUMS = 2e-7

A, B = [5, 9, 200, 17, 33], [101, 7]
DRAFT = [1, 2, 3, 250]
# The token whose embedding is NaN in the model of `nan_model`.
POISON = 77

Logits = NDArray[np.float32]
Steps = list[list[int]]


@pytest.fixture(params=MODELS, ids=["static", "group_query"])
def session(request: pytest.FixtureRequest) -> Iterator[KvSession]:
    with KvSession(request.param, batch=BATCH, capacity=CAPACITY, threads=1) as opened:
        yield opened


def replayed(model: Path, steps: Steps, index: int = 0, plugin: bool = True) -> Logits:
    """Returns the logits after the last of these steps of a sample with this batch index, alone in a new session."""
    with KvSession(model, batch=BATCH, capacity=CAPACITY, threads=1, plugin=plugin) as fresh:
        sample = [fresh.add() for _ in range(index + 1)][-1]
        return [fresh.step({sample: tokens}).last(sample).copy() for tokens in steps][-1]


def model_of(session: KvSession) -> Path:
    return STATIC if "_cache" in session.memory().caches[0].past else GROUP_QUERY


def check(session: KvSession, sample: Sample, steps: Steps, plugin: bool = True) -> None:
    """Feeds one more token, and checks that the logits are those of a sample with these steps only."""
    assert session.tokens(sample) == [token for tokens in steps for token in tokens]
    got = session.step({sample: [42]}).last(sample)
    model = model_of(session)
    want = replayed(model, [*steps, [42]], sample.batch_index, plugin)
    np.testing.assert_allclose(got, want, rtol=0, atol=ORDER_OF_SUMS if model == GROUP_QUERY else 0)


def test_a_path_is_kept_as_if_only_its_tokens_were_fed(session: KvSession) -> None:
    samples = [session.add(), session.add()]
    session.step(dict.fromkeys(samples, A))
    with session.transaction(*samples):
        session.step(dict.fromkeys(samples, DRAFT))
        session.accept_rows(samples[0], [0, 1, 3])
        session.accept_rows(samples[1], np.array([1, 2], np.int32))
    check(session, samples[0], [A, DRAFT[:2], DRAFT[3:]])
    check(session, samples[1], [A, DRAFT[1:3]])


def first_tokens(steps: Steps, count: int) -> Steps:
    """Returns the steps up to this number of tokens."""
    kept: Steps = []
    for tokens in steps:
        kept.append(tokens[:count])
        count -= len(kept[-1])
    return [tokens for tokens in kept if tokens]


def count(steps: Steps) -> int:
    return sum(map(len, steps))


def test_random_histories(session: KvSession) -> None:
    """Each sample has the logits of a sample that was only fed the tokens that it still has."""
    choose = random.Random(23)
    steps: dict[Sample, Steps] = {}
    begun: dict[Sample, Steps] = {}
    ends = ["commit", "rollback", "accept"]
    actions = ["add", "begin", *ends, "truncate", "fork", "reorder", "remove", "check"]
    done = dict.fromkeys([*actions, "step"], 0)
    for _ in range(600):
        samples = session.samples
        action = choose.choice([*actions, *["step"] * 8]) if samples else "add"
        sample = choose.choice(samples) if samples else None
        free = BATCH - len(samples)
        if action in ends and begun:
            sample = choose.choice(list(begun))
        if action == "add" and free > 0:
            steps[session.add()] = []
        elif sample is None or (action in ends and not begun):
            continue
        elif action == "begin" and sample not in begun:
            session.begin(sample)
            begun[sample] = list(steps[sample])
        elif action == "commit":
            session.commit(sample)
            del begun[sample]
        elif action == "rollback":
            session.rollback(sample)
            steps[sample] = begun.pop(sample)
        elif action == "accept":
            before = count(begun.pop(sample))
            accepted = choose.randint(0, count(steps[sample]) - before)
            accept = choose.choice(
                [
                    lambda sample, tokens: session.accept(sample, np.int64(tokens)),  # type: ignore[arg-type]
                    lambda sample, tokens: session.accept_all({sample: tokens}),
                    lambda sample, tokens: session.accept_rows(sample, np.arange(tokens)),
                ]
            )
            accept(sample, accepted)
            steps[sample] = first_tokens(steps[sample], before + accepted)
        elif action == "truncate":
            length = choose.randint(count(begun.get(sample, [])), count(steps[sample]))
            session.truncate(sample, length)
            steps[sample] = first_tokens(steps[sample], length)
        elif action == "fork":
            copies = session.fork(sample, choose.randint(0, free))
            steps.update((copy, list(steps[sample])) for copy in copies)
        elif action == "reorder":
            beams = choose.sample(samples, choose.randint(1, len(samples)))
            parents = [choose.randrange(len(beams)) for _ in range(choose.randint(0, len(beams) + free))]
            children = session.reorder(beams, np.array(parents, np.int32))
            firsts = [index for index, parent in enumerate(parents) if parent not in parents[:index]]
            assert [children[index] for index in firsts] == [beams[parents[index]] for index in firsts]
            old = {beam: steps.pop(beam) for beam in beams}
            steps.update((child, list(old[beams[of]])) for child, of in zip(children, parents, strict=True))
            begun = {child: own for child, own in begun.items() if child in steps}
        elif action == "remove":
            session.remove(sample)
            del steps[sample]
            begun.pop(sample, None)
        # Below this limit, no step needs several runs, in which the order of sums could differ.
        elif action == "check" and session.cached_tokens(sample) < CAPACITY - 8:
            check(session, sample, steps[sample])
            steps[sample].append([42])
        elif action == "step":
            fed = {
                each: [choose.randrange(256) for _ in range(choose.randint(1, 4))]
                for each in choose.sample(samples, choose.randint(1, len(samples)))
                if session.cached_tokens(each) < CAPACITY - 8
            }
            if fed:
                session.step(fed)
            for each, tokens in fed.items():
                steps[each].append(tokens)
        else:
            continue
        done[action] += 1
        assert session.samples == sorted(steps, key=lambda each: each.batch_index)
        for each, own in steps.items():
            assert session.tokens(each) == [token for tokens in own for token in tokens]
            marked = begun.get(each)
            assert session.begun(each) == (None if marked is None else count(marked))
    assert min(done.values()) > 3, done
    for each, own in steps.items():
        check(session, each, own)


# The kind, the class, the argument, the fields, and a call that causes the error. The first sample has five tokens and
# a point after two of them. The second is empty.
Call = Callable[[KvSession, Sample, Sample], object]
REFUSED: list[tuple[str, type[errors.Error], str, dict[str, Any], Call]] = [
    (
        "batch_full",
        errors.OptionError,
        "batch",
        {"expected": 4},
        lambda it, a, b: [it.add() for _ in range(3)],
    ),
    ("no_tokens", errors.OptionError, "tokens", {"index": 0}, lambda it, a, b: it.step({a: []})),
    ("no_samples", errors.OptionError, "tokens", {}, lambda it, a, b: it.step({})),
    (
        "no_block_ids",
        errors.OptionError,
        "block_ids",
        {},
        lambda it, a, b: it.step({a: [1]}, block_ids={a: [-1]}),
    ),
    (
        "integer_range",
        errors.OptionError,
        "chunk",
        {"value": 0, "min": 1, "max": 2**63 - 1},
        lambda it, a, b: it.prefill({a: [1]}, chunk=0),
    ),
    (
        "capacity_exceeded",
        errors.PositionError,
        "tokens",
        {"index": 0, "value": 5, "rows": 60, "capacity": 64},
        lambda it, a, b: it.step({a: [1] * 60}),
    ),
    (
        "truncate_beyond",
        errors.PositionError,
        "length",
        {"index": 0, "value": 6, "max": 5},
        lambda it, a, b: it.truncate(a, 6),
    ),
    (
        "token_unknown",
        errors.PositionError,
        "tokens",
        {"index": 1, "value": 256},
        lambda it, a, b: it.step({a: [1, 256]}),
    ),
    (
        "token_unknown",
        errors.PositionError,
        "tokens",
        {"index": 0, "value": -1},
        lambda it, a, b: it.prefill({a: [-1]}),
    ),
    ("not_integers", errors.ElementTypeError, "tokens", {}, lambda it, a, b: it.step({a: np.array([1.5])})),
    ("not_integers", errors.ElementTypeError, "tokens", {}, lambda it, a, b: it.step({a: "12"})),  # type: ignore[dict-item]
    ("rank", errors.ShapeError, "tokens", {"rank": 2}, lambda it, a, b: it.step({a: np.array([[1]])})),
    ("begun", errors.OptionError, "sample", {"index": 0}, lambda it, a, b: it.begin(a)),
    ("not_begun", errors.OptionError, "sample", {"index": 1}, lambda it, a, b: it.commit(b)),
    ("not_begun", errors.OptionError, "sample", {"index": 1}, lambda it, a, b: it.rollback(b)),
    ("not_begun", errors.OptionError, "sample", {"index": 1}, lambda it, a, b: it.accept(b, 0)),
    (
        "accept_beyond",
        errors.PositionError,
        "tokens",
        {"index": 0, "value": 4, "max": 3},
        lambda it, a, b: it.accept(a, 4),
    ),
    (
        "accept_beyond",
        errors.PositionError,
        "tokens",
        {"index": 0, "value": 4, "max": 3},
        lambda it, a, b: it.accept_all({a: 4}),
    ),
    ("not_begun", errors.OptionError, "sample", {"index": 1}, lambda it, a, b: it.accept_all({a: 1, b: 0})),
    (
        "path_order",
        errors.PositionError,
        "rows",
        {"index": 1, "value": 1, "min": 3},
        lambda it, a, b: it.accept_rows(a, [2, 1]),
    ),
    (
        "path_beyond",
        errors.PositionError,
        "rows",
        {"index": 1, "value": 3, "max": 2},
        lambda it, a, b: it.accept_rows(a, [0, 3]),
    ),
    (
        "negative_size",
        errors.PositionError,
        "rows",
        {"index": 0, "value": -1},
        lambda it, a, b: it.accept_rows(a, [-1]),
    ),
    (
        "truncate_begun",
        errors.PositionError,
        "length",
        {"index": 0, "value": 1, "min": 2},
        lambda it, a, b: it.truncate(a, 1),
    ),
    (
        "integer_range",
        errors.PositionError,
        "tokens",
        {"value": -1, "min": 0, "max": 2**63 - 1},
        lambda it, a, b: it.accept(a, -1),
    ),
    (
        "integer_range",
        errors.PositionError,
        "tokens",
        {"value": 2**70, "min": 0, "max": 2**63 - 1},
        lambda it, a, b: it.accept(a, 2**70),
    ),
    (
        "no_room",
        errors.OptionError,
        "batch",
        {"value": 3, "max": 2},
        lambda it, a, b: it.fork(a, 3),
    ),
    (
        "no_room",
        errors.OptionError,
        "batch",
        {"value": 2**63 - 1, "max": 2},
        lambda it, a, b: it.fork(a, 2**63 - 1),
    ),
    (
        "integer_range",
        errors.OptionError,
        "copies",
        {"value": -1, "min": 0, "max": 2**63 - 1},
        lambda it, a, b: it.fork(a, -1),
    ),
    (
        "no_room",
        errors.OptionError,
        "batch",
        {"value": 4, "max": 3},
        lambda it, a, b: it.reorder([b, a], [1, 1, 1, 1, 1]),
    ),
    (
        "no_such_parent",
        errors.PositionError,
        "parents",
        {"index": 1, "value": 2, "max": 1},
        lambda it, a, b: it.reorder([a, b], [0, 2]),
    ),
    (
        "no_such_parent",
        errors.PositionError,
        "parents",
        {"index": 0, "value": 0},
        lambda it, a, b: it.reorder([], [0]),
    ),
    (
        "negative_size",
        errors.PositionError,
        "parents",
        {"index": 1, "value": -1},
        lambda it, a, b: it.reorder([a, b], [0, -1]),
    ),
    (
        "integer_range",
        errors.PositionError,
        "parents",
        {"index": 0, "value": 2**64},
        lambda it, a, b: it.reorder([a], [2**64]),
    ),
    ("sample_twice", errors.OptionError, "sample", {"index": 0}, lambda it, a, b: it.reorder([a, a], [0])),
    ("not_integers", errors.ElementTypeError, "parents", {}, lambda it, a, b: it.reorder([a], [0.5])),  # type: ignore[list-item]
    ("not_integers", errors.ElementTypeError, "parents", {}, lambda it, a, b: it.reorder([a], 0)),  # type: ignore[arg-type]
    ("keyword_type", errors.ElementTypeError, "copies", {}, lambda it, a, b: it.fork(a, 1.0)),  # type: ignore[arg-type]
    ("keyword_type", errors.ElementTypeError, "tokens", {}, lambda it, a, b: it.accept(a, None)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("kind", "of", "argument", "fields", "call"), REFUSED)
def test_a_refused_call_changes_nothing(
    kind: str, of: type[errors.Error], argument: str, fields: dict[str, Any], call: Call
) -> None:
    with KvSession(STATIC, batch=BATCH, threads=1) as session:
        sample, empty = session.add(), session.add()
        session.step({sample: A[:2]})
        session.begin(sample)
        session.step({sample: A[2:]})
        assert refused(kind, argument, call, session, sample, empty, of=of).fields == fields
        for added in session.samples[2:]:  # before the error
            session.remove(added)
        assert (session.samples, session.begun(sample), session.begun(empty)) == ([sample, empty], 2, None)
        check(session, sample, [A[:2], A[2:]])
        session.rollback(sample)
        check(session, sample, [A[:2]])


def test_a_removed_sample_and_a_wrong_type() -> None:
    with KvSession(STATIC, batch=BATCH, threads=1) as session, KvSession(STATIC, batch=BATCH) as other:
        foreign = [other.add() for _ in range(2)][-1]
        kept, removed = session.add(), session.add()
        session.begin(removed)
        session.remove(removed)
        calls: list[Callable[[Any], object]] = [
            session.remove,
            session.cached_tokens,
            lambda sample: session.step({sample: [1]}),
            lambda sample: session.prefill({sample: [1]}),
            session.begin,
            session.begun,
            session.commit,
            session.rollback,
            session.tokens,
            lambda sample: session.accept(sample, 0),
            lambda sample: session.fork(sample, 0),
            lambda sample: session.reorder([kept, sample], [0]),
            lambda sample: session.transaction(kept, sample).__enter__(),
        ]
        for call in calls:
            for sample in (removed, foreign):
                assert refused("no_such_sample", "sample", call, sample).fields == {"index": 1}
            for wrong in (0, None, "sample", [kept]):
                with pytest.raises(TypeError):
                    call(wrong)
        with pytest.raises(TypeError):
            session.reorder(kept, [0])  # type: ignore[arg-type]
        # The new sample has no point, although an earlier one at its index had one.
        assert session.begun(session.add()) is None
        assert (session.samples[0], session.begun(kept)) == (kept, None)


def test_a_closed_session_does_nothing() -> None:
    with KvSession(STATIC) as session:
        sample = session.add()
        transaction = session.transaction(sample)
    assert session.closed
    session.close()
    calls: list[tuple[Any, ...]] = [
        (session.add,),
        (session.memory,),
        (getattr, session, "samples"),
        (getattr, session, "vocabulary"),
        (session.step, {sample: [1]}),
        (session.accept, sample, 0),
        (session.fork, sample, 1),
        (session.reorder, [sample], [0]),
        (transaction.__enter__,),
    ]
    calls += [
        (call, sample)
        for call in (
            session.remove,
            session.begin,
            session.begun,
            session.commit,
            session.rollback,
            session.tokens,
        )
    ]
    for call in calls:
        refused("closed", None, *call, of=errors.SessionError)


class Stop(BaseException):
    """Not an `Exception`, as `KeyboardInterrupt`."""


def test_a_block_that_ends_keeps_its_steps(session: KvSession) -> None:
    first, second = session.add(), session.add()
    with session.transaction(first, second) as nothing:
        assert nothing is None
        assert (session.begun(first), session.begun(second)) == (0, 0)
        session.step({first: A, second: B})
    assert (session.begun(first), session.begun(second)) == (None, None)
    check(session, first, [A])
    check(session, second, [B])
    with session.transaction():
        pass


@pytest.mark.parametrize("of", [ValueError, Stop])
def test_a_block_that_raises_undoes_its_steps(session: KvSession, of: type[BaseException]) -> None:
    first, second, other = (session.add() for _ in range(3))
    session.step({first: A, second: B, other: [8]})
    raised = of("why")
    with pytest.raises(of) as caught, session.transaction(first, second):
        session.step({first: DRAFT, other: [9]})
        raise raised
    assert caught.value is raised
    for sample, steps in ((first, [A]), (second, [B]), (other, [[8], [9]])):
        assert session.begun(sample) is None
        check(session, sample, steps)


def test_a_block_that_asks_for_too_much_is_undone(session: KvSession) -> None:
    sample = session.add()
    with pytest.raises(errors.PositionError, match="exceed the capacity"), session.transaction(sample):
        while True:
            session.step({sample: A})
    check(session, sample, [])


def test_a_block_undoes_only_samples_that_it_has_not_ended(session: KvSession) -> None:
    committed, undone, accepted, removed = (session.add() for _ in range(4))
    session.step(dict.fromkeys(session.samples, A))
    with pytest.raises(LookupError), session.transaction(*session.samples):
        session.step(dict.fromkeys(session.samples, DRAFT))
        session.commit(committed)
        session.rollback(undone)
        session.accept(accepted, 1)
        session.remove(removed)
        raise LookupError
    assert session.samples == [committed, undone, accepted]
    check(session, committed, [A, DRAFT])
    check(session, undone, [A])
    check(session, accepted, [A, DRAFT[:1]])
    with session.transaction(committed):
        session.rollback(committed)


def test_a_block_may_close_its_session() -> None:
    for raised in (None, LookupError()):
        session = KvSession(STATIC)
        try:
            with session.transaction(session.add()):
                session.close()
                if raised:
                    raise raised
        except LookupError as error:
            assert error is raised
        assert session.closed


def test_a_block_inside_a_block_is_for_other_samples(session: KvSession) -> None:
    first, second = session.add(), session.add()
    session.step({first: A, second: B})
    outer = session.transaction(first)
    assert repr(outer) == "<kvscatter.Transaction: 1 samples>"
    with outer:
        with pytest.raises(LookupError), session.transaction(second):
            session.step({first: [1], second: [1]})
            raise LookupError
        for again in (session.transaction(second, first), session.transaction(second, second), outer):
            refused("begun", "sample", again.__enter__)
            # The block of the second sample did not begin.
            assert (session.begun(first), session.begun(second)) == (len(A), None)
    check(session, first, [A, [1]])
    check(session, second, [B])
    # A manager can be used again.
    with pytest.raises(LookupError), outer:
        session.step({first: DRAFT})
        raise LookupError
    assert session.tokens(first) == [*A, 1, 42]


def test_memory_counts_rings_states_and_copied_rows(session: KvSession) -> None:
    sample = session.add()
    session.begin(sample)
    session.step({sample: A})
    report = session.memory()
    # The caches of these models are linear, so a sample goes back without copied rows.
    assert (report.rings, report.states, report.undo) == (0, 0, 0)


def test_threads_undo_their_own_samples() -> None:
    prompts: list[list[int]] = [[thread + 1, 3, 200 - thread] for thread in range(BATCH)]
    got: dict[int, Logits] = {}

    def decode(session: KvSession, sample: Sample, prompt: list[int], into: int) -> None:
        session.step({sample: prompt})
        for turn in range(20):
            with session.transaction(sample):
                session.step({sample: DRAFT})
                if turn % 2:
                    session.rollback(sample)
                else:
                    session.accept(sample, 1)
        got[into] = session.step({sample: [42]}).last(sample)

    with KvSession(STATIC, batch=BATCH, threads=1) as session:
        samples = [session.add() for _ in prompts]
        running = [
            threading.Thread(target=decode, args=(session, sample, prompt, thread), daemon=True)
            for thread, (sample, prompt) in enumerate(zip(samples, prompts, strict=True))
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(timeout=120)
            assert not thread.is_alive()
    for thread, prompt in enumerate(prompts):
        want = replayed(STATIC, [prompt, *[DRAFT[:1]] * 10, [42]], thread)
        np.testing.assert_allclose(got[thread], want, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def nan_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model in which the embedding of one token is NaN."""

    def poison(embeddings: NDArray[Any]) -> NDArray[Any]:
        rows = np.arange(len(embeddings))[:, None]
        return np.where(rows == POISON, np.float32(np.nan), embeddings)

    into = tmp_path_factory.mktemp("nan") / "model.onnx"
    return edited(STATIC, into, {"model.embed_tokens.weight": poison})


# ONNX Runtime's attention multiplies the NaN of a later token of a run by zero, so earlier tokens of the run are NaN.
@pytest.mark.parametrize(("plugin", "indices"), [(True, (1, 1)), (False, (0, 1))])
def test_logits_that_are_nan_are_refused_and_undone(
    nan_model: Path, plugin: bool, indices: tuple[int, int]
) -> None:
    with KvSession(nan_model, batch=BATCH, threads=1, refuse_nan=True, plugin=plugin) as session:
        sample, other = session.add(), session.add()
        session.step({sample: A, other: B})
        for chunk, index in zip((3, 1), indices, strict=True):
            tokens = {other: [8, 9], sample: [1, POISON, 2]}
            error = refused(
                "nan_logits", "tokens", session.prefill, tokens, chunk=chunk, of=errors.SessionError
            )
            assert error.fields == {"index": index}
            assert (session.tokens(sample), session.tokens(other)) == (A, B)
        refused("nan_logits", "tokens", session.step, {sample: [POISON]})
        check(session, sample, [A], plugin)
        check(session, other, [B], plugin)


def test_logits_that_are_nan_are_returned_by_default(nan_model: Path) -> None:
    with KvSession(nan_model, batch=BATCH, threads=1) as session:
        sample = session.add()
        session.step({sample: A})
        with pytest.raises(ValueError, match="NaN"), session.transaction(sample):
            if np.isnan(session.step({sample: [POISON]}).last(sample)).all():
                raise ValueError("NaN")
        check(session, sample, [A])
    with pytest.raises(TypeError):
        KvSession(nan_model, refuse_nan=1)  # type: ignore[arg-type]


def test_the_class_of_transactions_is_public() -> None:
    with KvSession(STATIC) as session:
        assert isinstance(session.transaction(), kvscatter.Transaction)

"""Every integer argument raises an error of this package for negative, huge and other bad values, and the
error names them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import kvscatter
from integers import check, declared
from kvscatter import KvSession, cuda, errors, paged, positions, reference, ring, testing
from kvscatter._native import write_rows
from support import TESTDATA, refused

MODEL = TESTDATA / "mobius-llama-static/model.onnx"

CACHE, UPDATE = np.zeros((1, 4, 2), np.float32), np.ones((1, 1, 2), np.float32)
PAST, NEW = np.zeros((2, 1, 4, 2), np.float16), np.zeros((1, 2), np.float16)
PLAN = kvscatter.plan(CACHE, UPDATE)

TABLES = np.zeros((1, 1), np.int32)
QUERY = np.ones((1, 1, 1, 2), np.float32)

OPTIONAL = {"batch", "capacity", "threads", "max_new_tokens", "max_seq"}
"""The arguments that may be None in functions of sessions."""

CHAT = [{"role": "user", "content": "a"}]


NUMBERS = {"capacity": 11, "window": 8, "high": 0, "rewind": 0}
NUMBERS |= dict.fromkeys(["start", "length", "token_offset", "last", "rows"], 1)
"""Good values of the arguments of `positions` and `ring`."""


def numbers(function: Callable[..., object]) -> dict[str, int]:
    """Returns good values of a function's integer arguments."""
    return {name: NUMBERS[name] for name in inspect.signature(function).parameters if name in NUMBERS}


def call_with(function: Callable[..., object], argument: str, value: Any) -> object:
    return function(**numbers(function) | {argument: value})


def in_generator(call: Callable[[kvscatter.Generator], object]) -> object:
    with kvscatter.Generator(MODEL, threads=1) as generator:
        return call(generator)


WITHOUT_A_SESSION: dict[str, Callable[[Any], object]] = {
    **{
        f"_native.{function.__name__}.axis": lambda value, call=partial(function, CACHE, UPDATE): call(
            axis=value
        )
        for function in (
            kvscatter.tensor_scatter,
            kvscatter.tensor_scatter_,
            kvscatter.prepare,
            kvscatter.plan,
        )
    },
    "_native.write_rows.slot": lambda value: write_rows([], value),
    "reference.tensor_scatter.axis": lambda value: reference.tensor_scatter(CACHE, UPDATE, axis=value),
    "_native.write_many.axis": lambda value: kvscatter.write_many([(CACHE, UPDATE)], axis=value),
    "_native.kv_cache_operation_.layerId": lambda value: kvscatter.kv_cache_operation_(
        PAST, NEW, value, [1], [1]
    ),
    "reference.kv_cache_operation.layerId": lambda value: reference.kv_cache_operation(
        PAST, NEW, value, [1], [1]
    ),
    "_native.Plan.text.width": lambda value: PLAN.text(width=value),
    "_native.Plan.text.samples": lambda value: PLAN.text(samples=value),
    "_native.Plan.svg.samples": lambda value: PLAN.svg(samples=value),
    "_native.cuda_prepare.axis": lambda value: cuda.prepare([], axis=value),
    "_native.cuda_prepare_present.axis": lambda value: cuda.prepare_present([], axis=value),
    "_native.cuda_prepare_slots.axis": lambda value: cuda.prepare_slots([], CACHE, axis=value),
    **{
        f"{module.__name__.rpartition('.')[2]}.{name}.{argument}": partial(
            call_with, getattr(module, name), argument
        )
        for module in (positions, ring)
        for name in module.__all__
        for argument in numbers(getattr(module, name))
    },
    **{
        f"_native.{function.__name__}.{argument}": lambda value, call=function, argument=argument: call(
            QUERY, QUERY, QUERY, **{argument: value}
        )
        for function in (kvscatter.attention, kvscatter.prepare_attention)
        for argument in ("threads", "window")
    },
    **{
        f"paged.slot_mapping.{argument}": lambda value, argument=argument: paged.slot_mapping(
            TABLES, [1], **{"new_tokens": 1, "block_size": 2, "num_blocks": 2} | {argument: value}
        )
        for argument in ("new_tokens", "block_size", "num_blocks")
    },
    "_case.cases.seed": lambda value: next(testing.cases(value, 1)),
    "_case.cases.n": lambda value: next(testing.cases(1, value)),
    "_check.check.seed": lambda value: testing.check(lambda *_: None, seed=value, n=1),
    "_check.check.n": lambda value: testing.check(lambda *_: None, n=value),
}

SESSION: dict[str, Callable[[Any], object]] = {
    **{
        f"_native.KvSession.{name}": lambda value, name=name: KvSession(MODEL, **{name: value})
        for name in ("batch", "capacity", "threads", "memory")
    },
    **{
        f"_native.{of}.{name}": lambda value, name=name: kvscatter.generate(MODEL, [[1]], **{name: value})
        for of, names in (
            ("Generation", ("max_new_tokens", "top_k", "seed", "chunk", "draft")),
            ("Model", ("max_seq", "capacity", "threads", "memory")),
        )
        for name in names
    },
    "_native.Model.open.batch": lambda value: kvscatter.Generator(MODEL, batch=value),
    "_generate.generate.max_new_tokens": lambda value: kvscatter.generate(MODEL, "a", value),
    "_generate.chat.max_new_tokens": lambda value: kvscatter.chat(MODEL, CHAT, value),
    "_generate.Generator.batch": lambda value: kvscatter.Generator(MODEL, batch=value),
    "_generate.Generator.generate.max_new_tokens": lambda value: in_generator(
        lambda generator: generator.generate([[1]], value)
    ),
    "_generate.Generator.chat.max_new_tokens": lambda value: in_generator(
        lambda generator: generator.chat(CHAT, value)
    ),
}

ELSEWHERE = {
    "_native.CudaStatus.check.words": "needs a write on a device: tests/cuda/test_refused.py",
    "_native.KvSession.truncate.length": "needs a sample: below",
    "_native.KvSession.accept.tokens": "needs a sample: below",
    "_native.KvSession.accept_all.tokens": "needs a sample: below",
    "_native.KvSession.fork.copies": "needs a sample: below",
    "_native.KvSession.prefill.chunk": "needs a sample: below",
    "_native.Logits.after.token": "needs logits: below",
}
FOR_THE_PACKAGE = tuple(
    f"_native.{name}"
    for name in (
        "oracle_",
        "time_",
        "OracleCases",
        "OnnxModel",
        "integer_within",
        "resolve_axis",
        "restore_",
        "xla_",
    )
)


def test_every_integer_argument_is_in_a_table() -> None:
    modules = (
        "_native.pyi",
        "_generate.py",
        "paged.py",
        "positions.py",
        "reference.py",
        "ring.py",
        "testing/_case.py",
        "testing/_check.py",
    )
    public = {name for name in declared(*modules) if not name.startswith(FOR_THE_PACKAGE)}
    public -= {"_native.Generation.progress", "_native.KeptGenerator.generate.watch"}  # functions
    assert public == WITHOUT_A_SESSION.keys() | SESSION.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", WITHOUT_A_SESSION)
def test_an_integer_argument(name: str) -> None:
    check(name, WITHOUT_A_SESSION[name], optional=name.rpartition(".")[2] in {"threads", "window"})


@pytest.mark.parametrize("name", SESSION)
def test_an_integer_argument_of_a_session(name: str) -> None:
    check(name, SESSION[name], optional=name.rpartition(".")[2] in OPTIONAL)
    error = refused("integer_range", name.rpartition(".")[2], SESSION[name], -1)
    assert isinstance(error, errors.OptionError) and error.value == -1
    is_wide = error.max is not None and error.max >= 2**63 - 1
    limits = f"at least {error.min}" if is_wide else f"from {error.min} to {error.max}"
    assert str(error).endswith(f"= -1: must be {limits}")


def test_integer_arguments_about_a_sample() -> None:
    with KvSession(MODEL, threads=1) as session:
        sample = session.add()
        session.begin(sample)
        scores = session.step({sample: [1, 2]})
        about: dict[str, Callable[[Any], object]] = {
            "_native.KvSession.truncate.length": lambda value: session.truncate(sample, value),
            "_native.KvSession.accept.tokens": lambda value: session.accept(sample, value),
            "_native.KvSession.accept_all.tokens": lambda value: session.accept_all({sample: value}),
            "_native.KvSession.fork.copies": lambda value: session.fork(sample, value),
            "_native.KvSession.prefill.chunk": lambda value: session.prefill({sample: [1]}, chunk=value),
            "_native.Logits.after.token": lambda value: scores.after(sample, value),
        }
        for name, call in about.items():
            check(name, call)
            refused("integer_range", name.rpartition(".")[2], call, -1)
        assert session.cached_tokens(sample) == 2
        with pytest.raises(IndexError):
            scores.after(sample, -1)


def test_numbers_of_numpy_are_integers() -> None:
    with KvSession(MODEL, batch=np.int8(2), threads=np.uint64(1), memory=np.int32(1 << 20)) as session:
        sample = session.add()
        session.prefill({sample: [1, 2, 3]}, chunk=np.int64(2))
        session.truncate(sample, np.uint8(1))
        assert (session.batch, session.cached_tokens(sample)) == (2, 1)


def test_threads_are_as_many_as_a_machine_can_start() -> None:
    for threads in (0, 1025, 2**32 + 1):
        error = refused("integer_range", "threads", KvSession, MODEL, threads=threads)
        assert (error.min, error.max) == (1, 1024)


@pytest.mark.parametrize("raised", [RuntimeError, OverflowError])
def test_an_exception_of_index_reaches_the_caller(raised: type[Exception]) -> None:
    class Raises:
        def __index__(self) -> int:
            raise raised("of __index__")

    value: Any = Raises()
    calls: tuple[Callable[[], object], ...] = (
        lambda: kvscatter.prepare(CACHE, UPDATE, axis=value),
        lambda: kvscatter.tensor_scatter_(CACHE.copy(), UPDATE, [value]),
        lambda: kvscatter.prepare((1, value, 2), (1, 1, 2), dtype="float32"),
        lambda: kvscatter.plan((1, 4, 2), [1, value, 2], dtype="float32"),
    )
    for call in calls:
        with pytest.raises(raised, match="of __index__"):
            call()


@pytest.mark.parametrize(
    "size", [-1, 2**63, 10**30, 1.5, "1", True, None, pytest.param(10**5000, id="thousands of digits")]
)
def test_a_shape_is_of_integers(size: Any) -> None:
    for argument, shapes in (
        ("cache", ((1, size, 2), (1, 1, 2))),
        ("update", ((1, 4, 2), [1, size, 2])),
    ):
        for function in (kvscatter.prepare, kvscatter.plan):
            error = refused("dimension", argument, function, *shapes, dtype="float32")
            assert error.dimension == 1 and f"{argument}[1] = " in str(error)

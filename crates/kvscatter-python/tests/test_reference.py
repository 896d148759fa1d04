"""Tests the reference with worked examples, bits, calls that break a rule, and shapes that claim more
elements than exist."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import kvscatter
from kvscatter import reference
from kvscatter._dtypes import ONNX_NAMES, dtype_named
from kvscatter.reference import Refused
from support import refused


@pytest.mark.parametrize("name", ONNX_NAMES)
def test_every_dtype_moves_bit_for_bit(name: str) -> None:
    dtype = dtype_named(name)
    assert dtype is not None
    random = np.random.default_rng(1)
    if dtype.hasobject:
        past = np.array([f"κ{n}" for n in range(24)], object).reshape(2, 4, 3)
        new = np.array([f"new {n}" for n in range(12)], object).reshape(2, 2, 3)
    else:
        bits = random.integers(0, 256, 36 * dtype.itemsize, np.uint8)
        if name in {"bool", "int4", "uint4", "float4_e2m1fn"}:
            bits &= 1 if name == "bool" else 0xF
        past = bits[: 24 * dtype.itemsize].view(dtype).reshape(2, 4, 3)
        new = bits[24 * dtype.itemsize :].view(dtype).reshape(2, 2, 3)
    before = past.tobytes(), new.tobytes()
    present = reference.tensor_scatter(past, new, [2, 0])
    expected = [past[0, 0], past[0, 1], new[0, 0], new[0, 1], new[1, 0], new[1, 1], past[1, 2], past[1, 3]]
    assert present.dtype == dtype
    assert [row.tobytes() for row in present.reshape(8, 3)] == [row.tobytes() for row in expected]
    assert (past.tobytes(), new.tobytes()) == before
    assert not np.shares_memory(present, past)


def test_strided_and_read_only_arrays_are_read_as_they_are() -> None:
    past = np.arange(48, dtype=np.int32).reshape(2, 6, 4)[:, ::-2, ::2]
    new = np.broadcast_to(np.int32(7), (2, 1, 2))
    past.flags.writeable = False
    present = reference.tensor_scatter(past, new, [0, 2])
    expected = past.copy()
    expected[0, 0] = expected[1, 2] = 7
    assert np.array_equal(present, expected)


def test_masks_are_not_dropped_in_silence() -> None:
    past, new, starts = np.zeros((2, 4, 1)), np.ones((2, 1, 1)), np.zeros(2, np.int32)
    hide = np.ma.array
    for argument, call in (
        ("past_cache", lambda: reference.tensor_scatter(hide(past), new)),
        ("update", lambda: reference.tensor_scatter(past, hide(new))),
        ("write_indices", lambda: reference.tensor_scatter(past, new, hide(starts))),
        ("lengths", lambda: reference.tensor_scatter(past, new, lengths=hide(starts))),
        ("cache", lambda: reference.kv_cache_update(hide(past), new, starts)),
        ("newKv", lambda: reference.kv_cache_operation(past, hide(new), 0, starts, starts)),
        ("past", lambda: reference.kv_cache_operation(hide(past), new, 0, starts, starts)),
        ("layerId", lambda: reference.kv_cache_operation(past, new, hide([0]), starts, starts)),
    ):
        refused("tensor", argument, call, of=kvscatter.ArrayError)


def test_lengths_and_skipped_samples() -> None:
    past, new = np.zeros((3, 4), np.uint8), np.array([[1, 2], [3, 4], [5, 6]], np.uint8)
    given = (past, new, [3, 2, 9])
    present, skipped = reference.answer(
        reference.tensor_scatter, *given, axis=1, lengths=[1, 2, 0], out_of_range="skip"
    )
    assert present.tolist() == [[0, 0, 0, 1], [0, 0, 3, 4], [0, 0, 0, 0]]
    assert skipped == 1
    with pytest.raises(TypeError, match="is not a function of kvscatter.reference"):
        reference.answer(kvscatter.tensor_scatter, *given, axis=1)


Call = Callable[[], Any]


def _scatter(*shapes: tuple[int, ...], **arguments: Any) -> Call:
    past, new = (np.zeros(shape, np.float16) for shape in shapes)
    return lambda: reference.tensor_scatter(past, new, **arguments)


@pytest.mark.parametrize(
    ("call", "rule", "argument", "fields"),
    [
        (_scatter((1, 4), (1, 2), axis=1, mode="ring"), "mode", "mode", {"name": "ring"}),
        (_scatter((4,), (4,)), "cache_rank", "past_cache", {"rank": 1}),
        (_scatter((1, 4), (1, 2, 1), axis=1), "update_rank", "update", {"rank": 3}),
        (_scatter((1, 4), (1, 2)), "axis", "axis", {"axis": -2, "rank": 2}),
        (_scatter((1, 4), (1, 2), axis=2**70), "axis", "axis", {"axis": 2**70, "rank": 2}),
        (_scatter((1, 4), (2, 2), axis=1), "dimension", "update", {"dimension": 0, "cache": 1, "update": 2}),
        (_scatter((1, 4), (1, 5), axis=1), "update_too_long", "update", {"capacity": 4, "rows": 5}),
        (
            _scatter((1, 4), (1, 2), axis=1, write_indices=[0, 0]),
            "index_count",
            "write_indices",
            {"given": 2, "needed": 1},
        ),
        (
            _scatter((1, 4), (1, 2), axis=1, write_indices=[-1]),
            "negative_start",
            "write_indices",
            {"sample": 0, "start": -1},
        ),
        (
            _scatter((1, 4), (1, 2), axis=1, write_indices=[3]),
            "out_of_range",
            "write_indices",
            {"sample": 0, "start": 3, "rows": 2, "capacity": 4},
        ),
        (
            _scatter((1, 4), (1, 2), axis=1, lengths=[3]),
            "length",
            "lengths",
            {"sample": 0, "length": 3, "rows": 2},
        ),
        (_scatter((1, 4), (1, 2), axis=1, write_indices=[0.0]), "index_type", "write_indices", {}),
        (_scatter((1, 4), (1, 2), axis=1, write_indices=[True]), "index_type", "write_indices", {}),
        (
            _scatter((1, 4), (1, 2), axis=1, write_indices=np.array([2**63], np.uint64)),
            "index_range",
            "write_indices",
            {"index": 0, "value": 2**63},
        ),
    ],
)
def test_refusals_name_the_rule_and_the_numbers(
    call: Call, rule: str, argument: str, fields: dict[str, int | str]
) -> None:
    error = refused(rule, argument, call, of=Refused)
    assert isinstance(error, Refused) and (error.rule, error.fields) == (rule, fields)
    assert isinstance(error, ValueError)
    for again in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (str(again), again.rule, again.fields) == (str(error), rule, fields)


def test_types() -> None:
    past, new = np.zeros((1, 4), np.float16), np.zeros((1, 2), np.float32)
    error = refused("types_differ", "update", reference.tensor_scatter, past, new, axis=1, of=Refused)
    assert error.fields == {"cache": "float16", "update": "float"}
    for dtype in (np.dtype("M8[s]"), np.dtype("<U3"), np.dtype(">f4"), np.dtype("V4")):
        arrays = np.zeros((1, 4), dtype), np.zeros((1, 2), dtype)
        refused("unsupported_type", None, reference.tensor_scatter, *arrays, axis=1, of=Refused)
    arrays = np.zeros((1, 1, 4, 1)), np.zeros((1, 1, 1, 1))
    error = refused("unsupported_type", "cache", reference.kv_cache_update, *arrays, [0], of=Refused)
    assert error.element == "double"


def test_policies_exist() -> None:
    past, new = np.zeros((1, 4)), np.zeros((1, 2))
    call = partial(reference.tensor_scatter, past, new, axis=1, out_of_range="clamp")
    refused("unknown_policy", "out_of_range", call, of=kvscatter.OptionError)


HUGE = 2**50


@pytest.mark.parametrize(
    "call",
    [
        # In a shape without elements, a huge dimension needs no memory.
        lambda: reference.tensor_scatter(np.zeros((2, 0, HUGE, 1)), np.zeros((2, 0, HUGE, 1)), [0, 0]),
        lambda: reference.tensor_scatter(
            np.zeros((2, 0, HUGE, 1)), np.zeros((2, 0, HUGE, 1)), lengths=[1, 2], axis=2
        ),
        lambda: reference.kv_cache_update(
            np.zeros((1, 0, HUGE, 1), np.float32),
            np.zeros((2**31 - 1, 0, 1), np.float32),
            [0],
            [0, 2**31 - 1],
        ),
        lambda: reference.kv_cache_update(
            np.zeros((1, 0, HUGE, 1), np.float32), np.zeros((1, 0, HUGE, 1), np.float32), [0]
        ),
        lambda: reference.kv_cache_operation(
            np.zeros((1, 1, HUGE, 0), np.int8),
            np.zeros((2**31 - 1, 0), np.int8),
            [0],
            [2**31 - 1],
            [2**31 - 1],
        ),
        # A broadcast dimension needs no memory either.
        lambda: reference.tensor_scatter(
            np.broadcast_to(np.int8(0), (HUGE, 8)), np.broadcast_to(np.int8(0), (HUGE, 8)), axis=1
        ),
    ],
)
def test_nothing_is_allocated_for_what_is_only_claimed(call: Call) -> None:
    refused("too_large", None, call, of=kvscatter.ShapeError)


def test_empty_arrays_with_huge_dimensions_have_an_answer_where_no_index_asks_for_one() -> None:
    shape = (HUGE, 0, 2)
    present = reference.tensor_scatter(np.zeros(shape), np.zeros(shape), axis=2)
    assert present.shape == shape
    with pytest.raises(Refused) as caught:
        reference.tensor_scatter(np.zeros(shape), np.zeros(shape), [0], axis=2)
    assert caught.value.fields == {"given": 1, "needed": HUGE}


def test_hostile_lengths_are_refused_by_their_rule() -> None:
    cache, packed = np.zeros((2, 1, 4, 1), np.float32), np.zeros((3, 1, 1), np.float32)
    for lengths in ([0, 2**31 - 1, 0], [0, -(2**31), 3], [-(2**31), 0, 3], [0, 1, 2**31 - 1]):
        with pytest.raises(Refused) as caught:
            reference.kv_cache_update(cache, packed, [0, 0], lengths)
        assert caught.value.argument == "updateLengths"
    past, new = np.zeros((1, 2, 4, 1), np.int8), np.zeros((3, 1), np.int8)
    for seq_len in ([2**31 - 1, 1], [-(2**31), 1], [1, 1]):
        with pytest.raises(Refused) as caught:
            reference.kv_cache_operation(past, new, [0], [4, 4], seq_len)
        assert caught.value.argument == "seqLen"

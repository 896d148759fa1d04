"""Tests the position conventions on one sample and on a batch, and the numbers that they and `ring` refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvscatter
from kvscatter import errors, positions, ring
from support import refused

LARGEST = 2**63 - 1

# The conversion, its reverse, and the position for 5 tokens and 2 more.
CONVENTIONS: list[tuple[Callable[..., Any], Callable[..., Any], int]] = [
    (positions.length_after, positions.start_from_length_after, 7),
    (positions.token_offset, positions.start_from_token_offset, 7),
    (positions.seqlens_k, positions.start_from_seqlens_k, 6),
]


@pytest.mark.parametrize(("there", "back", "between"), CONVENTIONS)
def test_one_sample_is_an_int(there: Callable[..., Any], back: Callable[..., Any], between: int) -> None:
    assert there(5, 2) == between
    assert type(there(5, 2)) is int
    assert back(between, 2) == 5
    assert type(back(np.int32(between), rows=np.int64(2))) is int


@pytest.mark.parametrize(("there", "back", "between"), CONVENTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_a_batch_is_an_array(
    there: Callable[..., Any], back: Callable[..., Any], between: int, dtype: str
) -> None:
    start = np.array([5, 0, 100], dtype)
    rows = np.array([2, 1, 0], dtype)
    got = there(start, rows)
    want = start.astype(np.int64) + rows + (between - 7)
    assert got.dtype == np.int64
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(back(got, rows), start.astype(np.int64))
    np.testing.assert_array_equal(there(start.tolist(), 2), start.astype(np.int64) + 2 + (between - 7))
    np.testing.assert_array_equal(there(start[::-1], rows[::-1]), want[::-1])
    np.testing.assert_array_equal(there(5, rows), 5 + rows.astype(np.int64) + (between - 7))


def test_nonpad_kv_seqlen_stops_at_the_capacity_of_a_ring() -> None:
    start = [0, 5, 6, 7, 800]
    got = positions.nonpad_kv_seqlen(start, 2, 8, "circular")
    np.testing.assert_array_equal(got, [2, 7, 8, 8, 8])
    np.testing.assert_array_equal(positions.nonpad_kv_seqlen([0, 5, 6], 2, 8), [2, 7, 8])
    np.testing.assert_array_equal(positions.start_from_nonpad_kv_seqlen([2, 8], 2, 8), [0, 6])
    np.testing.assert_array_equal(positions.start_from_nonpad_kv_seqlen([2, 7], 2, 8, "circular"), [0, 5])


def test_no_samples_are_an_empty_array() -> None:
    got = positions.token_offset([], 1)
    assert got.dtype == np.int64
    assert got.shape == (0,)


# A call without keywords, and the kind, the class, the argument and the fields of its error.
REFUSED: list[tuple[tuple[Any, ...], str, type[errors.Error], str, dict[str, int]]] = [
    *(
        (call, "invalid_position", errors.PositionError, argument, {**fields, "rows": 2})
        for call, argument, fields in [
            ((positions.length_after, -1, 2), "start", {"value": -1}),
            ((positions.length_after, [3, LARGEST], 2), "start", {"value": LARGEST, "index": 1}),
            ((positions.start_from_length_after, [2, 1, 0], 2), "length", {"value": 1, "index": 1}),
            ((positions.token_offset, LARGEST, 2), "start", {"value": LARGEST}),
            ((positions.start_from_token_offset, np.array([1]), 2), "token_offset", {"value": 1, "index": 0}),
            ((positions.seqlens_k, [0, 0, -2], 2), "start", {"value": -2, "index": 2}),
            ((positions.start_from_seqlens_k, 0, 2), "last", {"value": 0}),
            ((positions.nonpad_kv_seqlen, [6, 7], 2, 8), "start", {"value": 7, "index": 1}),
            ((positions.start_from_nonpad_kv_seqlen, 8, 2, 8, "circular"), "length", {"value": 8}),
            ((positions.start_from_nonpad_kv_seqlen, 9, 2, 8), "length", {"value": 9}),
        ]
    ),
    *(
        (call, "negative_size", errors.PositionError, argument, fields)
        for call, argument, fields in [
            ((positions.length_after, [1, 2], [1, -1]), "rows", {"value": -1, "index": 1}),
            ((positions.nonpad_kv_seqlen, 1, 1, -8), "capacity", {"value": -8}),
            ((ring.most_rows, -1, 8, 0, 0), "capacity", {"value": -1}),
            ((ring.most_rows, 11, -8, 0, 0), "window", {"value": -8}),
            ((ring.most_rows, 11, 8, -2, 0), "high", {"value": -2}),
            ((ring.most_rows, 11, 8, 0, [3, -1]), "start", {"value": -1, "index": 1}),
            ((ring.least_start, 11, 8, [-5]), "high", {"value": -5, "index": 0}),
            ((ring.high_after, 0, 0, -1), "rows", {"value": -1}),
            ((ring.least_capacity, 8, 4, -3), "rewind", {"value": -3}),
        ]
    ),
    *(
        ((positions.length_after, given, 1), "integer_range", errors.PositionError, "start", fields)
        for given, fields in [
            (2**63, {"value": 2**63}),
            (-(2**63) - 1, {"value": -(2**63) - 1}),
            ([10**30], {"value": 10**30, "index": 0}),
            (np.array([2**63], np.uint64), {"value": 2**63, "index": 0}),
        ]
    ),
    *(
        (call, "not_integers", errors.ElementTypeError, "start", {})
        for value in (True, 1.0, None, "1", [1.0], [True], np.array([1.5]), np.array([True]))
        for call in ((positions.length_after, value, 1), (ring.most_rows, 11, 8, 0, value))
    ),
    *(
        (call, "list_length", errors.PositionError, "rows", {"got": 2, "expected": 3})
        for call in ((positions.length_after, [1, 2, 3], [1, 2]), (ring.high_after, [1, 2, 3], 1, [1, 2]))
    ),
    ((positions.length_after, np.zeros((2, 2), int), 1), "rank", errors.ShapeError, "start", {"rank": 2}),
    ((positions.nonpad_kv_seqlen, 1, 1, 8, "ring"), "choice", errors.OptionError, "mode", {"value": "ring"}),
    ((ring.least_capacity, 8, 4, 2, "idles"), "choice", errors.OptionError, "feeding", {"value": "idles"}),
]


@pytest.mark.parametrize(("call", "kind", "of", "argument", "fields"), REFUSED)
def test_numbers_that_no_write_has_are_refused(
    call: tuple[Any, ...], kind: str, of: type[errors.Error], argument: str, fields: dict[str, int]
) -> None:
    error = refused(kind, argument, *call, of=of)
    assert error.fields == fields
    if kind == "invalid_position":
        sample = fields.get("index")
        assert str(error).startswith("position " if sample is None else f"sample {sample}: position ")


def test_a_list_of_one_has_one_value() -> None:
    with pytest.raises(errors.PositionError, match="^rows has 1 value, must have 2$"):
        positions.length_after([1, 2], [1])


def test_they_lead_to_the_slots_that_are_written() -> None:
    """The `tokenOffset` computed from `write_indices` writes the same slots as `write_indices`."""
    starts, rows = [1, 0], [2, 1]
    new = np.arange(1, 4, dtype=np.int8).reshape(3, 1)
    past = np.zeros((1, 2, 4, 1), np.int8)
    kvscatter.kv_cache_operation_(past, new, 0, positions.token_offset(starts, rows), rows)
    cache = np.zeros((2, 4, 1), np.int8)
    padded = np.array([[[1], [2]], [[3], [0]]], np.int8)
    kvscatter.tensor_scatter_(cache, padded, starts, lengths=rows)
    np.testing.assert_array_equal(past[0], cache)

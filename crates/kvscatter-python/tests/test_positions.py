"""Tests the position conventions on one sample and on a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvscatter
from kvscatter import errors, positions

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


# The call, its argument, the value, and the sample if there are many.
UNFIT: list[tuple[Callable[[], object], str, int, int | None]] = [
    (lambda: positions.length_after(-1, 2), "start", -1, None),
    (lambda: positions.length_after([3, LARGEST], 2), "start", LARGEST, 1),
    (lambda: positions.start_from_length_after([2, 1, 0], 2), "length", 1, 1),
    (lambda: positions.token_offset(LARGEST, 2), "start", LARGEST, None),
    (lambda: positions.start_from_token_offset(np.array([1]), 2), "token_offset", 1, 0),
    (lambda: positions.seqlens_k([0, 0, -2], 2), "start", -2, 2),
    (lambda: positions.start_from_seqlens_k(0, 2), "last", 0, None),
    (lambda: positions.nonpad_kv_seqlen([6, 7], 2, 8), "start", 7, 1),
    (lambda: positions.start_from_nonpad_kv_seqlen(8, 2, 8, "circular"), "length", 8, None),
    (lambda: positions.start_from_nonpad_kv_seqlen(9, 2, 8), "length", 9, None),
]


@pytest.mark.parametrize(("call", "argument", "value", "index"), UNFIT)
def test_a_position_that_no_write_has_names_its_sample(
    call: Callable[[], object], argument: str, value: int, index: int | None
) -> None:
    with pytest.raises(errors.PositionError) as caught:
        call()
    error = caught.value
    fields = {"value": value, "rows": 2} | ({} if index is None else {"index": index})
    assert (error.kind, error.argument, error.fields) == ("invalid_position", argument, fields)
    assert str(error).startswith("position " if index is None else f"sample {index}: position ")


def test_a_list_of_one_has_one_value() -> None:
    with pytest.raises(errors.PositionError, match="^rows has 1 value, must have 2$"):
        positions.length_after([1, 2], [1])


def test_rows_and_capacity_are_not_negative() -> None:
    with pytest.raises(errors.PositionError) as caught:
        positions.length_after([1, 2], [1, -1])
    error = caught.value
    assert (error.kind, error.argument) == ("negative_size", "rows")
    assert error.fields == {"value": -1, "index": 1}
    with pytest.raises(errors.PositionError) as caught:
        positions.nonpad_kv_seqlen(1, 1, -8)
    error = caught.value
    assert (error.kind, error.argument, error.fields) == ("negative_size", "capacity", {"value": -8})


def test_there_is_one_number_of_rows_per_sample() -> None:
    with pytest.raises(errors.PositionError) as caught:
        positions.length_after([1, 2, 3], [1, 2])
    error = caught.value
    assert (error.kind, error.argument, error.fields) == ("list_length", "rows", {"got": 2, "expected": 3})


@pytest.mark.parametrize("value", [True, 1.0, None, "1", [1.0], [True], np.array([1.5]), np.array([True])])
def test_values_other_than_integers_are_refused(value: Any) -> None:
    with pytest.raises(errors.ElementTypeError) as caught:
        positions.length_after(value, 1)
    assert (caught.value.kind, caught.value.argument) == ("not_integers", "start")


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (2**63, 2**63),
        (-(2**63) - 1, -(2**63) - 1),
        ([10**30], 10**30),
        (np.array([2**63], np.uint64), 2**63),
    ],
)
def test_integers_of_more_than_64_bits_are_refused(given: Any, value: int) -> None:
    with pytest.raises(errors.PositionError) as caught:
        positions.length_after(given, 1)
    error = caught.value
    place = {} if isinstance(given, int) else {"index": 0}
    assert (error.kind, error.argument, error.fields) == ("integer_range", "start", {"value": value} | place)


def test_a_batch_has_one_dimension() -> None:
    with pytest.raises(errors.ShapeError) as caught:
        positions.length_after(np.zeros((2, 2), np.int64), 1)
    assert (caught.value.kind, caught.value.rank) == ("rank", 2)


def test_a_mode_is_linear_or_circular() -> None:
    with pytest.raises(errors.OptionError) as caught:
        positions.nonpad_kv_seqlen(1, 1, 8, "ring")  # type: ignore[call-overload]
    assert (caught.value.kind, caught.value.argument) == ("choice", "mode")


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

"""Tests TensorRT's `KVCacheUpdate` on arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import errors, reference

Array = NDArray[Any]
FLOATS = [np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def painted(*shape: int, dtype: Any = np.float32, first: int = 1) -> Array:
    return (np.arange(first, first + int(np.prod(shape))) % 251).astype(dtype).reshape(shape)


def looped(cache: Array, update: Array, starts: Any, lengths: Any) -> Array:
    """Runs the specification's loop on a padded update."""
    present = cache.copy()
    for sample, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        for row in range(length):
            present[sample, :, start + row] = update[sample, :, row]
    return present


def bits(array: Array) -> Array:
    return array.view(np.uint8)


def test_arguments_are_named_as_in_the_document() -> None:
    signature = str(inspect.signature(kvscatter.kv_cache_update_))
    want = "(cache, update, writeIndices, updateLengths=None, *, lengths=None, out_of_range='error')"
    assert signature == want


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("indices", [list, tuple, np.array, lambda values: np.array(values, np.int32)])
def test_a_padded_update(dtype: np.dtype[Any], indices: Callable[[list[int]], Any]) -> None:
    cache, update = painted(3, 2, 8, 4, dtype=dtype), painted(3, 2, 3, 4, dtype=dtype, first=100)
    want = looped(cache, update, [0, 5, 2], [3, 3, 3])
    assert kvscatter.kv_cache_update_(cache, update, writeIndices=indices([0, 5, 2])) == 0
    np.testing.assert_array_equal(bits(cache), bits(want))


@pytest.mark.parametrize("indices", [list, np.array, lambda values: np.array(values, np.int32)])
def test_a_packed_update(indices: Callable[[list[int]], Any]) -> None:
    cache, packed = painted(3, 2, 8, 4), painted(6, 2, 4, first=100)
    want = cache.copy()
    ends, starts = [0, 3, 3, 6], [0, 8, 5]
    for sample, start in enumerate(starts):
        for row, token in enumerate(range(ends[sample], ends[sample + 1])):
            want[sample, :, start + row] = packed[token]
    assert kvscatter.kv_cache_update_(cache, packed, indices(starts), indices(ends)) == 0
    np.testing.assert_array_equal(cache, want)


def test_arrays_of_other_libraries() -> None:
    jax_numpy = pytest.importorskip("jax.numpy")
    cache, update = painted(3, 2, 8, 4), painted(3, 2, 3, 4, first=100)
    want = looped(cache, update, [0, 5, 2], [3, 3, 3])
    kvscatter.kv_cache_update_(cache, jax_numpy.asarray(update), jax_numpy.asarray([0, 5, 2]))
    np.testing.assert_array_equal(cache, want)
    with pytest.raises(errors.ArrayError) as caught:
        kvscatter.kv_cache_update_(jax_numpy.asarray(cache), update, [0, 5, 2])
    assert (caught.value.kind, caught.value.argument) == ("immutable", "cache")


def test_a_large_write_is_the_same() -> None:
    """Writes more than the limit up to which the interpreter lock is kept."""
    rng = np.random.default_rng(5)
    cache = rng.standard_normal((4, 8, 512, 64)).astype(np.float32)
    update = rng.standard_normal((4, 8, 256, 64)).astype(np.float32)
    starts = [0, 256, 17, 128]
    want = reference.kv_cache_update(cache, update, starts)
    kvscatter.kv_cache_update_(cache, update, starts)
    np.testing.assert_array_equal(cache, want)


def read_only() -> Array:
    cache = painted(2, 2, 8, 4)
    cache.flags.writeable = False
    return cache


CACHE = painted(2, 2, 8, 4)
INT4 = np.dtype(ml_dtypes.int4)
PACKED = {"update": painted(1, 2, 4)}


@pytest.mark.parametrize(
    ("of", "kind", "argument", "given"),
    [
        (errors.ArrayError, "read_only", "cache", {"cache": read_only()}),
        (errors.ArrayError, "overlap", "cache", {"cache": CACHE, "update": CACHE[:, :, 2:3]}),
        (
            errors.ArrayError,
            "overlap",
            "cache",
            {
                "cache": (zeros := np.zeros((2, 2, 8, 4), np.float32)),
                "writeIndices": zeros.view("i4").ravel()[:2],
            },
        ),
        (
            errors.ElementTypeError,
            "element_type_mismatch",
            "update",
            {"update": painted(2, 2, 1, 4, dtype=np.float16)},
        ),
        (
            errors.ElementTypeError,
            "element_type",
            "cache",
            {"cache": painted(2, 2, 8, 4, dtype=INT4), "update": painted(2, 2, 1, 4, dtype=INT4)},
        ),
        (errors.ElementTypeError, "not_an_array", "cache", {"cache": [[1.0]]}),
        (errors.ElementTypeError, "not_integers", "writeIndices", {"writeIndices": None}),
        (errors.ElementTypeError, "not_integers", "writeIndices", {"writeIndices": [0.0, 1.0]}),
        (errors.ShapeError, "rank", "update", {"update": painted(2, 2, 4)}),
        (errors.ShapeError, "rank", "update", {"updateLengths": [0, 1, 2]}),
        (
            errors.ShapeError,
            "batch_too_large",
            "writeIndices",
            PACKED | {"writeIndices": [0, 0, 0], "updateLengths": [0, 0, 0, 1]},
        ),
        (errors.PositionError, "list_length", "writeIndices", PACKED | {"updateLengths": [0]}),
        (errors.PositionError, "list_length", "updateLengths", PACKED | {"updateLengths": [0, 1]}),
        (errors.PositionError, "token_sum", "updateLengths", PACKED | {"updateLengths": [0, 1, 2]}),
        (
            errors.PositionError,
            "integer_range",
            "updateLengths",
            PACKED | {"updateLengths": [0, 1, 2**32 + 1]},
        ),
        (errors.PositionError, "start_out_of_range", "writeIndices", {"writeIndices": [0, 8]}),
        (errors.PositionError, "negative_start", "writeIndices", {"writeIndices": [-1, 0]}),
        (errors.PositionError, "length_out_of_range", "lengths", {"lengths": [1, 2]}),
        (errors.OptionError, "choice", "out_of_range", {"out_of_range": "ignore"}),
    ],
)
def test_after_an_error_no_array_has_changed(
    of: type[errors.Error], kind: str, argument: str, given: dict[str, Any]
) -> None:
    usual = {"cache": painted(2, 2, 8, 4), "update": painted(2, 2, 1, 4), "writeIndices": [0, 0]}
    arguments: dict[str, Any] = {**usual, **given}
    before = np.array(arguments["cache"])
    with pytest.raises(errors.Error) as caught:
        kvscatter.kv_cache_update_(**arguments)
    assert (type(caught.value), caught.value.kind, caught.value.argument) == (of, kind, argument)
    np.testing.assert_array_equal(np.array(arguments["cache"]), before)

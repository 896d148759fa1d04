"""Tests Ascend ATB's `KVCacheOperation` on arrays."""

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
TYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.int8)]


def painted(*shape: int, dtype: Any = np.int8, first: int = 1) -> Array:
    return (np.arange(first, first + int(np.prod(shape))) % 127).astype(dtype).reshape(shape)


def looped(new: Array, layer: int, past: Array, offsets: Any, lengths: Any) -> Array:
    """Applies the specification's formula, token by token."""
    present, token = past.copy(), 0
    for batch, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        for row in range(length):
            present[layer, batch, offset - length + row] = new[token]
            token += 1
    return present


def bits(array: Array) -> Array:
    return array.view(np.uint8)


def test_arguments_are_named_as_in_the_document() -> None:
    signature = inspect.signature(kvscatter.kv_cache_operation_)
    names = "past newKv layerId tokenOffset seqLen lengths out_of_range"
    assert list(signature.parameters) == names.split()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("indices", [list, tuple, np.array, lambda values: np.array(values, np.int32)])
def test_packed_tokens(dtype: np.dtype[Any], indices: Callable[[list[int]], Any]) -> None:
    past, new = painted(2, 3, 8, 6, dtype=dtype), painted(6, 6, dtype=dtype, first=100)
    offsets, lengths = [8, 1, 5], [2, 1, 3]
    want = looped(new, 1, past, offsets, lengths)
    skipped = kvscatter.kv_cache_operation_(
        newKv=new, layerId=indices([1]), past=past, tokenOffset=indices(offsets), seqLen=indices(lengths)
    )
    assert skipped == 0
    np.testing.assert_array_equal(bits(past), bits(want))


@pytest.mark.parametrize("layer", [1, np.int64(1), np.array(1), [1], (1,), np.array([1], np.int32)])
def test_one_layer_is_written(layer: Any) -> None:
    past, new = painted(3, 1, 4, 2), painted(1, 2, first=100)
    want = looped(new, 1, past, [4], [1])
    kvscatter.kv_cache_operation_(past, new, layer, [4], [1])
    np.testing.assert_array_equal(past, want)


def test_arrays_of_other_libraries() -> None:
    jax_numpy = pytest.importorskip("jax.numpy")
    past, new = painted(1, 2, 8, 2), painted(3, 2, first=60)
    want = looped(new, 0, past, [8, 1], [2, 1])
    kvscatter.kv_cache_operation_(past, jax_numpy.asarray(new), 0, jax_numpy.asarray([8, 1]), [2, 1])
    np.testing.assert_array_equal(past, want)
    with pytest.raises(errors.ArrayError) as caught:
        kvscatter.kv_cache_operation_(jax_numpy.asarray(past), new, 0, [8, 1], [2, 1])
    assert (caught.value.kind, caught.value.argument) == ("immutable", "past")


def test_a_large_write_is_the_same() -> None:
    """Writes more than the limit up to which the interpreter lock is kept."""
    rng = np.random.default_rng(5)
    past = rng.standard_normal((2, 2, 512, 1024)).astype(np.float16)
    new = rng.standard_normal((640, 1024)).astype(np.float16)
    want = reference.kv_cache_operation(past, new, [1], [512, 300], [384, 256])
    kvscatter.kv_cache_operation_(past, new, [1], [512, 300], [384, 256])
    np.testing.assert_array_equal(bits(past), bits(want))


def read_only() -> Array:
    past = painted(2, 2, 4, 6)
    past.flags.writeable = False
    return past


PAST = painted(2, 2, 4, 6)


@pytest.mark.parametrize(
    ("of", "kind", "argument", "given"),
    [
        (errors.ArrayError, "read_only", "past", {"past": read_only()}),
        (errors.ArrayError, "overlap", "past", {"past": PAST, "newKv": PAST[0, 0, :3]}),
        (
            errors.ArrayError,
            "overlap",
            "past",
            {"past": PAST, "tokenOffset": PAST.reshape(-1)[:2], "seqLen": [1, 2]},
        ),
        (errors.ElementTypeError, "element_type_mismatch", "newKv", {"newKv": painted(3, 6, dtype=np.uint8)}),
        (
            errors.ElementTypeError,
            "element_type",
            "past",
            {"newKv": painted(3, 6, dtype=np.int16), "past": painted(2, 2, 4, 6, dtype=np.int16)},
        ),
        (errors.ElementTypeError, "not_an_array", "newKv", {"newKv": 3}),
        (errors.ElementTypeError, "not_integers", "layerId", {"layerId": True}),
        (errors.ElementTypeError, "not_integers", "layerId", {"layerId": None}),
        (errors.ElementTypeError, "not_integers", "tokenOffset", {"tokenOffset": None}),
        (errors.ElementTypeError, "not_integers", "seqLen", {"seqLen": [2.0, 1.0]}),
        (errors.ShapeError, "rank", "past", {"past": painted(2, 4, 6)}),
        (errors.ShapeError, "dimension_mismatch", "newKv", {"newKv": painted(3, 5)}),
        (errors.ShapeError, "hidden_size", "newKv", {"newKv": painted(2, 1, 2, 2)}),
        (errors.OptionError, "choice", "out_of_range", {"out_of_range": "ignore"}),
        (errors.PositionError, "list_length", "layerId", {"layerId": [0, 1]}),
        (errors.PositionError, "list_length", "layerId", {"layerId": []}),
        (errors.PositionError, "layer_out_of_range", "layerId", {"layerId": -1}),
        (errors.PositionError, "integer_range", "layerId", {"layerId": 2**32}),
        (errors.PositionError, "integer_range", "layerId", {"layerId": 2**64}),
        (errors.PositionError, "integer_range", "tokenOffset", {"tokenOffset": [2, 2**32 + 1]}),
        (errors.PositionError, "integer_range", "seqLen", {"seqLen": [2, 2**32 + 1]}),
        (errors.PositionError, "end_out_of_range", "tokenOffset", {"tokenOffset": [2, 5]}),
        (errors.PositionError, "end_out_of_range", "tokenOffset", {"tokenOffset": [1, 1]}),
        (errors.PositionError, "length_out_of_range", "seqLen", {"tokenOffset": [3, 1], "seqLen": [3, 0]}),
        (errors.PositionError, "length_out_of_range", "lengths", {"lengths": [3, 0]}),
        (errors.PositionError, "token_sum", "seqLen", {"seqLen": [1, 1]}),
    ],
)
def test_after_an_error_no_array_has_changed(
    of: type[errors.Error], kind: str, argument: str, given: dict[str, Any]
) -> None:
    usual = {"newKv": painted(3, 6), "layerId": 1, "past": painted(2, 2, 4, 6)}
    arguments: dict[str, Any] = {**usual, "tokenOffset": [2, 1], "seqLen": [2, 1], **given}
    before = np.array(arguments["past"])
    with pytest.raises(errors.Error) as caught:
        kvscatter.kv_cache_operation_(**arguments)
    assert (type(caught.value), caught.value.kind, caught.value.argument) == (of, kind, argument)
    np.testing.assert_array_equal(arguments["past"], before)

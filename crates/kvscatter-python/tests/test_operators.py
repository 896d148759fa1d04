"""Tests TensorRT's `KVCacheUpdate` and Ascend ATB's `KVCacheOperation` on arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvscatter
from kvscatter import errors, reference
from support import Array, bits, refused

Arguments = dict[str, Any]


def painted(*shape: int, dtype: Any = np.float16, first: int = 1) -> Array:
    return (np.arange(first, first + int(np.prod(shape))) % 127).astype(dtype).reshape(shape)


def padded(dtype: Any) -> tuple[Arguments, Array]:
    """Returns the arguments of a call, and the cache after the loop of the specification."""
    cache, update, starts = (
        painted(3, 2, 8, 4, dtype=dtype),
        painted(3, 2, 3, 4, dtype=dtype, first=60),
        [0, 5, 2],
    )
    want = cache.copy()
    for sample, start in enumerate(starts):
        for row in range(3):
            want[sample, :, start + row] = update[sample, :, row]
    return {"cache": cache, "update": update, "writeIndices": starts}, want


def packed(dtype: Any) -> tuple[Arguments, Array]:
    cache, update = painted(3, 2, 8, 4, dtype=dtype), painted(6, 2, 4, dtype=dtype, first=60)
    ends, starts = [0, 3, 3, 6], [0, 8, 5]
    want = cache.copy()
    for sample, start in enumerate(starts):
        for row, token in enumerate(range(ends[sample], ends[sample + 1])):
            want[sample, :, start + row] = update[token]
    return {"cache": cache, "update": update, "writeIndices": starts, "updateLengths": ends}, want


def layered(dtype: Any) -> tuple[Arguments, Array]:
    past, new = painted(2, 3, 8, 6, dtype=dtype), painted(6, 6, dtype=dtype, first=60)
    offsets, lengths = [8, 1, 5], [2, 1, 3]
    want, token = past.copy(), 0
    for batch, (offset, length) in enumerate(zip(offsets, lengths, strict=True)):
        for row in range(length):
            want[1, batch, offset - length + row] = new[token]
            token += 1
    return {"past": past, "newKv": new, "layerId": [1], "tokenOffset": offsets, "seqLen": lengths}, want


FORMS: dict[str, tuple[Callable[..., int], Callable[[Any], tuple[Arguments, Array]], list[Any]]] = {
    "padded": (kvscatter.kv_cache_update_, padded, [np.float32, np.float16, ml_dtypes.bfloat16]),
    "packed": (kvscatter.kv_cache_update_, packed, [np.float32, np.float16, ml_dtypes.bfloat16]),
    "layered": (kvscatter.kv_cache_operation_, layered, [np.float16, ml_dtypes.bfloat16, np.int8]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("indices", [list, tuple, np.array, lambda values: np.array(values, np.int32)])
def test_an_update_is_written(form: str, indices: Callable[[list[int]], Any]) -> None:
    function, make, dtypes = FORMS[form]
    for dtype in dtypes:
        given, want = make(dtype)
        cache = next(iter(given.values()))
        lists = {name: indices(value) for name, value in given.items() if isinstance(value, list)}
        assert function(**given | lists) == 0
        assert bits(cache) == bits(want)


@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_other_libraries(form: str) -> None:
    jax_numpy = pytest.importorskip("jax.numpy")
    function, make, dtypes = FORMS[form]
    given, want = make(dtypes[-1])
    (name, cache), *others = given.items()
    foreign = {other: jax_numpy.asarray(value) for other, value in others}
    assert function(**{name: cache}, **foreign) == 0
    assert bits(cache) == bits(want)
    given[name] = jax_numpy.asarray(cache)
    refused("immutable", name, function, **given, of=errors.ArrayError)


def test_arguments_are_named_as_in_the_document() -> None:
    for function, names in [
        (kvscatter.kv_cache_update_, "cache, update, writeIndices, updateLengths=None"),
        (kvscatter.kv_cache_operation_, "past, newKv, layerId, tokenOffset, seqLen"),
    ]:
        assert str(inspect.signature(function)) == f"({names}, *, lengths=None, out_of_range='error')"


@pytest.mark.parametrize("layer", [1, np.int64(1), np.array(1), [1], (1,), np.array([1], np.int32)])
def test_one_layer_is_written(layer: Any) -> None:
    given, want = layered(np.int8)
    kvscatter.kv_cache_operation_(**given | {"layerId": layer})
    assert bits(given["past"]) == bits(want)


def test_large_writes_are_the_same() -> None:
    """Writes more than the limit up to which the interpreter lock is kept."""
    rng = np.random.default_rng(5)
    cache, update = (rng.standard_normal((4, 8, rows, 64)).astype(np.float32) for rows in (512, 256))
    want = reference.kv_cache_update(cache, update, [0, 256, 17, 128])
    kvscatter.kv_cache_update_(cache, update, [0, 256, 17, 128])
    assert bits(cache) == bits(want)
    past, new = (rng.standard_normal(shape).astype(np.float16) for shape in ((2, 2, 512, 1024), (640, 1024)))
    want = reference.kv_cache_operation(past, new, [1], [512, 300], [384, 256])
    kvscatter.kv_cache_operation_(past, new, [1], [512, 300], [384, 256])
    assert bits(past) == bits(want)


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


PADDED = {"cache": painted(2, 2, 8, 4), "update": painted(2, 2, 1, 4), "writeIndices": [0, 0]}
PACKED = {**PADDED, "update": painted(1, 2, 4)}
LAYERED = {
    "past": painted(2, 2, 4, 6, dtype=np.int8),
    "newKv": painted(3, 6, dtype=np.int8),
    "layerId": 1,
    "tokenOffset": [2, 1],
    "seqLen": [2, 1],
}
INDICES = np.zeros((2, 2, 8, 4), np.int32)
INT4 = {
    "cache": painted(2, 2, 8, 4, dtype=ml_dtypes.int4),
    "update": painted(2, 2, 1, 4, dtype=ml_dtypes.int4),
}
INT16 = {"past": painted(2, 2, 4, 6, dtype=np.int16), "newKv": painted(3, 6, dtype=np.int16)}
# The class, the kind, the argument, and a call with the arguments that cause the error.
CAUSED: list[tuple[type[errors.Error], str, str, Arguments]] = [
    (errors.ArrayError, "read_only", "cache", {**PADDED, "cache": read_only(painted(2, 2, 8, 4))}),
    (errors.ArrayError, "overlap", "cache", {**PADDED, "update": PADDED["cache"][:, :, 2:3]}),
    (
        errors.ArrayError,
        "overlap",
        "cache",
        {
            "cache": INDICES.view(np.float32),
            "update": painted(2, 2, 1, 4, dtype=np.float32),
            "writeIndices": INDICES.ravel()[:2],
        },
    ),
    (
        errors.ElementTypeError,
        "element_type_mismatch",
        "update",
        {**PADDED, "update": painted(2, 2, 1, 4, dtype=int)},
    ),
    (errors.ElementTypeError, "element_type", "cache", {**PADDED, **INT4}),
    (errors.ElementTypeError, "not_an_array", "cache", {**PADDED, "cache": [[1.0]]}),
    (errors.ElementTypeError, "not_integers", "writeIndices", {**PADDED, "writeIndices": None}),
    (errors.ElementTypeError, "not_integers", "writeIndices", {**PADDED, "writeIndices": [0.0, 1.0]}),
    (errors.ShapeError, "rank", "update", {**PADDED, "update": painted(2, 2, 4)}),
    (errors.ShapeError, "rank", "update", {**PADDED, "updateLengths": [0, 1, 2]}),
    (
        errors.ShapeError,
        "batch_too_large",
        "writeIndices",
        {**PACKED, "writeIndices": [0, 0, 0], "updateLengths": [0, 0, 0, 1]},
    ),
    (errors.PositionError, "list_length", "writeIndices", {**PACKED, "updateLengths": [0]}),
    (errors.PositionError, "list_length", "updateLengths", {**PACKED, "updateLengths": [0, 1]}),
    (errors.PositionError, "token_sum", "updateLengths", {**PACKED, "updateLengths": [0, 1, 2]}),
    (errors.PositionError, "integer_range", "updateLengths", {**PACKED, "updateLengths": [0, 1, 2**32 + 1]}),
    (errors.PositionError, "start_out_of_range", "writeIndices", {**PADDED, "writeIndices": [0, 8]}),
    (errors.PositionError, "negative_start", "writeIndices", {**PADDED, "writeIndices": [-1, 0]}),
    (errors.PositionError, "length_out_of_range", "lengths", {**PADDED, "lengths": [1, 2]}),
    (errors.OptionError, "choice", "out_of_range", {**PADDED, "out_of_range": "ignore"}),
    (
        errors.ArrayError,
        "read_only",
        "past",
        {**LAYERED, "past": read_only(painted(2, 2, 4, 6, dtype=np.int8))},
    ),
    (errors.ArrayError, "overlap", "past", {**LAYERED, "newKv": LAYERED["past"][0, 0, :3]}),
    (
        errors.ArrayError,
        "overlap",
        "past",
        {**LAYERED, "tokenOffset": LAYERED["past"].reshape(-1)[:2], "seqLen": [1, 2]},
    ),
    (
        errors.ElementTypeError,
        "element_type_mismatch",
        "newKv",
        {**LAYERED, "newKv": painted(3, 6, dtype=np.uint8)},
    ),
    (errors.ElementTypeError, "element_type", "past", {**LAYERED, **INT16}),
    (errors.ElementTypeError, "not_an_array", "newKv", {**LAYERED, "newKv": 3}),
    (errors.ElementTypeError, "not_integers", "layerId", {**LAYERED, "layerId": True}),
    (errors.ElementTypeError, "not_integers", "layerId", {**LAYERED, "layerId": None}),
    (errors.ElementTypeError, "not_integers", "tokenOffset", {**LAYERED, "tokenOffset": None}),
    (errors.ElementTypeError, "not_integers", "seqLen", {**LAYERED, "seqLen": [2.0, 1.0]}),
    (errors.ShapeError, "rank", "past", {**LAYERED, "past": painted(2, 4, 6, dtype=np.int8)}),
    (errors.ShapeError, "dimension_mismatch", "newKv", {**LAYERED, "newKv": painted(3, 5, dtype=np.int8)}),
    (errors.ShapeError, "hidden_size", "newKv", {**LAYERED, "newKv": painted(2, 1, 2, 2, dtype=np.int8)}),
    (errors.OptionError, "choice", "out_of_range", {**LAYERED, "out_of_range": "ignore"}),
    (errors.PositionError, "list_length", "layerId", {**LAYERED, "layerId": [0, 1]}),
    (errors.PositionError, "list_length", "layerId", {**LAYERED, "layerId": []}),
    (errors.PositionError, "layer_out_of_range", "layerId", {**LAYERED, "layerId": -1}),
    (errors.PositionError, "integer_range", "layerId", {**LAYERED, "layerId": 2**32}),
    (errors.PositionError, "integer_range", "layerId", {**LAYERED, "layerId": 2**64}),
    (errors.PositionError, "integer_range", "tokenOffset", {**LAYERED, "tokenOffset": [2, 2**32 + 1]}),
    (errors.PositionError, "integer_range", "seqLen", {**LAYERED, "seqLen": [2, 2**32 + 1]}),
    (errors.PositionError, "end_out_of_range", "tokenOffset", {**LAYERED, "tokenOffset": [2, 5]}),
    (errors.PositionError, "end_out_of_range", "tokenOffset", {**LAYERED, "tokenOffset": [1, 1]}),
    (
        errors.PositionError,
        "length_out_of_range",
        "seqLen",
        {**LAYERED, "tokenOffset": [3, 1], "seqLen": [3, 0]},
    ),
    (errors.PositionError, "length_out_of_range", "lengths", {**LAYERED, "lengths": [3, 0]}),
    (errors.PositionError, "token_sum", "seqLen", {**LAYERED, "seqLen": [1, 1]}),
]


@pytest.mark.parametrize(("of", "kind", "argument", "given"), CAUSED)
def test_after_an_error_no_array_has_changed(
    of: type[errors.Error], kind: str, argument: str, given: Arguments
) -> None:
    function = kvscatter.kv_cache_update_ if "cache" in given else kvscatter.kv_cache_operation_
    cache = next(iter(given.values()))
    before = np.array(cache)
    assert type(refused(kind, argument, function, **given)) is of
    np.testing.assert_array_equal(np.array(cache), before)

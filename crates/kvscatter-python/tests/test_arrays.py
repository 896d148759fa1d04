"""Checks which objects are accepted as arrays. Also checks the class, kind and argument of errors, which
change nothing."""

from __future__ import annotations

import threading
from collections import UserList
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvscatter
from support import bits, refused


@pytest.mark.parametrize("dtype", ["longlong", "ulonglong"])
def test_types_with_several_numbers_in_numpy_move_by_width(dtype: Any) -> None:
    cache = np.zeros((2, 3, 4, 5), dtype)
    update = (np.arange(30) % 7).reshape(2, 3, 1, 5).astype(dtype)
    expected = cache.copy()
    expected[0, :, 3:4], expected[1, :, 1:2] = update[0], update[1]
    assert kvscatter.tensor_scatter_(cache, update, [3, 1]) == 0
    assert bits(cache) == bits(expected)


def cache_and_update(dtype: Any = np.float32) -> tuple[Any, Any]:
    return np.zeros((2, 1, 4, 2), dtype), np.ones((2, 1, 1, 2), dtype)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.float8_e4m3, ml_dtypes.int2, "M8[s]", "U4", "S4", "V4", "f2,f2", "float128"]
)
def test_dtypes_that_onnx_does_not_have(dtype: Any) -> None:
    cache, update = np.zeros((2, 1, 4, 2), dtype), np.zeros((2, 1, 1, 2), dtype)
    error = refused("element_type", "cache", kvscatter.tensor_scatter_, cache, update, [0, 0])
    assert isinstance(error, TypeError)


def test_types_that_differ_although_their_widths_do_not() -> None:
    cache, _ = cache_and_update(ml_dtypes.int4)
    update = np.ones((2, 1, 1, 2), np.int8)
    error = refused("element_type_mismatch", "update", kvscatter.tensor_scatter_, cache, update, [0, 0])
    assert isinstance(error, kvscatter.ElementTypeError)
    assert isinstance(error, TypeError)


def test_another_machines_bytes() -> None:
    cache, update = cache_and_update(">f4")
    refused("byte_order", "cache", kvscatter.tensor_scatter_, cache, update, [0, 0])


def test_read_only_and_overlapping_caches_are_refused() -> None:
    cache, update = cache_and_update()
    cache.setflags(write=False)
    error = refused("read_only", "cache", kvscatter.tensor_scatter_, cache, update, [0, 0])
    assert isinstance(error, ValueError)
    write = kvscatter.prepare(cache, update)
    refused("read_only", "cache", write, cache, update, [0, 0])
    refused("read_only", "cache", write.many, [(cache, update)], [0, 0])
    refused("read_only", "out", write.into, cache, update, cache, [0, 0])
    assert not cache.any()
    shared = np.lib.stride_tricks.as_strided(np.zeros(8, np.float32), (2, 1, 4, 2), (0, 0, 8, 4))
    refused("cache_overlaps_itself", "cache", kvscatter.tensor_scatter_, shared, update, [0, 0])


def test_objects_without_memory_are_refused() -> None:
    cache, _ = cache_and_update()
    for nothing in (None, 3, [[1.0]], "text", b"bytes", object()):
        refused("not_an_array", "update", kvscatter.tensor_scatter_, cache, nothing, [0, 0])


def test_arguments_that_share_memory() -> None:
    whole = np.zeros((2, 1, 5, 2), np.float32)
    cache, inside = whole[:, :, :4], whole[:, :, 2:3]
    error = refused("overlap", "cache", kvscatter.tensor_scatter_, cache, inside, [0, 0])
    assert isinstance(error, kvscatter.ArrayError)
    cache, update = cache_and_update(np.int64)
    refused("overlap", "cache", kvscatter.tensor_scatter_, cache, update, cache[0, 0, 0])
    refused("overlap", "cache", kvscatter.prepare(cache, update), cache, update, cache[0, 0, 0])
    lengths = cache[1, 0, 1]
    refused("overlap", "cache", kvscatter.tensor_scatter_, cache, update, [0, 0], lengths=lengths)
    for twice in ([(cache, update), (cache, update)], [(cache[::1, :, ::-1], update)] * 2):
        refused("overlap", "cache", kvscatter.write_many, twice, [0, 0])
    other, new = cache_and_update(np.int64)
    inside = cache.reshape(-1)[4:8].reshape(update.shape)
    refused("overlap", "cache", kvscatter.write_many, [(cache, update), (other, inside)], [0, 0])
    present = np.zeros((2, 1, 4, 2), np.int64)
    refused("overlap", "out", kvscatter.tensor_scatter, present[:, :, ::-1], new, [0, 0], out=present)
    assert not cache.any()
    assert not present.any()


def test_masks_are_not_dropped_in_silence() -> None:
    cache, update = cache_and_update()
    write = kvscatter.prepare(cache, update)
    masked, indices = np.ma.array(update, mask=True), np.ma.array([3, 1], mask=[True, False])
    for call in (kvscatter.tensor_scatter_, write):
        refused("tensor", "update", call, cache, masked, [3, 1])
        refused("tensor", "cache", call, np.ma.array(cache), update, [3, 1])
        refused("tensor", "write_indices", call, cache, update, indices)
        assert not cache.any()
        call(cache.view(np.recarray), update.view(np.memmap), np.array([3, 1]).view(np.recarray))
        assert np.flatnonzero(cache[..., 0]).tolist() == [3, 5]
        cache[...] = 0


def test_strides_that_end_inside_an_element() -> None:
    records = np.zeros((2, 1, 4, 2), np.dtype([("a", np.int8), ("b", np.float32)]))
    error = refused(
        "strides", "cache", kvscatter.tensor_scatter_, records["b"], cache_and_update()[1], [0, 0]
    )
    assert error.itemsize == 4


def test_a_result_must_be_dense_and_of_the_past_s_shape() -> None:
    past, update = cache_and_update()
    out = np.zeros((2, 1, 4, 4), np.float32)[..., ::2]
    refused("not_contiguous", "out", kvscatter.tensor_scatter, past, update, [0, 0], out=out)
    refused("out_shape", "out", kvscatter.tensor_scatter, past, update, [0, 0], out=out[:1])
    wrong = np.zeros((2, 1, 4, 2), np.int32)
    refused("element_type_mismatch", "out", kvscatter.tensor_scatter, past, update, [0, 0], out=wrong)


class Index:
    def __index__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "indices",
    [
        [3, 1],
        (3, 1),
        range(3, 0, -2),
        [np.int8(3), Index()],
        np.array([3, 1]),
        np.array([3, 9, 1, 9])[::2],
        np.array([1, 3])[::-1],
        *(np.array([3, 1], t) for t in "bhilqBHILQ"),
    ],
)
def test_indices_of_every_kind(indices: Any) -> None:
    cache, update = cache_and_update()
    expected = cache.copy()
    expected[0, 0, 3], expected[1, 0, 1] = 1, 1
    for write in (kvscatter.tensor_scatter_, kvscatter.prepare(cache, update)):
        cache[...] = 0
        write(cache, update, indices)
        assert bits(cache) == bits(expected)


def test_more_indices_than_there_is_memory_for() -> None:
    with pytest.raises(MemoryError):
        kvscatter.tensor_scatter_(*cache_and_update(), np.broadcast_to(np.int64(3), 1 << 58))


@pytest.mark.parametrize(
    ("indices", "kind", "class_"),
    [
        ([3.0, 1], "not_integers", TypeError),
        ([True, False], "not_integers", TypeError),
        (np.array([True, False]), "not_integers", TypeError),
        (np.array([3.0, 1.0]), "not_integers", TypeError),
        (np.array(["3", "1"], object), "not_integers", TypeError),
        ("31", "not_integers", TypeError),
        (b"\3\1", "not_integers", TypeError),
        (3, "not_integers", TypeError),
        (np.int64(3), "not_integers", TypeError),
        ({3, 1}, "not_integers", TypeError),  # its order is not that of the samples
        ({3: 0, 1: 0}, "not_integers", TypeError),
        ((place for place in (3, 1)), "not_integers", TypeError),
        (np.array(3), "rank", ValueError),
        (np.array([[3, 1]]), "rank", ValueError),
        ([10**30, 0], "integer_range", IndexError),
        (np.array([2**64 - 1, 0], np.uint64), "integer_range", IndexError),
        ([3], "list_length", IndexError),
        ([], "list_length", IndexError),
        ([3, 4], "start_out_of_range", IndexError),
        ([-1, 0], "negative_start", IndexError),
        ([2**63 - 1, 0], "start_out_of_range", IndexError),
        (np.array([-(2**63), 0]), "negative_start", IndexError),
    ],
)
def test_indices_that_are_refused(indices: Any, kind: str, class_: type[Exception]) -> None:
    cache, update = cache_and_update()
    for write in (kvscatter.tensor_scatter_, kvscatter.prepare(cache, update)):
        with pytest.raises(class_) as caught:
            write(cache, update, indices)
        assert isinstance(caught.value, kvscatter.Error)
        assert (caught.value.kind, caught.value.argument) == (kind, "write_indices"), caught.value
    assert not cache.any()


def test_an_exception_of_the_sequence_itself_comes_through() -> None:
    class Own(Exception):
        pass

    class Numbers(UserList[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            raise Own

    with pytest.raises(Own):
        kvscatter.tensor_scatter_(*cache_and_update(), Numbers())


class Resizes:
    """An update or an index that moves the cache's memory when it is read, although the call borrows the
    cache."""

    def __init__(self, cache: Any, update: Any = None) -> None:
        self.cache, self.update = cache, update

    def take(self) -> None:
        self.cache.resize((1,) * self.cache.ndim, refcheck=False)

    def __index__(self) -> int:
        self.take()
        return 1

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **keywords: Any) -> Any:
        self.take()
        return self.update.__dlpack__(**keywords)


def test_memory_that_goes_while_another_argument_is_read() -> None:
    def taken(argument: str, call: Callable[[Any, Any], object]) -> None:
        cache, update = cache_and_update()
        refused("moved", argument, call, cache, update)
        assert cache.shape == (1, 1, 1, 1)

    other = cache_and_update()
    write = kvscatter.prepare(*other)
    taken("cache", lambda c, u: kvscatter.tensor_scatter_(c, Resizes(c, u), [3, 3]))
    taken("past_cache", lambda c, u: kvscatter.tensor_scatter(c, Resizes(c, u), [3, 3]))
    taken("cache", lambda c, u: kvscatter.write_many([(c, u), (other[0], Resizes(c, u))], [3, 3]))
    taken("cache", lambda c, u: write(c, Resizes(c, u), [3, 3]))
    taken("cache", lambda c, u: write.many([(c, u), (other[0], Resizes(c, u))], [3, 3]))
    taken("past_cache", lambda c, u: write.into(c, Resizes(c, u), other[0], [3, 3]))
    taken("cache", lambda c, u: kvscatter.kv_cache_update_(c, u, [Resizes(c), 3]))
    past, new = np.zeros((1, 1, 4, 2), np.float16), np.zeros((1, 2), np.float16)
    refused("moved", "past", kvscatter.kv_cache_operation_, past, new, 0, [Resizes(past)], [1])


def test_the_interpreter_runs_other_threads_during_a_large_write() -> None:
    cache = np.zeros((1, 64, 1 << 20), np.uint8)
    update = np.ones_like(cache)
    ticks, done = [0], threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        before = ticks[0]
        for _ in range(20):
            kvscatter.tensor_scatter_(cache, update, [0])
        during = ticks[0] - before
    finally:
        done.set()
        thread.join()
    assert cache.all()
    assert during > 0

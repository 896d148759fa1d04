"""Tests what a prepared write checks in each call, and what it does not need to check."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kvscatter
from kvscatter import _native
from support import refused


def test_prepared_from_shapes_or_from_arrays_it_is_the_same() -> None:
    cache, update = np.zeros((2, 3, 8, 4), ml_dtypes.bfloat16), np.ones((2, 3, 2, 4), ml_dtypes.bfloat16)
    for write in (
        kvscatter.prepare(cache, update, mode="circular"),
        kvscatter.prepare(cache.shape, update.shape, dtype=cache.dtype, mode="circular"),
        kvscatter.prepare(list(cache.shape), update.shape, dtype="bfloat16", mode="circular"),
    ):
        cache[...] = 0
        assert write(cache, update, [7, -1]) == 0
        assert np.flatnonzero(cache[1, 2, :, 3].astype(np.float32)).tolist() == [0, 7]
        assert repr(write) == "<kvscatter.Prepared: bfloat16 (2, 3, 2, 4) into bfloat16 (2, 3, 8, 4)>"


def test_shapes_need_a_dtype_and_arrays_have_one() -> None:
    cache, update = np.zeros((1, 4, 2)), np.ones((1, 1, 2))
    for call in (
        lambda: kvscatter.prepare((1, 4, 2), (1, 1, 2)),
        lambda: kvscatter.prepare(cache, update, dtype=np.float64),
    ):
        refused("dtype_keyword", "dtype", call, of=kvscatter.OptionError)
    shapes = (1, 4, 2), (1, 1, 2)
    refused(
        "dimension", "cache", kvscatter.prepare, (1, -4, 2), shapes[1], dtype="f8", of=kvscatter.ShapeError
    )
    error = refused(
        "element_type", "dtype", kvscatter.prepare, *shapes, dtype="f9", of=kvscatter.ElementTypeError
    )
    assert error.fields == {"dtype": "f9"}


def test_a_dtype_of_ml_dtypes_by_name_before_anybody_has_imported_it() -> None:
    script = "import kvscatter; print(kvscatter.prepare((2, 4, 2), (2, 1, 2), dtype='bfloat16'))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "<kvscatter.Prepared: bfloat16 (2, 1, 2) into bfloat16 (2, 4, 2)>\n"
    with pytest.raises(kvscatter.ShapeError):
        kvscatter.prepare((2**62, 4, 2), (2**62, 1, 2), dtype=np.float64)


@pytest.mark.parametrize(
    ("cache", "update", "argument", "what"),
    [
        (np.zeros((2, 4, 2), np.float16), np.ones((1, 1, 2), np.float16), "cache", "shape"),
        (np.zeros((1, 4, 2), np.float32), np.ones((1, 1, 2), np.float16), "cache", "dtype"),
        (np.zeros((1, 4, 2), np.int16), np.ones((1, 1, 2), np.float16), "cache", "dtype"),
        (
            np.zeros((1, 2, 4), np.float16).mT,
            np.ones((1, 1, 2), np.float16),
            "cache",
            "strides (in elements)",
        ),
        (np.zeros((1, 4, 2), np.float16), np.ones((1, 2, 2), np.float16), "update", "shape"),
        (np.zeros((1, 4, 2), np.float16), np.ones((1, 1, 2), np.int16), "update", "dtype"),
        (
            np.zeros((1, 4, 2), np.float16),
            np.ones((1, 1, 4), np.float16)[..., ::2],
            "update",
            "strides (in elements)",
        ),
    ],
)
def test_arrays_that_it_was_not_prepared_for(cache: Any, update: Any, argument: str, what: str) -> None:
    write = kvscatter.prepare((1, 4, 2), (1, 1, 2), dtype=np.float16)
    of = kvscatter.ElementTypeError if what == "dtype" else kvscatter.ShapeError
    calls = [
        lambda: write(cache, update, [0]),
        lambda: write.many(
            [(np.zeros((1, 4, 2), np.float16), np.ones((1, 1, 2), np.float16)), (cache, update)], [0]
        ),
    ]
    for call in calls:
        error = refused("prepared", argument, call)
        assert (type(error), error.what) == (of, what)
    assert not cache.any()


def test_it_is_its_own_copy() -> None:
    write = kvscatter.prepare((1, 4, 2), (1, 1, 2), dtype=np.float16)
    assert copy.copy(write) is write and copy.deepcopy({"write": write})["write"] is write


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int4", "object"])
def test_it_can_be_pickled(dtype: Any) -> None:
    fill = "row" if dtype == "object" else 1
    caches = [np.full((2, 4, 3), 0 * fill, dtype)[:, ::-1] for _ in range(2)]
    update = np.full((2, 1, 3), fill, dtype)
    write = kvscatter.prepare(
        caches[0], update, axis=1, mode="circular", negative_index="reject", out_of_range="skip"
    )
    again = pickle.loads(pickle.dumps(write))
    assert repr(again) == repr(write)
    assert [call(cache, update, [5, -1]) for call, cache in zip((write, again), caches, strict=True)] == [
        1,
        1,
    ]
    assert caches[0][0, 1, 0] == update[0, 0, 0] and (caches[0] == caches[1]).all()


def test_a_damaged_pickle_is_an_error() -> None:
    _, state = kvscatter.prepare((1, 4, 2), (1, 1, 2), dtype=np.float16).__reduce__()
    cache = state[0]
    for damaged in (
        ("float17", *cache[1:]),
        (cache[0], "wide", *cache[2:]),
        (*cache[:3], [8]),
        (*cache[:2], [2**62, 4, 2], cache[3]),
        (*cache[:3], [8, 0, 1]),
        (*cache[:2], [1, 4, 3], cache[3]),
    ):
        with pytest.raises(ValueError):
            _native.restore_prepared(damaged, *state[1:])


def test_signature_and_help_show_the_call() -> None:
    write = kvscatter.prepare((1, 4, 2), (1, 1, 2), dtype=np.float16)
    assert str(inspect.signature(write)) == "(cache, update, write_indices=None, lengths=None)"
    shown = pydoc.plain(pydoc.render_doc(write))
    assert "__call__ = write(self, /, cache, update, write_indices=None, lengths=None)" in shown
    cache, update = np.zeros((1, 4, 2), np.float16), np.ones((1, 1, 2), np.float16)
    assert write(cache=cache, update=update, write_indices=[1]) == write.write(cache, update, [1]) == 0
    assert np.flatnonzero(cache).tolist() == [2, 3]


def test_strides_along_one_element_do_not_count() -> None:
    write = kvscatter.prepare((1, 1, 4, 2), (1, 1, 1, 2), dtype=np.float16)
    cache = np.zeros((3, 5, 4, 2), np.float16)[1:2, 2:3]
    update = np.ones((1, 1, 9, 2), np.float16)[:, :, 4:5]
    assert write(cache, update, [2]) == 0
    assert np.flatnonzero(cache).tolist() == [4, 5]


def test_many_is_all_or_nothing() -> None:
    caches = [np.zeros((2, 4, 2), np.float16) for _ in range(4)]
    updates = [np.full((2, 1, 2), n + 1, np.float16) for n in range(4)]
    write = kvscatter.prepare(caches[0], updates[0])
    assert write.many(zip(caches, updates, strict=True), [1, 3]) == 0
    assert [cache[1, 3, 0] for cache in caches] == [1, 2, 3, 4]
    before = [cache.copy() for cache in caches]
    caches[3].setflags(write=False)
    for call in (
        lambda: write.many(zip(caches, updates, strict=True), [0, 0]),
        lambda: kvscatter.write_many(list(zip(caches, updates, strict=True)), [0, 0]),
        lambda: write.many(zip(caches[:3], updates[:3], strict=True), [0, 4]),
    ):
        with pytest.raises(kvscatter.Error):
            call()
        assert all((old == new).all() for old, new in zip(before, caches, strict=True))
    assert write.many([], [0, 0]) == 0
    assert kvscatter.write_many([], [0, 0]) == 0
    for nonsense in ([(caches[0],)], [caches[0]]):
        error = refused("not_a_pair", "pairs", write.many, nonsense, [0, 0], of=kvscatter.ElementTypeError)
        assert re.match(r"pairs\[0\] is of type .*: must be a tuple of", str(error))
    with pytest.raises(TypeError):
        write.many(3, [0, 0])  # type: ignore[arg-type]


def test_the_timed_call_is_the_prepared_one() -> None:
    write = kvscatter.prepare((1, 64, 8), (1, 1, 8), dtype=np.int8)
    cache, update = np.zeros((1, 64, 8), np.int8), np.ones((1, 1, 8), np.int8)
    assert _native.time_rust_call(write, cache, update, [5], 1) > 0
    assert cache[0, 5].all()
    with pytest.raises(kvscatter.ShapeError):
        _native.time_rust_call(write, cache[:, :6], update, [63], 1)


def test_threads_share_a_prepared_write() -> None:
    write = kvscatter.prepare((1, 64, 4096), (1, 1, 4096), dtype=np.float32)
    cache = np.zeros((1, 64, 4096), np.float32)

    def fill(slot: int) -> int:
        return write(cache, np.full((1, 1, 4096), slot, np.float32), [slot])

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(fill, range(64))) == 0
    assert (cache == np.arange(64)[None, :, None]).all()

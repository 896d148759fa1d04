"""Tests strings, whose references must be counted correctly in every case."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import kvscatter
from support import refused


def strings(*shape: int, prefix: str) -> Any:
    count = int(np.prod(shape))
    return np.array([f"{prefix} {n} {id(shape)}" for n in range(count)], object).reshape(shape)


def test_references_move_with_the_strings() -> None:
    cache, update = strings(2, 4, 1, prefix="old"), strings(2, 1, 1, prefix="new")
    old, kept, new = cache[0, 2, 0], cache[0, 1, 0], update[0, 0, 0]
    counts = [sys.getrefcount(text) for text in (old, kept, new)]
    for _ in range(100):
        kvscatter.tensor_scatter_(cache, update, [2, 0])
    assert cache[0, 2, 0] is new
    assert cache[1, 0, 0] is update[1, 0, 0]
    assert [sys.getrefcount(text) for text in (old, kept, new)] == [counts[0] - 1, counts[1], counts[2] + 1]
    for _ in range(100):
        present = kvscatter.tensor_scatter(cache, update, [1, 1])
        kvscatter.tensor_scatter(cache, update, [0, 0], out=present)
    del present
    assert [sys.getrefcount(text) for text in (old, kept, new)] == [counts[0] - 1, counts[1], counts[2] + 1]


def test_an_empty_object_array_is_a_cache() -> None:
    cache = np.empty((1, 3, 1), object)
    kvscatter.tensor_scatter_(cache, np.array([[["κ"]]], object), [1])
    assert cache.ravel().tolist() == [None, "κ", None]


def test_only_strings_are_written() -> None:
    cache = np.full((1, 3, 1), "old", object)
    for value in (None, 3, b"bytes", ["list"]):
        update = np.empty((1, 1, 1), object)
        update[0, 0, 0] = value
        refused(
            "not_a_string",
            "update",
            kvscatter.tensor_scatter_,
            cache,
            update,
            [1],
            of=kvscatter.ElementTypeError,
        )
    assert cache.ravel().tolist() == ["old"] * 3


def test_finalizers_of_what_is_written_over_see_whole_arrays() -> None:
    seen = []

    class Watcher(str):
        def __del__(self) -> None:
            seen.append(cache.ravel().tolist())

    cache = np.empty((1, 3, 1), object)
    cache[0, :, 0] = [Watcher("a"), Watcher("b"), "c"]
    kvscatter.tensor_scatter_(cache, np.array([[["x"], ["y"]]], object), [0])
    assert seen == [["x", "y", "c"]] * 2


def test_many_and_overlap() -> None:
    keys, values = strings(1, 3, 1, prefix="k"), strings(1, 3, 1, prefix="v")
    new = strings(1, 1, 1, prefix="new")
    assert kvscatter.write_many([(keys, new), (values, new)], [1]) == 0
    assert keys[0, 1, 0] is values[0, 1, 0] is new[0, 0, 0]
    for pairs in ([(keys, keys[:, :1])], [(keys, new), (keys, new)], [(keys, new), (values, keys[:, :1])]):
        refused("overlap", "cache", kvscatter.write_many, pairs, [0], of=kvscatter.ArrayError)
    write = kvscatter.prepare(keys, new)
    with pytest.raises(kvscatter.PositionError):
        write(keys, new, [3])
    assert write(keys, new, [2]) == 0
    with pytest.raises(kvscatter.ArrayError):
        write.into(keys, new, keys, [0])

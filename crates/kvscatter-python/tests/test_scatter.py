"""Runs every operator on the oracle's cases: in place, functional, prepared, dense and strided. Compares
whole buffers."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest

import kvscatter
from kvscatter import testing
from support import bits, in_place, refused, strided

EXTENSIONS = ("lengths", "out_of_range", "negative_index")


def test_a_strided_cache_is_written_in_place_and_nothing_beside_it() -> None:
    rng = random.Random(5)
    strange, seen = 0, set()
    for case in testing.cases(12, 2000, extensions=EXTENSIONS):
        (cache, canvas), (update, _) = strided(case.cache, rng), strided(case.update, rng)
        before = canvas.copy()
        try:
            skipped = in_place(case, cache, update)
        except kvscatter.ArrayError as refused:
            # Layouts that need more than three loops raise an error and are never copied.
            assert refused.kind in ("too_many_loops", "cache_overlaps_itself"), case
            strange += 1
            assert bits(canvas) == bits(before), case
            continue
        except kvscatter.Error:
            assert case.refusal is not None, case
            assert bits(canvas) == bits(before), case
            continue
        assert case.expected is not None and skipped == case.skipped, case
        assert bits(cache) == bits(case.expected) and bits(update) == bits(case.update), case
        cache[...] = case.cache
        assert bits(canvas) == bits(before), case
        seen.add(cache.dtype)
    assert strange < 200 and len(seen) == 24


def test_the_functional_form_leaves_its_arguments_alone() -> None:
    for case in testing.cases(
        13, 1500, operators=["tensor_scatter"], extensions=("lengths", "negative_index")
    ):
        past, update = case.cache.copy(), case.update.copy()
        others = {
            name: value for name, value in case.arguments.items() if name not in ("past_cache", "update")
        }
        if case.refusal is not None:
            with pytest.raises(kvscatter.Error):
                kvscatter.tensor_scatter(past, update, **others)
        else:
            present = kvscatter.tensor_scatter(past, update, **others)
            out = np.empty_like(past)
            assert kvscatter.tensor_scatter(past, update, out=out, **others) is out
            for result in (present, out):
                assert result.dtype == past.dtype
                assert result.shape == past.shape
                assert case.expected is not None
                assert bits(result) == bits(case.expected), case
            assert not np.shares_memory(present, past)
            kvscatter.tensor_scatter(past, update, out=past, **others)
            assert bits(past) == bits(case.expected), case
            past = case.cache
        assert bits(past) == bits(case.cache), case
        assert bits(update) == bits(case.update), case


def test_prepared_once_it_writes_every_case_of_its_shape() -> None:
    for case in testing.cases(14, 1500, operators=["tensor_scatter"], extensions=EXTENSIONS):
        arguments = dict(case.arguments)
        calls = {name: arguments.pop(name, None) for name in ("write_indices", "lengths")}
        cache, update = arguments.pop("past_cache").copy(), arguments.pop("update")
        try:
            write = kvscatter.prepare(cache, update, **arguments)
            skipped = write(cache, update, **calls)
        except kvscatter.Error:
            assert case.refusal is not None, case
            assert bits(cache) == bits(case.cache), case
            continue
        assert case.expected is not None, case
        assert skipped == case.skipped
        assert bits(cache) == bits(case.expected), case
        present = np.empty_like(cache)
        assert write.into(case.cache, update, present, **calls) == case.skipped
        assert bits(present) == bits(case.expected), case
        keys, values = case.cache.copy(), case.cache.copy()
        assert write.many([(keys, update), (values, update)], **calls) == case.skipped
        assert bits(keys) == bits(values) == bits(case.expected), case


def test_options_that_do_not_exist_are_refused() -> None:
    cache, update = np.zeros((1, 4, 2)), np.ones((1, 1, 2))
    calls = [
        partial(call, cache, update)
        for call in (kvscatter.tensor_scatter_, kvscatter.prepare, kvscatter.plan)
    ]
    for call in calls:
        for argument in ("mode", "out_of_range", "negative_index"):
            for value in (None, 3, b"linear"):
                refused("keyword_type", argument, call, **{argument: value}, of=kvscatter.ElementTypeError)
            error = refused("choice", argument, call, **{argument: "ring"}, of=kvscatter.OptionError)
            assert error.value == "ring"
        refused("axis_is_batch", "axis", call, axis=0)
        for axis in (3, -4, 2**63, -(2**70)):
            refused("axis_out_of_range", "axis", call, axis=axis)
        for axis in (True, np.True_, 1.0, None, "1"):
            refused("keyword_type", "axis", call, axis=axis, of=kvscatter.ElementTypeError)
    assert not cache.any()
    assert calls[0](axis=np.int8(1)) == 0 and cache[:, 0].all()

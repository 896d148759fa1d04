"""Checks that plans describe what a write does."""

from __future__ import annotations

import base64
import copy
import inspect
import pickle
import re
import threading
import xml.etree.ElementTree as ET
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import kvscatter
from kvscatter import Block, Loop, Plan, Segment, errors
from support import refused

Array = NDArray[Any]


def painted(*shape: int, dtype: Any = np.int32, first: int = 1) -> Array:
    return np.arange(first, first + int(np.prod(shape)), dtype=dtype).reshape(shape)


def carried_out(plan: Plan, cache: Array, update: Array) -> Array:
    """Returns a dense cache after copying the blocks of a plan."""
    cache, update = cache.copy(), update.copy()
    flat, new = cache.reshape(-1), update.reshape(-1)
    for block in plan.blocks:
        for at in product(*(range(loop.count) for loop in block.loops)):
            steps = list(zip(at, block.loops, strict=True))
            dst = block.dst_offset + sum(step * loop.dst_stride for step, loop in steps)
            src = block.src_offset + sum(step * loop.src_stride for step, loop in steps)
            flat[dst : dst + block.len] = new[src : src + block.len]
    return cache


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(
    ("cache_shape", "update_shape", "axis"),
    [
        ((3, 2, 8, 4), (3, 2, 3, 4), -2),
        ((3, 8, 2, 4), (3, 3, 2, 4), 1),
        ((3, 2, 4, 8), (3, 2, 4, 3), -1),
        ((3, 8), (3, 3), 1),
    ],
)
def test_the_blocks_are_the_write(mode: Any, cache_shape: Any, update_shape: Any, axis: int) -> None:
    starts = np.array([0, 5, 7 if mode == "circular" else 2])
    cache, update = painted(*cache_shape), painted(*update_shape, first=1000)
    plan = kvscatter.plan(cache, update, starts, axis=axis, mode=mode)
    want = cache.copy()
    kvscatter.tensor_scatter_(want, update, starts, axis=axis, mode=mode)
    np.testing.assert_array_equal(carried_out(plan, cache, update), want)
    assert sum(block.elements for block in plan.blocks) == plan.elements == update.size
    assert plan.bytes == update.nbytes
    assert plan.write(cache, update) == 0
    np.testing.assert_array_equal(cache, want)


def test_offsets_count_from_the_lowest_address() -> None:
    memory, update = painted(1, 4, 2), painted(1, 1, 2, first=100)
    plan = kvscatter.plan(memory[:, ::-1], update, [1])
    assert plan.blocks == [Block(len=2, dst_offset=4, src_offset=0, loops=())]
    want = memory.copy()
    want[0, 2] = update[0, 0]
    plan.write(memory[:, ::-1], update)
    np.testing.assert_array_equal(memory, want)


def test_loops_that_repeat_are_listed() -> None:
    plan = kvscatter.plan((1, 2, 3, 4, 5), (1, 2, 3, 1, 5), [2], dtype=np.float32)
    assert plan.blocks == [
        Block(len=5, dst_offset=10, src_offset=0, loops=(Loop(count=6, dst_stride=20, src_stride=5),))
    ]


def test_segments_are_slots() -> None:
    plan = kvscatter.plan(
        (3, 1, 8, 2), (3, 1, 3, 2), [1, 6, 0], mode="circular", lengths=[3, 3, 0], dtype="f4"
    )
    assert plan.segments == [Segment(0, 1, 0, 3), Segment(1, 6, 0, 2), Segment(1, 0, 2, 1)]


def test_shapes_and_arrays_make_the_same_plan() -> None:
    cache, update = painted(2, 1, 8, 3), painted(2, 1, 2, 3)
    one = kvscatter.plan(cache, update, [1, 3])
    other = kvscatter.plan(cache.shape, update.shape, [1, 3], dtype=cache.dtype)
    prepared = kvscatter.prepare(cache, update).plan([1, 3])
    assert one.blocks == other.blocks == prepared.blocks
    assert str(one) == str(other) == str(prepared)


def test_absent_positions_are_zero() -> None:
    plan = kvscatter.plan((2, 4, 1), (2, 1, 1), dtype="int8")
    assert [segment.slot for segment in plan.segments] == [0, 0]


def test_a_plan_keeps_its_own_positions() -> None:
    starts, lengths = np.array([1, 2]), np.array([2, 1], np.int32)
    cache, update = painted(2, 4, 1), painted(2, 2, 1, first=100)
    plan = kvscatter.plan(cache, update, starts, lengths=lengths)
    starts[:], lengths[:] = 100, 100
    assert plan.write(cache, update) == 0
    np.testing.assert_array_equal(cache[..., 0], [[1, 100, 101, 4], [5, 6, 102, 8]])


def test_a_plan_serves_keys_and_values_and_threads() -> None:
    update = painted(2, 8, 4, 64, dtype=np.float32)
    caches = [np.zeros((2, 8, 32, 64), np.float32) for _ in range(4)]
    plan = kvscatter.plan(caches[0], update, [1, 28])
    threads = [threading.Thread(target=plan.write, args=(cache, update)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want = np.zeros((2, 8, 32, 64), np.float32)
    want[0, :, 1:5], want[1, :, 28:32] = update
    for cache in caches:
        np.testing.assert_array_equal(cache, want)


def test_skipped_samples_are_counted_and_drawn() -> None:
    cache, update = painted(3, 4, 1), painted(3, 1, 1, first=100)
    plan = kvscatter.plan(cache, update, [0, 4, 3], out_of_range="skip")
    assert (plan.skipped, plan.elements, plan.bytes) == (1, 2, 8)
    assert repr(plan) == "<kvscatter.Plan: 2 elements (8 bytes) in 2 blocks, 1 sample skipped>"
    assert "4  xxxx  skipped" in plan.text(width=4, ascii=True)
    assert plan.write(cache, update) == 1
    np.testing.assert_array_equal(cache[..., 0], [[100, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 102]])


def test_strings_have_no_bytes() -> None:
    cache = np.array([["a", "b"]], object)
    plan = kvscatter.plan(cache, np.array([["c"]], object), [1], axis=1)
    assert (plan.elements, plan.bytes, repr(plan)) == (1, None, "<kvscatter.Plan: 1 element in 1 block>")
    plan.write(cache, np.array([["d"]], object))
    assert cache.tolist() == [["a", "d"]]


@pytest.mark.parametrize(
    ("of", "kind", "arguments", "options"),
    [
        (errors.PositionError, "start_out_of_range", ((1, 4, 1), (1, 1, 1), [4]), {}),
        (errors.PositionError, "length_out_of_range", ((1, 4, 1), (1, 1, 1), [0]), {"lengths": [2]}),
        (errors.PositionError, "list_length", ((1, 4, 1), (1, 1, 1), []), {}),
        (errors.ShapeError, "rank_mismatch", ((1, 4, 1), (1, 1), [0]), {}),
        (errors.OptionError, "axis_is_batch", ((1, 4, 1), (1, 1, 1), [0]), {"axis": 0}),
        (errors.OptionError, "choice", ((1, 4, 1), (1, 1, 1), [0]), {"mode": "ring"}),
        (
            errors.PositionError,
            "negative_start",
            ((1, 4, 1), (1, 1, 1), [-1]),
            {"mode": "circular", "negative_index": "reject"},
        ),
    ],
)
def test_a_plan_that_cannot_be_is_refused(of: Any, kind: str, arguments: Any, options: Any) -> None:
    with pytest.raises(errors.Error) as caught:
        kvscatter.plan(*arguments, dtype="float16", **options)
    assert (type(caught.value), caught.value.kind) == (of, kind)


def test_arrays_of_another_shape_or_type_are_refused() -> None:
    plan = kvscatter.plan((1, 4, 2), (1, 1, 2), [0], dtype="int32")
    for cache, update in [
        (painted(1, 5, 2), painted(1, 1, 2)),
        (painted(1, 4, 2), painted(1, 2, 2)),
        (painted(1, 4, 2, dtype=np.int64), painted(1, 1, 2, dtype=np.int64)),
    ]:
        before = cache.copy()
        of = errors.ElementTypeError if cache.dtype == np.int64 else errors.ShapeError
        argument = "update" if cache.shape == (1, 4, 2) and of == errors.ShapeError else "cache"
        refused("prepared", argument, plan.write, cache, update, of=of)
        np.testing.assert_array_equal(cache, before)


def test_a_cache_that_shares_memory_with_its_update_is_refused() -> None:
    memory = painted(1, 4, 2)
    plan = kvscatter.plan(memory, memory[:, 1:2].copy(), [0])
    refused("overlap", "cache", plan.write, memory, memory[:, 1:2], of=errors.ArrayError)


def test_a_plan_is_its_own_copy() -> None:
    plan = ring()
    assert copy.copy(plan) is plan and copy.deepcopy({"plan": plan})["plan"] is plan


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_plan_can_be_pickled(protocol: int) -> None:
    strided = painted(2, 8, 6)[:, ::-2, 1:5], painted(2, 3, 9)[..., ::2][..., :4]
    skipping = kvscatter.plan((2, 4, 1), (2, 1, 1), [9, 0], out_of_range="skip", dtype="int8")
    rejecting = kvscatter.plan(*strided, [1, 3], lengths=[2, 0], mode="circular", negative_index="reject")
    for plan in (ring(), skipping, rejecting, kvscatter.plan((1, 2), (1, 2), axis=1, dtype="int4")):
        again = pickle.loads(pickle.dumps(plan, protocol))
        assert again == plan and hash(again) == hash(plan)
        assert (str(again), again.blocks, again.skipped) == (str(plan), plan.blocks, plan.skipped)
    again = pickle.loads(pickle.dumps(rejecting, protocol))
    expected, cache = strided[0].copy(), painted(2, 8, 6)[:, ::-2, 1:5]
    kvscatter.tensor_scatter_(expected, strided[1], [1, 3], lengths=[2, 0], mode="circular")
    assert again.write(cache, strided[1]) == 0
    np.testing.assert_array_equal(cache, expected)


def test_skipped_samples_are_named() -> None:
    plan = kvscatter.plan((4, 8, 1), (4, 2, 1), [6, 7, -1, 0], out_of_range="skip", dtype="int8")
    assert (plan.skipped, plan.skipped_samples) == (2, [1, 2])
    assert ring().skipped_samples == []


def test_equal_plans_copy_the_same_elements() -> None:
    forms = (2, 1, 8, 64), (2, 1, 3, 64)
    same = [
        kvscatter.plan(*forms, np.array([1, 6]), axis=2, mode="circular", dtype="float16"),
        kvscatter.plan(*forms, [9, -2], mode="circular", dtype="float16"),
        kvscatter.plan(*forms, [1, 6], lengths=[3, 3], mode="circular", dtype="float16"),
    ]
    assert {ring(), *same} == {ring()}
    others = [
        kvscatter.plan(*forms, [1, 5], mode="circular", dtype="float16"),
        kvscatter.plan(*forms, [1, 6], mode="circular", dtype="int16"),
        kvscatter.plan(*forms, [1, 6], lengths=[3, 2], mode="circular", dtype="float16"),
        kvscatter.plan((2, 1, 9, 64), forms[1], [1, 6], mode="circular", dtype="float16"),
        object(),
    ]
    assert all(ring() != other for other in others)
    # Nothing is copied here, but one of them skips a sample.
    nothing = kvscatter.plan((1, 4, 1), (1, 0, 1), [4], dtype="int8")
    assert nothing != kvscatter.plan((1, 4, 1), (1, 0, 1), [5], out_of_range="skip", dtype="int8")


def test_a_plan_of_a_huge_batch_is_compared_and_described_at_once() -> None:
    def huge(rows: int) -> Plan:
        return kvscatter.plan((2**40, 2, 3), (2**40, rows, 3), dtype="uint8")

    assert huge(1) == huge(1) and hash(huge(1)) == hash(huge(1))
    assert huge(1) != huge(2)
    assert repr(huge(1)) == f"<kvscatter.Plan: {3 * 2**40} elements ({3 * 2**40} bytes) in {2**40} blocks>"
    assert huge(1).skipped_samples == []


def ring() -> Plan:
    return kvscatter.plan((2, 1, 8, 64), (2, 1, 3, 64), [1, 6], mode="circular", dtype="float16")


def test_text_is_as_wide_as_it_is_asked_to_be() -> None:
    lines = ring().text(width=8, ascii=True).splitlines()
    assert lines[2:4] == ["     0              1  .###....  1-3", "     1              6  =.....##  6-7, 0"]
    assert str(ring()) == ring().text() == ring().text(width=80, samples=64)
    one = ring().text(samples=1)
    assert "1 more sample" in one


def test_a_picture_has_a_size_that_a_screen_could_have() -> None:
    plan = kvscatter.plan((4097, 20_000, 1), (4097, 1, 1), dtype="int8")
    assert str(inspect.signature(Plan.text)) == "(self, /, *, width=80, samples=64, ascii=False)"
    assert str(inspect.signature(Plan.svg)) == "(self, /, *, samples=64)"
    assert len(plan.text(width=4096, samples=1).splitlines()[2]) > 4000
    assert "1 more sample\n" in plan.text(width=2, samples=4096)
    keywords: tuple[tuple[Any, str], ...] = (
        (plan.text, "width"),
        (plan.text, "samples"),
        (plan.svg, "samples"),
    )
    unfit: tuple[Any, ...] = (-1, 0, 4097, 2**80)
    unlike: tuple[Any, ...] = (True, 2.5, None, "80")
    for draw, argument in keywords:
        for value in unfit:
            call = partial(draw, **{argument: value})
            error = refused("integer_range", argument, call, of=errors.OptionError)
            assert str(error) == f"{argument} = {value}: must be from 1 to 4096" and error.value == value
        for value in unlike:
            call = partial(draw, **{argument: value})
            refused("keyword_type", argument, call, of=errors.ElementTypeError)


def test_the_svg_is_a_document_that_says_what_it_shows() -> None:
    document = ET.fromstring(ring().svg())
    svg = "{http://www.w3.org/2000/svg}"
    assert document.tag == f"{svg}svg"
    assert document.findtext(f"{svg}title") == "2 samples × 8 slots"
    described = (document.findtext(f"{svg}desc") or "").split("\n")
    assert [line.strip() for line in described if line.strip()] == [
        "Sample 0, write_indices 1: written 1-3.",
        "Sample 1, write_indices 6: written 6-7, wrapped 0.",
    ]


def test_a_notebook_shows_the_svg_apart_from_the_page() -> None:
    html = ring()._repr_html_()
    figure = ET.fromstring(re.sub(r"(<img [^>]*)>", r"\1/>", html))
    assert figure.tag == "figure"
    (image, caption) = figure
    assert caption.text == image.get("alt") == "384 elements (768 bytes) in 3 blocks"
    kind, _, source = (image.get("src") or "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(source).decode() == ring().svg()


def test_a_large_batch_fits_a_notebook() -> None:
    plan = kvscatter.plan((64, 8, 1), (64, 1, 1), [0] * 64, dtype="int8")
    source = plan._repr_html_().partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(source).decode() == plan.svg(samples=16)
    assert "48 more samples" in plan.svg(samples=16)
    assert plan.svg().count(">sample ") == 64

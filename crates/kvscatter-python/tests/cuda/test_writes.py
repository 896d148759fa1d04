"""Checks on the oracle's cases that writes on the device have the results and the errors of the CPU."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any

import device
import numpy as np
import pytest
from device import Dlpack, Interface, Stream

import kvscatter
import support
from kvscatter import cuda
from kvscatter.testing import Case, cases

GUARD = 192


def is_exported(array: device.Array) -> bool:
    """Returns True if NumPy exports the dtype with both protocols. It does not export strings and types of
    ml_dtypes."""
    return array.dtype.isbuiltin == 1 and array.dtype != object


def guarded(array: device.Array) -> tuple[device.Array, device.Array]:
    """Returns the array on the device between guard bytes that must not change, and all of the memory."""
    canvas = device.memory(array.nbytes + 2 * GUARD, 0xA5)
    there = canvas[GUARD : GUARD + array.nbytes].view(array.dtype).reshape(array.shape)
    there[...] = array
    return there, canvas


def prepared(case: Case, wrap: Any, cache: device.Array, update: device.Array, **more: Any) -> cuda.Write:
    """Prepares the case on the device."""
    given = dict(case.arguments)
    lists = {name: wrap(device.copy(value)) for name, value in given.items() if isinstance(value, np.ndarray)}
    options = {"status": device.status(), **more}
    if given.get("lengths") is not None:
        options["lengths"] = lists["lengths"]
    pairs = [(wrap(cache), wrap(update))]
    if case.operator == "tensor_scatter":
        words = ("axis", "mode", "negative_index")
        options.update({word: given[word] for word in words if word in given})
        return cuda.prepare(pairs, lists.get("write_indices"), **options)
    if case.operator == "kv_cache_update":
        return cuda.prepare_kv_cache_update(
            pairs, lists["writeIndices"], lists.get("updateLengths"), **options
        )
    layer = wrap(device.copy(np.atleast_1d(np.asarray(given["layerId"], np.int32))))
    return cuda.prepare_kv_cache_operation(pairs, layer, lists["tokenOffset"], lists["seqLen"], **options)


@pytest.mark.parametrize("wrap", [Dlpack, Interface])
@pytest.mark.parametrize("operator", ["tensor_scatter", "kv_cache_update", "kv_cache_operation"])
def test_a_launch_does_the_same_as_the_cpu(operator: Any, wrap: Any) -> None:
    stream, found = Stream(), {"written": 0, "skipped": 0, "raised": 0, "refused": 0}
    drawn = cases(
        7, 400, operators=[operator], dtypes=None, extensions=["lengths", "out_of_range", "negative_index"]
    )
    for case in drawn:
        if not (is_exported(case.cache) and is_exported(case.update)):
            continue
        expected, update = case.cache.copy(), case.update
        (cache, canvas), (there, _) = guarded(case.cache), guarded(update)
        calm = Case(**{**vars(case), "arguments": {**case.arguments, "out_of_range": "skip"}})
        strict = Case(**{**vars(case), "arguments": {**case.arguments, "out_of_range": "error"}})
        raised: kvscatter.Error | None = None
        try:
            support.in_place(strict, case.cache.copy(), update)
        except kvscatter.Error as error:
            raised = error
        try:
            skipped = support.in_place(calm, expected, update)
        except kvscatter.Error:
            skipped = -1
        try:
            write = prepared(case, wrap, cache, there)
        except kvscatter.Error as error:
            # Errors in shapes and counts are raised before the launch, with the CPU's message.
            assert raised is not None, (case, error)
            assert (type(error), error.kind, str(error)) == (type(raised), raised.kind, str(raised)), case
            found["refused"] += 1
            continue
        write.launch(stream)
        stream.synchronize()
        assert (canvas[:GUARD] == 0xA5).all() and (canvas[GUARD + cache.nbytes :] == 0xA5).all(), case
        if skipped >= 0:
            assert support.bits(cache) == support.bits(expected), case
            assert write.status.read()[0] == skipped, case
        if raised is None:
            write.status.check()
            found["written"] += 1
            continue
        reported = support.refused(raised.kind, raised.argument, write.status.check, of=type(raised))
        assert (str(reported), reported.fields) == (str(raised), raised.fields), case
        found["skipped" if skipped >= 0 else "raised"] += 1
    assert min(found["written"], found["skipped"], found["refused"]) > 5, found


def test_keys_values_and_many_layers_are_one_launch() -> None:
    stream, rng = Stream(), np.random.default_rng(0)
    caches = [device.copy(np.zeros((3, 2, 16, 8), np.float16)) for _ in range(64)]
    updates = [device.copy(rng.random((3, 2, 1, 8)).astype(np.float16)) for _ in caches]
    starts = device.copy(np.array([4, 0, 15]))
    pairs = [(Dlpack(cache), Dlpack(update)) for cache, update in zip(caches, updates, strict=True)]
    write = cuda.prepare(pairs, Dlpack(starts), status=device.status())
    assert write.width == 16
    before = device.calls("cuLaunchKernel") if device.IS_FAKE else None
    write.launch(stream)
    if before is not None:
        assert device.calls("cuLaunchKernel") - before == 1
        assert not any(cache.any() for cache in caches), "a launch waits for nothing"
    stream.synchronize()
    for cache, update in zip(caches, updates, strict=True):
        expected = np.zeros_like(cache)
        kvscatter.tensor_scatter_(expected, update, starts)
        assert support.bits(cache) == support.bits(expected)


@device.only_fake
def test_a_launch_allocates_nothing_and_waits_for_nothing() -> None:
    cache, update = device.copy(np.zeros((2, 4, 8))), device.copy(np.ones((2, 1, 8)))
    stream = Stream()
    write = cuda.prepare([(Dlpack(cache), Dlpack(update))], status=device.status())
    forbidden = [
        "cuMemAlloc_v2",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cuMemcpyDtoH_v2",
        "cuModuleLoadData",
    ]
    before = [device.calls(name) for name in forbidden]
    for _ in range(3):
        write.launch(stream)
    assert [device.calls(name) for name in forbidden] == before
    stream.synchronize()


def test_a_graph_reads_its_positions_whenever_it_runs() -> None:
    cache, update = device.copy(np.zeros((2, 8, 4), np.float32)), device.copy(np.ones((2, 1, 4), np.float32))
    starts, stream = device.copy(np.array([0, 0], np.int32)), Stream()
    write = cuda.prepare([(Dlpack(cache), Dlpack(update))], Dlpack(starts), status=device.status())
    replay = stream.captured(lambda: write.launch(stream))
    stream.synchronize()
    assert not cache.any()
    expected = np.zeros_like(cache)
    for step in range(5):
        starts[:] = [step, 7 - step]
        update[:] = step + 1
        replay()
        stream.synchronize()
        kvscatter.tensor_scatter_(expected, update, starts)
        assert support.bits(cache) == support.bits(expected)
    starts[:] = [1, 8]
    for _ in range(2):
        replay()
    stream.synchronize()
    assert write.status.read() == cuda.StatusWords(2, first_sample=1, first_value=8), "once in each launch"
    error = support.refused("start_out_of_range", "write_indices", write.status.check)
    assert (error.index, error.value) == (1, 8)
    write.status.clear(stream)
    stream.synchronize()
    write.status.check()


def test_slots_of_a_paged_cache() -> None:
    cache, update = device.copy(np.zeros((1, 12, 2, 4), np.float32)), device.memory(3 * 32).view(np.float32)
    update = update.reshape(1, 3, 2, 4)
    update[0] = np.arange(1, 4).reshape(3, 1, 1)
    slots, stream = device.copy(np.array([7, -1, 2])), Stream()
    write = cuda.prepare_slots([(Dlpack(cache), Dlpack(update))], Dlpack(slots), status=device.status())
    write.launch(stream)
    stream.synchronize()
    write.status.check()
    assert cache[0, :, 0, 0].tolist() == [0, 0, 3, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    slots[1] = 12
    write.launch(stream)
    stream.synchronize()
    error = support.refused("start_out_of_range", "slot_mapping", write.status.check)
    assert (error.index, error.value, error.capacity) == (1, 12, 12)

    def call(past: device.Array, new: device.Array, **options: Any) -> Any:
        pairs = [(Dlpack(past), Dlpack(new))]
        return lambda: cuda.prepare_slots(pairs, Dlpack(slots), status=device.status(), **options)

    error = support.refused(
        "slot_mapping", "update", call(cache.reshape(2, 6, 2, 4), np.repeat(update, 2, 0))
    )
    assert (error.got, error.expected) == (2, 1) and "[1, slots, ...]" in str(error)
    error = support.refused("dimension_mismatch", "update", call(cache[0], update[0]))
    assert str(error).endswith("; a slot mapping takes [1, slots, ...] and [1, tokens, ...]")
    error = support.refused("dimension_mismatch", "update", call(cache, update[..., :2]))
    assert "slots" not in str(error)
    heads_behind_slots = [(Dlpack(cache), Dlpack(update))]
    error = support.refused("dimension_mismatch", "update", cuda.prepare, heads_behind_slots)
    assert str(error).endswith("; if it is the sequence, set axis")


def test_a_present_is_its_past_with_the_update_in_it() -> None:
    rng, stream = np.random.default_rng(1), Stream()
    past, update = (device.copy(rng.random(shape).astype(np.float16)) for shape in ((3, 6, 8), (3, 2, 8)))
    present = device.copy(np.zeros_like(past))
    starts = device.copy(np.array([5, 0, 9]))
    write = cuda.prepare_present(
        [(Dlpack(past), Dlpack(update), Interface(present))],
        Dlpack(starts),
        mode="circular",
        status=device.status(),
    )
    write.launch(stream)
    stream.synchronize()
    write.status.check()
    expected = kvscatter.tensor_scatter(past, update, starts, mode="circular")
    assert support.bits(present) == support.bits(expected)
    twice = [(Dlpack(past), Dlpack(update), Dlpack(present)) for _ in range(2)]
    error = support.refused("overlap", "present", cuda.prepare_present, twice, status=device.status())
    assert {error.pair, error.with_pair} == {0, 1}
    within = [(Dlpack(past), Dlpack(update), Dlpack(past))]
    support.refused("overlap", "present", cuda.prepare_present, within, status=device.status())


def test_skip_all_writes_nothing_where_anything_is_bad() -> None:
    cache, update = device.copy(np.zeros((2, 4, 8))), device.copy(np.ones((2, 1, 8)))
    starts, stream = device.copy(np.array([0, 4])), Stream()
    pairs = [(Dlpack(cache), Dlpack(update))]
    for skip_all in (True, False):
        write = cuda.prepare(pairs, Dlpack(starts), skip_all=skip_all, status=device.status())
        write.launch(stream)
        stream.synchronize()
        assert bool(cache.any()) != skip_all
        assert write.status.read()[0] == 1


def test_strides_are_written_where_they_lie() -> None:
    whole, update = (
        device.copy(np.zeros((2, 9, 3, 8), np.float32)),
        device.copy(np.ones((2, 3, 1, 4), np.float32)),
    )
    cache, stream = whole[:, 1:, :, 2:6].transpose(0, 2, 1, 3), Stream()
    expected = copy.deepcopy(whole)
    kvscatter.tensor_scatter_(expected[:, 1:, :, 2:6].transpose(0, 2, 1, 3), update, [3, 7])
    for wrap in (Dlpack, Interface):
        whole[...] = 0
        write = cuda.prepare(
            [(wrap(cache), wrap(update))], wrap(device.copy(np.array([3, 7]))), status=device.status()
        )
        write.launch(stream)
        stream.synchronize()
        assert support.bits(whole) == support.bits(expected)


def test_a_status_that_the_caller_copies_is_read_without_the_device() -> None:
    cache, update = device.copy(np.zeros((3, 4, 8))), device.copy(np.ones((3, 2, 8)))
    starts, lengths, stream = device.copy(np.array([0, 3, 1])), device.copy(np.array([2, 2, 1])), Stream()
    there = device.status()
    pairs = [(Dlpack(cache), Dlpack(update))]
    write = cuda.prepare(pairs, Dlpack(starts), lengths=Dlpack(lengths), status=there)
    status = write.status
    assert status.array is there
    before = np.array(there.array)
    write.launch(stream)
    stream.synchronize()
    after = np.array(there.array)
    status.check(before)
    expected = support.refused(
        "start_out_of_range", "write_indices", status.check, of=kvscatter.PositionError
    )
    copies: list[Any] = [
        after,
        after.view(np.uint8),
        after.view(np.int32),
        status.read(),
        tuple(status.read()),
    ]
    starts[:], lengths[:] = 0, 0
    with device.failing("cuMemcpyDtoH_v2", 700) if device.IS_FAKE else nullcontext():
        for words in copies:
            error = support.refused("start_out_of_range", "write_indices", status.check, words)
            assert (str(error), error.fields) == (str(expected), expected.fields)
    error = support.refused("bad_indices", "write_indices", status.check, of=kvscatter.PositionError)
    assert (error.got, error.index, error.value) == (1, 1, 3)
    assert str(error).startswith(
        "bad indices in 1 sample since the status was cleared, first the position of sample 1: 3;"
    )
    support.refused("status_bytes", "words", status.check, after[:1], of=kvscatter.ShapeError)
    gaps = np.zeros(4, np.int64)[::2]
    support.refused("not_contiguous", "words", status.check, gaps, of=kvscatter.ArrayError)
    support.refused("device", "words", status.check, there, of=kvscatter.DeviceError)
    for bad in ((1, 2), (1, -1, 0), (1, "2", 3)):
        support.refused("keyword_type", "words", status.check, bad)

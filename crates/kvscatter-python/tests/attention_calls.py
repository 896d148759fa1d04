"""Random calls of attention with the results of the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from kvscatter import _native
from support import Array

FLOATS: dict[str, Any] = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
HALF_UNIT = {"float": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of rounding to a type. Float32 has the error of the sums instead."""


@dataclass
class Call:
    """A call with dense arrays, the result of the oracle, and the largest value that it sees."""

    arrays: dict[str, Array]
    numbers: dict[str, Any]
    options: dict[str, Any]
    expected: Array
    tolerance: Array


def random_call(seed: int) -> Call:
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = Sizes(rng)
    batch, kv_heads, slots = sizes.batch, sizes.kv_heads, sizes.slots
    heads = kv_heads * sizes.group
    name = rng.choice([*FLOATS])
    dtype = FLOATS[name]
    cache_type = rng.choice([dtype, dtype, *FLOATS.values(), np.int8])

    q = numbers.standard_normal((batch, heads, sizes.queries, sizes.size)).astype(dtype)
    shapes = [(batch, kv_heads, slots, size) for size in (sizes.size, sizes.value_size)]
    scales: list[Array] = []
    if cache_type is np.int8:
        kv = [numbers.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
        by_channel = rng.random() < 0.4
        scales = [
            numbers.uniform(0.001, 0.02, (kv_heads, shape[3]) if by_channel else shape[:3]).astype(np.float32)
            for shape in shapes
        ]
    else:
        kv = [numbers.standard_normal(shape).astype(cache_type) for shape in shapes]

    is_ring = sizes.block_size is None and slots > 0 and rng.random() < 0.3
    most = 3 * slots if is_ring else slots
    has_lengths = rng.random() < 0.85
    lengths = numbers.integers(0, most + 1, batch) if has_lengths else np.full(batch, slots)
    starts = numbers.integers(0, lengths + 3) if rng.random() < 0.3 else None
    causal = rng.random() < 0.7
    window = rng.choice([None, None, rng.randrange(1, slots + 3)])
    scale = rng.choice([None, None, float(np.float32(rng.uniform(0, 0.5)))])
    softcap = rng.choice([0.0, 0.0, 4.0])
    sink = numbers.standard_normal(heads).astype(dtype) if rng.random() < 0.25 else None
    mask = random_mask(rng, numbers, sizes, heads, dtype, has_lowest=sink is None)

    last = lengths[:, None] - 1
    positions = (
        last - (last - np.arange(slots)) % slots
        if is_ring
        else np.broadcast_to(np.arange(slots), (batch, slots))
    )
    begins = positions >= (np.zeros(batch, int) if starts is None else starts)[:, None]
    by_slot = full_mask(mask, begins, sizes)
    as_float64 = [dequantized(*them) for them in zip(kv, scales or [None, None], strict=True)]
    y, scores, attends = _native.oracle_attention(
        name,  # type: ignore[arg-type]
        q.astype(np.float64),
        as_float64[0],
        as_float64[1],
        [int(length) for length in lengths],
        is_ring,
        by_slot,
        (causal, -1 if window is None else window - 1, scale, softcap),
    )
    scores, attends = (it.reshape(*q.shape[:3], slots) for it in (scores, attends))
    expected = y.reshape(*q.shape[:3], sizes.value_size)
    if sink is not None:
        expected = expected * share_of_values(scores, attends, sink.astype(np.float64))[..., None]

    # Keys and values that no query sees have no influence.
    is_seen = attends.reshape(batch, kv_heads, sizes.group * sizes.queries, slots).any(2)
    largest = np.max(np.abs(as_float64[1]) * is_seen[..., None], axis=(1, 2, 3), initial=0)
    for array in kv if cache_type is not np.int8 else scales if scales[0].ndim == 3 else []:
        array[~is_seen] = np.nan

    arrays = {"q": q, "k": kv[0], "v": kv[1]}
    if scales:
        arrays |= {"k_scale": scales[0], "v_scale": scales[1]}
    if mask is not None:
        arrays["mask"] = mask
    if sink is not None:
        arrays["sink"] = sink
    if sizes.block_size is not None:
        first_seen = np.zeros(batch, int) if starts is None else starts
        if window is not None:
            first_seen = np.maximum(first_seen, lengths - sizes.queries - window + 1)
        into_blocks(rng, arrays, sizes, first_seen, lengths)
    kind = rng.choice([list, np.int32, np.int64])
    listed: Callable[[Array], Any] = (
        (lambda it: it.tolist()) if kind is list else (lambda it: it.astype(kind))
    )
    given = {
        "lengths": listed(lengths) if has_lengths else None,
        "starts": None if starts is None else listed(starts),
    }
    options = {"causal": causal, "window": window, "scale": scale, "softcap": softcap}
    options["mode"] = "circular" if is_ring else "linear"
    tolerance = 4e-6 * largest[:, None, None, None] + 1.01 * HALF_UNIT[name] * np.abs(expected) + 3e-8
    return Call(arrays, given, options, expected, tolerance)


class Sizes:
    """The sizes of a call. Most are small, and a few have rows for wide kernels, or several chunks of slots."""

    def __init__(self, rng: random.Random) -> None:
        self.batch, self.kv_heads, self.group = (
            rng.choice([0, 1, 1, 2, 3]),
            rng.randrange(1, 4),
            rng.randrange(1, 4),
        )
        self.queries = rng.choice([0, 1, 1, 1, 2, 5, 40])
        self.size, self.value_size = (rng.choice([1, 2, 7, 8, 16, 33]) for _ in range(2))
        self.block_size = rng.choice([None, None, 1, 4, 16])
        slots = rng.choice([0, 1, 5, 17, 40, 40]) if self.queries < 40 else rng.randrange(60)
        if rng.random() < 0.02:
            self.batch = self.kv_heads = self.group = 1
            slots = 2500
        self.per_sample = -(-slots // self.block_size) if self.block_size else 0
        self.slots = self.per_sample * self.block_size if self.block_size else slots


def random_mask(
    rng: random.Random,
    numbers: np.random.Generator,
    sizes: Sizes,
    heads: int,
    dtype: Any,
    *,
    has_lowest: bool,
) -> Array | None:
    kind = rng.choice([None, None, "bool", "float"])
    if kind is None:
        return None
    shape = [rng.choice([1, size]) for size in (sizes.batch, heads, sizes.queries)]
    shape = [*shape, rng.choice([sizes.slots, rng.randrange(sizes.slots + 1)])][rng.randrange(4) :]
    if kind == "bool":
        return np.asarray(numbers.random(shape) < 0.7)
    mask = numbers.standard_normal(shape).astype(dtype)
    mask[numbers.random(shape) < 0.2] = -np.inf
    if has_lowest:
        mask[numbers.random(shape) < rng.choice([0, 0.2, 1])] = ml_dtypes.finfo(dtype).min
    return mask


def full_mask(mask: Array | None, begins: Array, sizes: Sizes) -> Array:
    """Returns the mask of all slots, which also hides those before the first token."""
    begins = begins[:, None, None, :]
    if mask is None:
        return np.ascontiguousarray(begins)
    missing = sizes.slots - mask.shape[-1]
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    is_bool = mask.dtype == np.bool_
    hidden: Any = False if is_bool else -np.inf
    mask = np.pad(
        mask if is_bool else mask.astype(np.float64), [(0, 0)] * 3 + [(0, missing)], constant_values=hidden
    )
    return np.ascontiguousarray(np.where(begins, mask, hidden))


def dequantized(rows: Array, scales: Array | None) -> Array:
    if scales is None:
        return rows.astype(np.float64)
    scales = scales[:, None, :] if scales.ndim == 2 else scales[..., None]
    return np.asarray(rows.astype(np.float64) * scales)


def share_of_values(scores: Array, attends: Array, sink: Array) -> Array:
    """Returns the part of the weights of each row that its sink leaves."""
    seen = np.where(attends, scores, -np.inf)
    highest = np.maximum(seen.max(-1, initial=-np.inf), sink[:, None])
    total = np.exp(seen - highest[..., None]).sum(-1)
    return np.asarray(total / (total + np.exp(sink[:, None] - highest)))


def into_blocks(
    rng: random.Random, arrays: dict[str, Array], sizes: Sizes, first_seen: Array, lengths: Array
) -> None:
    """Moves the slots of each sample into blocks in any order, among others that no sample has."""
    block_size, per_sample, batch = sizes.block_size or 1, sizes.per_sample, sizes.batch
    count = batch * per_sample + rng.randrange(1, 3)
    tables = np.array(rng.sample(range(count), batch * per_sample), np.int64).reshape(batch, per_sample)
    for name in ("k", "v", "k_scale", "v_scale"):
        rows = arrays.get(name)
        if rows is None or rows.ndim == 2:
            continue
        blocks = np.full((count, rows.shape[1], block_size, *rows.shape[3:]), 77, rows.dtype)
        if rows.dtype != np.int8:
            blocks.fill(np.nan)
        split = rows.reshape(*rows.shape[:2], per_sample, block_size, *rows.shape[3:]).swapaxes(1, 2)
        blocks[tables.ravel()] = split.reshape(-1, *split.shape[2:])
        arrays[name] = blocks
    first = np.arange(per_sample) * block_size
    unseen = (first >= lengths[:, None]) | (first + block_size <= first_seen[:, None])
    tables[unseen] = rng.choice([-1, count, 2**31 - 1, -(2**31)])
    arrays["block_tables"] = tables.astype(rng.choice([np.int32, np.int64]))


def swapped(array: Array) -> Array:
    """Exchanges heads and rows."""
    return array.swapaxes(1, 2)

"""Writes paged caches, and attends to them as to caches of one block for each sample."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import kvscatter
from kvscatter import errors, paged
from support import Array, bits, refused, strided

LAYOUTS: list[Any] = ["bhsd", "bshd"]


def tables_of(rng: random.Random, samples: int, max_blocks: int, num_blocks: int) -> Array:
    """Returns block tables whose blocks all differ."""
    return np.array(rng.sample(range(num_blocks), samples * max_blocks), np.int32).reshape(
        samples, max_blocks
    )


def expected(cache: Array, update: Array, slots: Array, layout: str) -> Array:
    present = cache.copy()
    block_size = cache.shape[2 if layout == "bhsd" else 1]
    for token, slot in enumerate(slots):
        if slot >= 0:
            block, offset = divmod(int(slot), block_size)
            place = (block, slice(None), offset) if layout == "bhsd" else (block, offset)
            present[place] = update[token]
    return present


def test_slots_are_those_of_the_tables() -> None:
    rng = random.Random(3)
    for _ in range(300):
        samples, max_blocks, block_size = rng.randrange(4), rng.randrange(1, 4), rng.randrange(1, 5)
        num_blocks = samples * max_blocks + rng.randrange(3)
        tables = tables_of(rng, samples, max_blocks, num_blocks)
        seq_lens = [rng.randrange(max_blocks * block_size + 1) for _ in range(samples)]
        same = rng.randrange(min(seq_lens, default=0) + 1)
        for new_tokens in (same, [rng.randrange(length + 1) for length in seq_lens]):
            wanted = [
                tables[sample, t // block_size] * block_size + t % block_size
                for sample, length in enumerate(seq_lens)
                for t in range(length - (same if new_tokens is same else new_tokens[sample]), length)  # type: ignore[index]
            ]
            kind = rng.choice([np.int32, np.int64])
            slots = paged.slot_mapping(
                tables.astype(kind), seq_lens, new_tokens, block_size=block_size, num_blocks=num_blocks
            )
            assert slots.dtype == np.int64 and slots.tolist() == wanted


def test_bad_tables_and_lengths_are_refused() -> None:
    tables = np.array([[0, 1], [2, -1]])
    sizes = {"block_size": 2, "num_blocks": 3}
    for kind, argument, given in [
        ("rank", "block_tables", (tables[0], [1, 1], 1)),
        ("not_integers", "block_tables", (tables * 1.0, [1, 1], 1)),
        ("not_integers", "seq_lens", (tables, [1.0, 1], 1)),
        ("list_length", "block_tables", (tables, [1], 1)),
        ("list_length", "new_tokens", (tables, [1, 1], [1])),
        ("length_out_of_range", "seq_lens", (tables, [1, 5], 1)),
        ("length_out_of_range", "seq_lens", (tables, [1, 0], 1)),
        ("length_out_of_range", "new_tokens", (tables, [1, 1], [1, -1])),
        ("negative_size", "new_tokens", (tables, [1, 1], -1)),
        ("integer_range", "seq_lens", (tables, [1, 2**31], 1)),
        ("block_out_of_range", "block_tables", (tables, [1, 3], 1)),
        ("block_out_of_range", "block_tables", (np.full((1, 1), 2**40), [1], 1)),
    ]:
        refused(kind, argument, paged.slot_mapping, *given, **sizes)
    huge = {"block_size": 2**40, "num_blocks": 2**40}
    refused("too_large", "cache", paged.slot_mapping, tables, [1, 1], 1, **huge)
    wide = np.broadcast_to(np.int32(0), (2**40, 2**20))
    with pytest.raises(MemoryError):
        paged.slot_mapping(wide, [1], 1, **sizes)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, "ml_bfloat16", object])
def test_rows_go_to_their_slots_and_nothing_else_changes(layout: Any, dtype: Any) -> None:
    if dtype == "ml_bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    rng, numbers = random.Random(8), np.random.default_rng(8)
    for _ in range(60):
        blocks, heads, block_size, size = (rng.randrange(1, 5) for _ in range(4))
        shape = (blocks, heads, block_size, size) if layout == "bhsd" else (blocks, block_size, heads, size)
        tokens = rng.randrange(blocks * block_size + 1)
        values = [
            numbers.integers(-99, 99, shape).astype(str if dtype is object else dtype).astype(dtype)
            for shape in (shape, shape, (tokens, heads, size), (tokens, heads, size))
        ]
        slots = np.array(rng.sample(range(blocks * block_size), tokens), np.int64)
        hidden = [token for token in range(tokens) if rng.random() < 0.2]
        slots[hidden] = -1 - np.arange(len(hidden))
        order = random.Random(rng.random())
        (keys, canvas), (more, _) = strided(values[0], order), strided(values[1], random.Random(1))
        pairs = [(keys.copy(), values[2]), (values[1].copy(), values[3])]
        assert paged.write_(pairs, slots, layout=layout, skip_negative=True) == len(hidden)
        for (cache, update), old in zip(pairs, values[:2], strict=True):
            assert bits(cache) == bits(expected(old, update, slots, layout))
        before = canvas.copy()
        try:
            paged.write_([(keys, values[2])], slots, layout=layout, skip_negative=True)
        except errors.ArrayError as error:
            assert error.kind == "too_many_loops" and bits(canvas) == bits(before)
            continue
        assert bits(keys) == bits(expected(values[0], values[2], slots, layout))
        keys[...] = values[0]
        assert bits(canvas) == bits(before)
        assert more.shape == shape


def test_after_an_error_no_cache_has_changed() -> None:
    def caches() -> list[Array]:
        return [np.full((3, 1, 2, 2), 7, np.float32) for _ in range(2)]

    new = np.ones((2, 1, 2), np.float32)
    read_only = caches()[0]
    read_only.setflags(write=False)
    for kind, argument, pairs, slots, options in [
        ("slot_out_of_range", "slot_mapping", None, [0, 6], {}),
        ("slot_out_of_range", "slot_mapping", None, [0, 6], {"skip_negative": True}),
        ("negative_start", "slot_mapping", None, [0, -1], {}),
        ("duplicate_slot", "slot_mapping", None, [1, 1], {}),
        ("list_length", "slot_mapping", None, [1], {}),
        ("not_integers", "slot_mapping", None, [1, 2.0], {}),
        ("choice", "layout", None, [0, 1], {"layout": "nhd"}),
        ("dimension_mismatch", "update", None, [0, 1], {"layout": "bshd"}),
        ("rank", "cache", [(np.zeros((3, 2, 2), np.float32), new)], [0, 1], {}),
        ("rank", "update", [(caches()[0], new[0])], [0, 1], {}),
        ("element_type_mismatch", "update", [(caches()[0], new.astype(np.float16))], [0, 1], {}),
        ("read_only", "cache", [(read_only, new)], [0, 1], {}),
        ("not_a_pair", "pairs", [new], [0, 1], {}),
    ]:
        both = caches() if pairs is None else []
        given = pairs or [(cache, new) for cache in both]
        refused(kind, argument, paged.write_, given, slots, **options)
        assert all((cache == 7).all() for cache in both)
    first, second = caches()
    refused("prepared", "cache", paged.write_, [(first, new), (second[:2], new)], [0, 1])
    refused("overlap", "cache", paged.write_, [(first, new), (first, new)], [0, 1])
    slots = np.zeros(12, np.int64).view(np.float32)[:24].reshape(3, 1, 2, 4)
    row = np.ones((1, 1, 4), np.float32)
    refused("overlap", "cache", paged.write_, [(slots, row)], slots.reshape(-1)[:2].view(np.int64))
    assert (first == 7).all() and (second == 7).all()
    assert paged.write_([], [0]) == 0


def test_tensors_of_pytorch() -> None:
    # The folder of the tests of PyTorch has its name.
    torch = pytest.importorskip("torch._C") and pytest.importorskip("torch")
    cache = torch.zeros(3, 1, 2, 2, dtype=torch.bfloat16)
    new = torch.ones(2, 1, 2, dtype=torch.bfloat16)
    tables = torch.tensor([[2, 0], [1, 9]])
    slots = paged.slot_mapping(tables, torch.tensor([3, 1]), 1, block_size=2, num_blocks=3)
    assert slots.tolist() == [0, 2]
    assert paged.write_([(cache, new)], torch.from_numpy(slots)) == 0
    assert cache[:, 0, :, 0].tolist() == [[1, 0], [1, 0], [0, 0]]


def test_arrays_of_jax() -> None:
    jax = pytest.importorskip("jax.numpy")
    numbers, slots = np.zeros((3, 1, 2, 2), np.float32), [0, 2]
    assert paged.write_([(numbers, jax.ones((2, 1, 2)))], slots) == 0
    refused("immutable", "cache", paged.write_, [(jax.asarray(numbers), numbers[:2, :, 0])], slots)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_a_paged_decoder_has_the_bits_of_one_with_contiguous_caches(layout: Any, block_size: int) -> None:
    rng, numbers = random.Random(block_size), np.random.default_rng(block_size)
    samples, heads, kv_heads, size, capacity = 3, 4, 2, 8, 48
    max_blocks = -(-capacity // block_size)
    num_blocks = samples * max_blocks + 2
    tables = tables_of(rng, samples, max_blocks, num_blocks)

    def ordered(*shape: int) -> tuple[int, ...]:
        a, h, s, d = shape
        return shape if layout == "bhsd" else (a, s, h, d)

    flat = [np.full(ordered(samples, kv_heads, capacity, size), np.nan, np.float32) for _ in range(2)]
    pages = [np.full(ordered(num_blocks, kv_heads, block_size, size), np.nan, np.float32) for _ in range(2)]
    lengths = np.zeros(samples, np.int64)
    for rows in (5, 1, 1, 7, 1, 1):
        real = np.array([rng.randrange(1, rows + 1) for _ in range(samples)])
        new = [numbers.standard_normal((samples, rows, kv_heads, size)).astype(np.float32) for _ in range(2)]
        updates = [it.transpose(0, 2, 1, 3) if layout == "bhsd" else it for it in new]
        axis = 2 if layout == "bhsd" else 1
        kvscatter.write_many(list(zip(flat, updates, strict=True)), lengths, axis=axis, lengths=real)
        lengths += real
        slots = paged.slot_mapping(tables, lengths, real, block_size=block_size, num_blocks=num_blocks)
        tokens = [np.concatenate([it[b, : real[b]] for b in range(samples)]) for it in new]
        assert paged.write_(list(zip(pages, tokens, strict=True)), slots, layout=layout) == 0
        q = numbers.standard_normal(ordered(samples, heads, int(real.min()), size)).astype(np.float32)
        for window in (None, 4):
            options: dict[str, Any] = {"layout": layout, "window": window}
            wanted = kvscatter.attention(q, *flat, lengths, **options)
            found = kvscatter.attention(q, *pages, lengths, block_tables=tables, **options)
            assert np.isfinite(wanted).all() and bits(found) == bits(wanted)

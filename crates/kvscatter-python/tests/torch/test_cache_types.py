"""Tests `KvCache` whose keys and values are stored in other types than the model's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from models import gemma_3, llama, mistral, prompt
from test_cache import ROWS

import kvscatter
from kvscatter.torch import KvCache, KvLayer, KvRingLayer
from kvscatter.torch._cache_types import dequantize, quantize, rotate

TYPES = ["float32", "float16", "bfloat16", "int8"]
LARGEST = torch.finfo(torch.float32).max


def numbers(*shape: int) -> torch.Tensor:
    """Returns numbers of many magnitudes."""
    generator = torch.Generator().manual_seed(0)
    powers = torch.randint(-40, 40, (*shape[:-1], 1), generator=generator)
    return torch.randn(shape, generator=generator) * 2.0**powers


@pytest.mark.parametrize(
    "rows",
    [
        numbers(4000, 64),
        numbers(50, 7) * 2.0**-130,  # most are denormal
        torch.arange(-31.5, 32).index_fill(0, torch.tensor(0), 127),  # ties, with a scale of 1
        torch.tensor([[LARGEST, -LARGEST, 1, 0]]),
        torch.tensor([[2.0**-100, 0, -1.5 * 2**-100, -0.0]]),
        torch.zeros(2, 3),
    ],
)
def test_codes_and_scales_are_those_of_the_rule(rows: torch.Tensor) -> None:
    codes, scales = (tensor.numpy() for tensor in quantize(rows))
    given = rows.numpy().astype(np.float64)
    most = np.abs(given).max(-1, keepdims=True)
    rule = np.maximum((most * np.float64(np.float32(1 / 127))).astype(np.float32), np.float32(2.0**-100))
    assert scales.dtype == np.float32 and np.array_equal(scales, rule)
    # A quotient in float64 that is rounded to float32 is that of float32.
    quotients = (given / rule).astype(np.float32)
    assert codes.dtype == np.int8 and np.array_equal(codes, np.rint(quotients))
    read = codes.astype(np.float64) * rule
    assert (np.abs(read - given) <= rule * (0.5 + 2.0**-16)).all()
    assert np.array_equal(dequantize(*quantize(rows)).numpy(), read.astype(np.float32))


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", range(3))
def test_a_row_that_is_not_finite_is_nan(number: float, place: int) -> None:
    rows = torch.ones(2, 3)
    rows[1, place] = number
    codes, scales = quantize(rows)
    assert codes.tolist() == [[127] * 3, [0] * 3]
    assert dequantize(codes, scales).isnan().tolist() == [[False] * 3, [True] * 3]


@pytest.mark.parametrize(("size", "block"), [(64, 64), (80, 16), (96, 32), (24, 1), (8, 1), (1, 1)])
@pytest.mark.parametrize("autocast", [False, True])
def test_rotation_is_a_product_with_a_hadamard_matrix(size: int, block: int, autocast: bool) -> None:
    signs = [[(-1) ** (i & j).bit_count() for i in range(block)] for j in range(block)]
    matrix = np.kron(np.eye(size // block), np.array(signs) / block**0.5)
    rows = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        rotated = rotate(rows)
        torch.testing.assert_close(rotate(rotated), rows)
    torch.testing.assert_close(rotated.double().numpy(), rows.double().numpy() @ matrix, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("cache_type", TYPES)
@pytest.mark.parametrize("kind", [KvLayer, KvRingLayer])
def test_histories_agree_with_a_layer_that_was_given_what_is_stored(kind: Any, cache_type: str) -> None:
    """Every operation of a layer moves what is stored, codes and scales alike."""
    choose, generator = random.Random(0), torch.Generator().manual_seed(0)
    arguments = (40,) if kind is KvLayer else (40, 6, 3)
    for rotation in (True, False):
        stored, plain = kind(*arguments, cache_type=cache_type, rotation=rotation), kind(*arguments)
        fresh = kind(*arguments, cache_type=cache_type, rotation=rotation)
        for _ in range(60):
            tokens = int(stored.get_seq_length())
            count = choose.choice([1, 1, 2, 9])
            batch = stored.batch_size or 2
            if tokens + count > 40 or choose.random() < 0.05:
                stored.reset()
                plain.reset()
                continue
            new = [torch.randn(batch, 2, count, 32, generator=generator) for _ in range(2)]
            fresh.reset()
            read = [rows[:, :, -count:] for rows in _first_rows(fresh, new)]
            got, want = stored.update(*new), plain.update(*read)
            for one, other in zip(got, want, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
            if choose.random() < 0.3:
                removed = choose.randint(0, 3 if kind is KvRingLayer else 9)
                removed = min(removed, getattr(stored, "removable", removed))
                for layer in (stored, plain):
                    layer.crop(-removed or -1 if kind is KvLayer else -removed)
            elif choose.random() < 0.3:
                indices = torch.tensor([choose.randrange(batch) for _ in range(choose.choice([2, batch]))])
                for layer in (stored, plain):
                    layer.batch_select_indices(indices)
            elif batch < 4 and choose.random() < 0.2:
                for layer in (stored, plain):
                    layer.batch_repeat_interleave(2)


def _first_rows(layer: Any, rows: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns what a layer without tokens reads of these rows."""
    return tuple(read[:, :, : rows[0].shape[2]] for read in layer.update(*rows))


@torch.no_grad()
@pytest.mark.parametrize(
    ("cache_type", "most"), [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 5e-2), ("int8", 1e-1)]
)
@pytest.mark.parametrize("build", [llama, gemma_3])
def test_logits_are_close_to_those_of_the_model_s_type(build: Any, cache_type: Any, most: float) -> None:
    model = build(head_dim=32)
    tokens = prompt([40, 40])["input_ids"]
    want = model(tokens, use_cache=False).logits
    errors = []
    for rotation in (True, False):
        cache = KvCache(model.config, 40, cache_type=cache_type, rotation=rotation)
        parts = [model(part, past_key_values=cache).logits for part in tokens.split([22, *[1] * 18], dim=1)]
        errors.append((torch.cat(parts, 1) - want).abs().max() / want.abs().max())
        assert {layer.keys.dtype for layer in cache.layers} == {getattr(torch, cache_type)}
    assert max(errors) <= most
    assert cache_type == "float32" or min(errors) > 1e-6  # what is stored is read


@torch.no_grad()
def test_rotation_helps_keys_with_a_large_channel() -> None:
    keys = torch.randn(1, 1, 64, 64, generator=torch.Generator().manual_seed(0))
    keys[..., 5] *= 50
    errors = []
    for rotation in (True, False):
        read, _ = KvLayer(64, cache_type="int8", rotation=rotation).update(keys, keys)
        errors.append((read - keys).norm())
    assert errors[0] < errors[1] / 2


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("cache_type", TYPES)
def test_rows_are_returned_in_the_model_s_type(dtype: torch.dtype, cache_type: Any) -> None:
    rows = torch.randn(2, 2, 3, 16).to(dtype)
    for layer in (KvLayer(8, cache_type=cache_type), KvRingLayer(9, 4, 2, cache_type=cache_type)):
        for read in layer.update(rows, rows):
            assert read.dtype == dtype
            torch.testing.assert_close(read[:, :, :3], rows, rtol=2e-2, atol=2e-2)


@torch.no_grad()
def test_an_int8_cache_takes_a_byte_an_element_and_a_scale_a_row() -> None:
    layer = KvLayer(100, cache_type="int8")
    layer.update(torch.ones(2, 3, 1, 64), torch.ones(2, 3, 1, 32))
    assert layer.key_scales.shape == layer.value_scales.shape == (2, 3, 100, 1)
    tensors = layer.keys, layer.key_scales, layer.values, layer.value_scales
    assert sum(tensor.nbytes for tensor in tensors) == 2 * 3 * 100 * (64 + 4 + 32 + 4)


@pytest.mark.parametrize("way", [{}, {"num_beams": 3}, {"prefill_chunk_size": 3}])
def test_generates_with_codes(way: dict[str, int]) -> None:
    model = mistral(head_dim=32)
    cache = KvCache(model.config, 60, cache_type="int8")
    options = {"do_sample": False, "max_new_tokens": 20, "disable_compile": True}
    got = model.generate(**prompt([3, 13]), **options, **way, past_key_values=cache)
    assert got.shape == (2, 33) and int(cache.get_seq_length()) == 32


@torch.no_grad()
@pytest.mark.parametrize("new_layer", [lambda **o: KvLayer(8, **o), lambda **o: KvRingLayer(32, 4, 1, **o)])
def test_compiled_updates(new_layer: Any) -> None:
    torch.compiler.reset()
    compiled, plain = new_layer(cache_type="int8"), new_layer(cache_type="int8")
    step = torch.compile(lambda rows: compiled.update(rows, rows), fullgraph=True, backend="eager")
    for size in (3, 1, 1, 1):
        rows = torch.randn(2, 2, size, 16)
        want = plain.update(rows, rows)
        # Compiled programs do not allocate.
        got = step(rows) if compiled.is_initialized else compiled.update(rows, rows)
        got = [read[:, :, : want[0].shape[2]] for read in got]  # compiled programs get all slots
        torch.testing.assert_close(got, [*want], rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("cache_type", ["float16", "int8"])
@pytest.mark.parametrize("new_layer", [lambda **o: KvLayer(8, **o), lambda **o: KvRingLayer(32, 6, 2, **o)])
def test_an_update_that_fails_changes_nothing(new_layer: Any, cache_type: str, rows: str) -> None:
    layer = new_layer(cache_type=cache_type)
    layer.update(torch.rand(2, 2, 3, 4), torch.rand(2, 2, 3, 4))

    def contents() -> list[Any]:
        return [*(held.tolist() for held in layer._held()), int(layer.get_seq_length())]

    before, good = contents(), torch.ones(2, 2, 1, 4)
    for pair in ((good, ROWS[rows](layer.values)), (ROWS[rows](layer.keys), good)):
        with pytest.raises(kvscatter.Error):
            layer.update(*pair)
    with pytest.raises(kvscatter.ElementTypeError, match="^value_states is torch.int8, .* torch.float32$"):
        layer.update(good, good.to(torch.int8))
    assert contents() == before
    layer.update(good, good)
    assert contents() != before


def test_gradients_are_refused_by_int8_alone() -> None:
    rows = torch.ones(1, 1, 1, 16, requires_grad=True)
    with pytest.raises(
        kvscatter.OptionError, match=r"^key_states requires a gradient, .*: use torch.no_grad\(\)$"
    ):
        KvLayer(4, cache_type="int8").update(rows, rows)
    keys, _ = KvLayer(4, cache_type="bfloat16").update(rows, rows)
    assert torch.equal(torch.autograd.grad(keys.sum(), rows)[0], torch.ones_like(rows))


@pytest.mark.parametrize("nonsense", ["int4", "", "torch.int8", torch.int8, 8, ["int8"]])
def test_another_type_is_refused(nonsense: Any) -> None:
    with pytest.raises(kvscatter.OptionError) as caught:
        KvCache(mistral().config, 8, cache_type=nonsense)
    assert str(caught.value) == f'cache_type = "{nonsense}": must be float32, float16, bfloat16 or int8'
    assert caught.value.argument == "cache_type"


@pytest.mark.parametrize("nonsense", [1, "no", None])
def test_a_rotation_that_is_none_is_refused(nonsense: Any) -> None:
    with pytest.raises(kvscatter.ElementTypeError, match="^rotation is of type .*: must be True or False$"):
        KvLayer(8, cache_type="int8", rotation=nonsense)

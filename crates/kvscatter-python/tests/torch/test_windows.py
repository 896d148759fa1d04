"""Tests `KvCache` in tiny models, most of them with sliding windows, which must generate the same tokens as
`DynamicCache`."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from models import CONFIG, WINDOW, gemma_2, gemma_3, gpt_oss, llama, llama_4, mistral, prompt
from transformers import (
    BambaConfig,
    DynamicCache,
    Gemma2Config,
    Gemma3nTextConfig,
    GPTNeoConfig,
    Lfm2Config,
    MambaConfig,
    MistralConfig,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    RwkvConfig,
)
from transformers_version import CROP_KEEPS, VERSION, needs_drafting

import kvscatter
from kvscatter import errors
from kvscatter.torch import KvCache, KvLayer, KvRingLayer

RAGGED, LONG = [3, 13, 7], [5 * WINDOW, 2]
WAYS = {
    "greedy": (RAGGED, {}),
    "one token": ([1], {}),
    "a long prompt": (LONG, {}),
    "chunks": (LONG, {"prefill_chunk_size": WINDOW + 3}),
    "small chunks": (LONG, {"prefill_chunk_size": 3}),
    "sampled": (RAGGED, {"do_sample": True}),
    "beams": (RAGGED, {"num_beams": 3}),
    "prompt lookup": ([5], {"prompt_lookup_num_tokens": 3}),
    "sampled prompt lookup": ([5], {"prompt_lookup_num_tokens": 3, "do_sample": True}),
}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=needs_drafting) if "lookup" in way else way for way in WAYS]
)
@pytest.mark.parametrize("build", [llama, mistral, gemma_2, gemma_3, gpt_oss, llama_4])
def test_generates_the_same_tokens(build: Any, way: str) -> None:
    model = build()
    lengths, options = WAYS[way]
    options = {"do_sample": False, "max_new_tokens": 40, **options, "disable_compile": True}
    results = []
    for cache in (DynamicCache(config=model.config), KvCache(model.config, max(lengths) + 43, rewind=3)):
        torch.manual_seed(1)
        inputs = prompt(lengths)
        outputs = {"return_dict_in_generate": True, "output_logits": True}
        results.append(model.generate(**inputs, **options, **outputs, past_key_values=cache))
    want, got = results
    assert torch.equal(got.sequences, want.sequences)
    for one, other in zip(got.logits, want.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert "lookup" in way or int(cache.get_seq_length()) == got.sequences.shape[1] - 1
    slots = {layer.keys.shape[2] for layer in cache.layers if isinstance(layer, KvRingLayer)}
    assert slots == (set() if build == llama else {WINDOW + 2}) and max(lengths) + 39 > 3 * (WINDOW + 2)


@needs_drafting
def test_an_assistant_drafts() -> None:
    model, assistant, inputs = gemma_2(), mistral(), prompt([5])
    options = {"max_new_tokens": 40, "do_sample": False, "disable_compile": True}
    got = model.generate(
        **inputs, **options, assistant_model=assistant, past_key_values=KvCache(model.config, 80)
    )
    assert torch.equal(got, model.generate(**inputs, **options))


@needs_drafting
def test_drafts_longer_than_the_rewind_are_refused() -> None:
    model, inputs = mistral(), {"input_ids": torch.tensor([[5, 8] * 10])}
    options = {"max_new_tokens": 20, "do_sample": False, "prompt_lookup_num_tokens": 6}
    with pytest.raises(kvscatter.OptionError, match="increase rewind"):
        model.generate(**inputs, **options, past_key_values=KvCache(model.config, 60, rewind=1))


def test_a_conversation_goes_on() -> None:
    model = gemma_3()
    options = {"max_new_tokens": 15, "do_sample": False, "disable_compile": True}
    want, got = [], []
    for results, cache in ((want, DynamicCache(config=model.config)), (got, KvCache(model.config, 80))):
        inputs = prompt([3, 30])
        for _ in range(2):
            tokens = model.generate(**inputs, **options, past_key_values=cache)
            tokens = torch.cat([tokens, tokens[:, -5:]], 1)  # the next question
            mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 20), value=1)
            inputs = {"input_ids": tokens, "attention_mask": mask}
            results.append(tokens)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@torch.no_grad()
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("build", [mistral, gemma_2])
def test_histories_agree_with_a_model_without_a_cache(build: Any, seed: int) -> None:
    """The samples are padded on the left, and grow and shrink at random."""
    model, choose = build(), random.Random(seed)
    rewind = choose.choice([0, 1, 4, 20])
    cache = KvCache(model.config, 200, rewind=rewind)
    tokens, mask = prompt([60, 90, 81]).values()
    start = 0
    while start < 90:
        rows = min(choose.choice([1, 1, 2, 3, WINDOW, 2 * WINDOW, 30]), 90 - start)
        start += rows
        got = model(tokens[:, start - rows : start], attention_mask=mask[:, :start], past_key_values=cache)
        want = model(tokens[:, :start], attention_mask=mask[:, :start], use_cache=False).logits[:, -rows:]
        real = mask[:, start - rows : start].bool()
        torch.testing.assert_close(got.logits[real], want[real], rtol=1e-4, atol=1e-4)
        if choose.random() < 0.5:
            removed = choose.randint(0, cache.layers[0].removable)
            if removed > 0:
                cache.crop(-removed)
            start -= removed


def test_rows_of_a_ring_agree_with_a_list() -> None:
    """Writes short histories of one layer. Element ``[0, 0, i, 0]`` of a write is unique."""
    choose = random.Random(0)
    for _ in range(600):
        window, rewind = choose.randint(1, 6), choose.randint(0, 4)
        layer = KvRingLayer(60, window, rewind)
        rows: list[float] = []
        slots: dict[int, float] = {}
        for move in range(12):
            count = choose.randint(1, 2 * window + 2)
            new = torch.arange(count).add(1000.0 * move).view(1, 1, -1, 1)
            first = max(len(rows) - window + 1, 0)
            if len(rows) + count > 60:
                with pytest.raises(kvscatter.PositionError):
                    layer.update(new, -new)
                break
            assert layer.get_mask_sizes(count) == (len(rows) + count - first, first)
            for position, row in enumerate(new.flatten().tolist(), len(rows)):
                rows.append(row)
                slots[position % layer.max_cache_len] = row
            keys, values = layer.update(new, -new)
            assert keys.flatten().tolist() == rows[first:] and torch.equal(values, -keys)
            assert layer.get_seq_length() == len(rows)
            left = choose.randint(0, len(rows))
            seen = range(max(left - window + 1, 0), left)
            intact = all(slots[position % layer.max_cache_len] == rows[position] for position in seen)
            if window > 1:
                assert intact == (left == 0 or len(rows) - left <= layer.removable)
            if left == len(rows):
                continue
            if left == 0 or len(rows) - left <= layer.removable:
                layer.crop(left - len(rows))
                del rows[left:]
            else:
                with pytest.raises(kvscatter.OptionError, match="increase rewind"):
                    layer.crop(left - len(rows))


@torch.no_grad()
def test_a_window_of_one_position_sees_only_itself() -> None:
    model, tokens = mistral(sliding_window=1), prompt([12])["input_ids"]
    cache = KvCache(model.config, 12, rewind=0)
    got = [model(part, past_key_values=cache).logits for part in tokens.split([5, 1, 1, 3, 2], dim=1)]
    torch.testing.assert_close(torch.cat(got, 1), model(tokens, use_cache=False).logits)
    assert cache.layers[0].keys.shape[2] == 1


@torch.no_grad()
def test_exactly_the_rewind_can_be_cropped() -> None:
    model, tokens = gemma_2(), prompt([60])["input_ids"]
    cache = KvCache(model.config, 64, rewind=5)
    model(tokens[:, :40], past_key_values=cache)
    with pytest.raises(kvscatter.OptionError, match="^tokens_to_remove = -6: must be from -5 to 0") as caught:
        cache.crop(-6)
    assert (caught.value.argument, caught.value.value, caught.value.min) == ("tokens_to_remove", -6, -5)
    assert [int(layer.get_seq_length()) for layer in cache.layers] == [
        40,
        40,
        40,
    ]  # not the full layer either
    cache.crop(-5)
    model(tokens[:, 35:36], past_key_values=cache)
    with pytest.raises(kvscatter.OptionError, match="from -1 to 0"):
        cache.crop(-2)  # the furthest token is 4 tokens ahead
    want = model(tokens, use_cache=False).logits[:, 36:]
    torch.testing.assert_close(
        model(tokens[:, 36:], past_key_values=cache).logits, want, rtol=1e-4, atol=1e-4
    )
    cache.crop(-60)
    got = model(tokens[:, :50], past_key_values=cache).logits
    torch.testing.assert_close(got, model(tokens[:, :50], use_cache=False).logits, rtol=1e-4, atol=1e-4)
    limits = "must be from 45 to 50, because" if CROP_KEEPS else "must be at most 0$"
    with pytest.raises(kvscatter.OptionError, match=f"^tokens_to_remove = 1: {limits}"):
        cache.crop(1)
    if CROP_KEEPS:
        cache.crop(45)
        assert cache.get_seq_length() == 45


@torch.no_grad()
@pytest.mark.parametrize("build", [gpt_oss, llama])
def test_tokens_that_do_not_fit_are_refused_before_any_write(build: Any) -> None:
    model, tokens = build(), prompt([20])["input_ids"]
    cache = KvCache(model.config, max_cache_len=16)
    model(tokens[:, :14], past_key_values=cache)
    before = [layer.keys.clone() for layer in cache.layers]
    with pytest.raises(kvscatter.PositionError, match="14 [+] 3 rows exceed max_cache_len = 16$"):
        model(tokens[:, 14:17], past_key_values=cache)
    assert {int(layer.get_seq_length()) for layer in cache.layers} == {14}
    for layer, keys in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)


@pytest.mark.parametrize(
    ("max_cache_len", "kind"), [(WINDOW, KvLayer), (WINDOW - 1, KvLayer), (9, KvRingLayer)]
)
def test_a_window_of_the_whole_cache_is_a_full_layer(max_cache_len: int, kind: type) -> None:
    model, inputs = mistral(), prompt([2, 4])
    cache = KvCache(model.config, max_cache_len)
    options = {"max_length": max_cache_len, "do_sample": False, "disable_compile": True}
    got = model.generate(**inputs, **options, past_key_values=cache)
    assert torch.equal(got, model.generate(**inputs, **options))
    assert {type(layer) for layer in cache.layers} == {kind}
    assert cache.layers[0].keys.shape[2] == cache.layers[0].get_max_length() == max_cache_len


@torch.no_grad()
def test_memory_depends_on_the_window_alone() -> None:
    model = mistral()
    cache = KvCache(model.config, max_cache_len=2**62, rewind=4)
    for size in (30, 1, 20, 1, 2):
        model(prompt([size])["input_ids"], past_key_values=cache)
        addresses = [layer.keys.data_ptr() for layer in cache.layers]
    assert [layer.keys.shape for layer in cache.layers] == [(1, 2, WINDOW + 3, 8)] * 2
    model(prompt([1])["input_ids"], past_key_values=cache)
    assert [layer.keys.data_ptr() for layer in cache.layers] == addresses
    assert cache.layers[0].get_max_length() == 2**62


@torch.no_grad()
@pytest.mark.parametrize("build", [gemma_3, llama])
def test_reset(build: Any) -> None:
    model, tokens = build(), prompt([20])["input_ids"]
    cache = KvCache(model.config, max_cache_len=32)
    first = model(tokens, past_key_values=cache).logits
    cache.reset()
    assert cache.get_seq_length() == 0
    assert torch.equal(model(tokens, past_key_values=cache).logits, first)


@torch.no_grad()
def test_samples_are_selected_and_repeated() -> None:
    """Full and sliding layers go on as if the selected samples had always been there."""
    model, tokens = gemma_3(), prompt([20, 20, 20])["input_ids"]
    cache, seen = KvCache(model.config, max_cache_len=64, rewind=4), tokens[:, :0]
    assert {type(layer) for layer in cache.layers} == {KvLayer, KvRingLayer}

    def step(tokens: torch.Tensor) -> None:
        nonlocal seen
        seen = torch.cat([seen, tokens], 1)
        want = model(seen, use_cache=False).logits[:, -tokens.shape[1] :]
        got = model(tokens, past_key_values=cache).logits
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)

    step(tokens[:, :15])
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    cache.reorder_cache(torch.tensor([2, 0, 0]))
    seen = seen[[2, 0, 0]]
    step(tokens[:, 15:17])
    assert [layer.keys.data_ptr() for layer in cache.layers] == addresses
    cache.batch_select_indices(torch.tensor([1, 2]))
    cache.batch_repeat_interleave(2)
    seen = seen[[1, 1, 2, 2]]
    step(tokens[[0, 1, 2, 0], 17:20])
    cache.crop(-2)
    seen = seen[:, :-2]
    step(tokens[[0, 1, 2, 0], 18:19])


def compiled_crop(layer: Any) -> None:
    torch.compile(lambda: layer.crop(-2), backend="eager", fullgraph=True)()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [lambda: KvLayer(16), lambda: KvRingLayer(16, 4, 4)])
@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (lambda layer: layer.crop(-2), 4),
        (lambda layer: (layer.crop(-1), layer.crop(-1)), 4),
        (lambda layer: layer.crop(-100), 0),
        (compiled_crop, 4),
        (lambda layer: layer.reset(), 0),
        (lambda layer: (layer.reorder_cache(torch.tensor([1, 0])), layer.crop(-2)), 4),
        (lambda layer: (layer.batch_select_indices(torch.tensor([1])), layer.crop(-2)), 4),
        (lambda layer: (layer.crop(-2), layer.batch_repeat_interleave(2)), 4),
    ],
)
def test_no_later_token_sees_a_row_that_was_dropped(make: Any, mode: Any, drop: Any, left: int) -> None:
    """The rows of a rejected draft may be NaN. A mask would hide them, but 0 times NaN is NaN."""
    layer, rows = make(), torch.ones(2, 2, 6, 4)
    rows[:, :, 4:] = torch.nan
    with mode():
        layer.update(rows[:, :, :3], rows[:, :, :3])
        layer.update(rows[:, :, 3:], rows[:, :, 3:])
    # Compiled programs cannot write tensors of inference mode outside of it.
    with mode() if drop is compiled_crop else torch.no_grad():
        drop(layer)
        assert int(layer.get_seq_length()) == left
    with mode():
        row = torch.ones(layer.keys.shape[0], 2, 1, 4)
        for _ in range(7):
            assert all(seen.isfinite().all() for seen in layer.update(row, row))


@torch.no_grad()
def test_positions_that_go_back_drop_the_tokens_after_them() -> None:
    layer, new, dropped = KvLayer(8), torch.ones(1, 2, 2, 4), torch.full((1, 2, 4, 4), torch.nan)
    layer.update(dropped, dropped)
    keys, values = layer.update(new, new, {"cache_position": torch.tensor([0, 1])})
    assert int(layer.get_seq_length()) == 2
    assert keys.sum() == values.sum() == new.sum()


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: KvLayer(8), lambda: KvRingLayer(8, 4, 2)])
def test_a_layer_after_reset_and_selection(make: Any) -> None:
    def rows(batch: int, rows: int = 1, heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(batch, heads, rows, 4), torch.ones(batch, heads, rows, 4)

    layer = make()
    layer.update(*rows(2))
    layer.reset()
    # A refused update leaves the layer as it was reset.
    with pytest.raises(kvscatter.Error):
        layer.update(*rows(3, rows=9))
    with pytest.raises(kvscatter.Error):
        layer.update(rows(3)[0], rows(3, heads=3)[1])
    layer.update(*rows(2))
    layer.batch_select_indices(torch.tensor([True, False]))
    assert layer.batch_size == len(layer.keys) == 1
    layer.batch_repeat_interleave(3)
    assert layer.batch_size == len(layer.values) == 3
    with torch.inference_mode():
        layer.batch_select_indices(torch.tensor([0, 2]))
    layer.update(*rows(2))
    select = torch.compile(lambda chosen: layer.batch_select_indices(chosen), backend="eager", fullgraph=True)
    select(torch.tensor([1]))
    assert layer.keys.shape[0] == 1


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_a_reset_cache_takes_another_batch(batch: int) -> None:
    model, tokens = gemma_3(), prompt([20] * 3)["input_ids"]
    cache = KvCache(model.config, max_cache_len=64)
    model(tokens[:2], past_key_values=cache)
    with pytest.raises(errors.ShapeError):
        model(tokens[:batch], past_key_values=cache)
    addresses = [layer.keys.data_ptr() for layer in cache.layers]
    cache.reset()
    model(tokens[:2], past_key_values=cache)
    assert [layer.keys.data_ptr() for layer in cache.layers] == addresses
    cache.reset()
    for part in (slice(0, 9), slice(9, 20)):
        got = model(tokens[:batch, part], past_key_values=cache).logits
    want = model(tokens[:batch], use_cache=False).logits[:, 9:]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    cache.batch_select_indices(torch.tensor([0]))
    cache.reset()
    model(tokens, past_key_values=cache)


@torch.no_grad()
def test_compiled_steps() -> None:
    torch.compiler.reset()
    model, tokens = gemma_3(), prompt([50, 50])["input_ids"]
    cache = KvCache(model.config, 64, rewind=4)
    assert cache.is_compileable
    model(tokens[:, :5], past_key_values=cache)
    want = model(tokens, use_cache=False).logits
    graphs = []
    step = torch.compile(
        model, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward
    )
    for place in range(5, 50):
        got = step(tokens[:, place : place + 1], past_key_values=cache).logits
        torch.testing.assert_close(got, want[:, place : place + 1], rtol=1e-4, atol=1e-4)
    assert len(graphs) <= 6  # for an integer, a symbol, a full window, and a wrap


def test_exporting_a_ring_is_refused() -> None:
    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = KvRingLayer(16, 4, 2)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.layer.update(rows, rows)[0]

    # Before PyTorch 2.15, strict tracing cannot raise the error, and reports this instead.
    for strict in (False, True) if torch.__version__ >= "2.15" else (False,):
        with pytest.raises(Exception, match="a layer with a sliding window: torch.export would"):
            torch.export.export(Step(), (torch.zeros(1, 1, 1, 2),), strict=strict)


@pytest.mark.parametrize("build", [mistral, llama])
def test_gradients_flow_through_the_cache(build: Any) -> None:
    model = build()

    def gradient(cache: Any) -> torch.Tensor:
        tokens = prompt([20])["input_ids"]
        parts = [model(part, past_key_values=cache).logits for part in tokens.split(12, dim=1)]
        weight = model.model.layers[0].self_attn.k_proj.weight
        return torch.autograd.grad(torch.cat(parts, 1).square().mean(), weight)[0]

    torch.testing.assert_close(
        gradient(KvCache(model.config, 20)), gradient(DynamicCache(config=model.config))
    )


def test_other_kinds_of_layers_are_refused() -> None:
    config = Lfm2Config(num_hidden_layers=2, layer_types=["conv", "full_attention"])
    with pytest.raises(kvscatter.OptionError, match="^layers of type conv: KvCache has "):
        KvCache(config, max_cache_len=8)


def test_models_that_need_another_cache_are_refused() -> None:
    for config in (BambaConfig(), MambaConfig(), GPTNeoConfig(), RwkvConfig()):
        with pytest.raises(kvscatter.OptionError, match="^layers of type .*: KvCache has "):
            KvCache(config, max_cache_len=8)


def test_shared_layers_of_none() -> None:
    """Older versions of transformers make a cache without layers."""
    config = Gemma3nTextConfig(
        num_hidden_layers=2, num_kv_shared_layers=0, layer_types=["full_attention"] * 2
    )
    if VERSION < (5, 10):
        with pytest.raises(
            kvscatter.OptionError, match="num_kv_shared_layers = 0, which needs transformers 5.10$"
        ):
            KvCache(config, max_cache_len=8)
    else:
        assert len(KvCache(config, max_cache_len=8).layers) == 2


def test_a_cache_with_rings_does_not_go_back_to_other_positions() -> None:
    cache, rows = KvCache(gemma_3().config, 16), torch.ones(1, 2, 2, 8)
    for layer in range(2):
        cache.update(rows, rows, layer, {"cache_position": torch.arange(2)})
    with pytest.raises(
        kvscatter.OptionError, match=r"^cache_position\[0\] = 1: a ring of 2 tokens goes back"
    ):
        cache.update(rows, rows, 0, {"cache_position": torch.arange(1, 3)})
    assert [int(layer.get_seq_length()) for layer in cache.layers] == [2, 2]


@torch.no_grad()
def test_models_that_make_masks_of_all_slots() -> None:
    torch.manual_seed(0)
    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 2}
    windows = {"use_sliding_window": True, "max_window_layers": 0}
    config = Qwen2MoeConfig(num_hidden_layers=2, num_experts_per_tok=1, **experts, **windows, **CONFIG)
    model, tokens = Qwen2MoeForCausalLM(config).eval(), prompt([24])["input_ids"]
    cache = KvCache(config, 40)
    got = [model(part, past_key_values=cache).logits for part in tokens.split([14, *[1] * 10], dim=1)]
    want = model(tokens, use_cache=False).logits
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("nonsense", [-1, 2**64, 2.5, "8", True, None])
def test_a_rewind_that_is_none_is_refused(nonsense: Any) -> None:
    with pytest.raises((kvscatter.OptionError, kvscatter.ElementTypeError), match="^rewind "):
        KvCache(MistralConfig(), 8, rewind=nonsense)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(kvscatter.OptionError, match="set sliding_window or attention_chunk_size$"):
        KvCache(Gemma2Config(sliding_window=None), 8)
    with pytest.raises(kvscatter.OptionError, match="^sliding_window = 0: must be at least 1$"):
        KvCache(MistralConfig(sliding_window=0), 8)

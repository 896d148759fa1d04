"""Tests ``attn_implementation="kvscatter"`` in tiny models, which must generate the same tokens as with ``sdpa``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import WINDOW, gemma_2, gemma_3, gpt_oss, llama, llama_4, mistral, prompt
from transformers import DynamicCache, StaticCache
from transformers_version import needs_drafting

import kvscatter
from kvscatter.torch import KvCache, _interface

RAGGED, LONG = [3, 13, 7], [5 * WINDOW, 2]
WAYS = {
    "greedy": (RAGGED, {}),
    "one token": ([1], {}),
    "a long prompt": (LONG, {}),
    "chunks": (LONG, {"prefill_chunk_size": WINDOW + 3}),
    "sampled": (RAGGED, {"do_sample": True}),
    "beams": (RAGGED, {"num_beams": 3}),
    "prompt lookup": ([5], {"prompt_lookup_num_tokens": 3}),
}
CACHES = {
    "KvCache": lambda config, slots: KvCache(config, slots, rewind=3),
    "StaticCache": lambda config, slots: StaticCache(config, slots),
    "DynamicCache": lambda config, slots: DynamicCache(config=config),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Returns the options of the calls of attention."""
    calls: list[dict[str, Any]] = []

    def counted(*arrays: Any, **options: Any) -> Any:
        calls.append(options)
        return original(*arrays, **options)

    original = kvscatter.attention
    monkeypatch.setattr(kvscatter, "attention", counted)
    return calls


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=needs_drafting) if "lookup" in way else way for way in WAYS]
)
@pytest.mark.parametrize("build", [llama, mistral, gemma_2, gemma_3, gpt_oss, llama_4])
def test_generates_the_same_tokens(build: Any, way: str, calls: list[dict[str, Any]]) -> None:
    model = build()
    lengths, options = WAYS[way]
    options = {"do_sample": False, "max_new_tokens": 40, **options, "disable_compile": True}
    # gpt-oss has sinks, which sdpa does not know.
    for name in ("eager" if build is gpt_oss else "sdpa", "kvscatter"):
        model.set_attn_implementation(name)
        cache = DynamicCache(config=model.config) if name != "kvscatter" else None
        cache = cache or KvCache(model.config, max(lengths) + 43, rewind=3)
        torch.manual_seed(1)
        outputs = {"return_dict_in_generate": True, "output_logits": True}
        made = model.generate(**prompt(lengths), **options, **outputs, past_key_values=cache)
        if name != "kvscatter":
            want = made
    assert torch.equal(made.sequences, want.sequences)
    for got, expected in zip(made.logits, want.logits, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    layers = model.config.num_hidden_layers
    assert len(calls) % layers == 0 and len(calls) >= layers
    if build is not llama_4 and way != "chunks":  # whose masks hide more
        assert not any(call.get("mask") is not None for call in calls)


@pytest.mark.parametrize("cache", ["StaticCache", "DynamicCache"])
@pytest.mark.parametrize("build", [llama, gemma_3])
def test_other_caches(build: Any, cache: str, calls: list[dict[str, Any]]) -> None:
    model = build()
    options = {"do_sample": False, "max_new_tokens": 30, "disable_compile": True}
    results = []
    for name in ("sdpa", "kvscatter"):
        model.set_attn_implementation(name)
        # A prompt of one chunk: `StaticCache` makes masks in advance, which are not numbers.
        made = CACHES[cache](model.config, 60)
        results.append(_decode(model, made, prompt(RAGGED), 20))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
    assert calls and options


@pytest.mark.parametrize("build", [llama, gemma_3])
def test_generates_with_a_static_cache(build: Any) -> None:
    model, results = build(), []
    for name in ("sdpa", "kvscatter"):
        model.set_attn_implementation(name)
        options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 30, "disable_compile": True}
        results.append(
            model.generate(**prompt(RAGGED), **options, past_key_values=StaticCache(model.config, 60))
        )
    assert torch.equal(*results)


def _decode(model: Any, cache: Any, inputs: dict[str, torch.Tensor], steps: int) -> torch.Tensor:
    """Feeds a prompt and the most likely tokens. Returns all logits."""
    mask, logits = inputs["attention_mask"], []
    ids, positions = inputs["input_ids"], (mask.cumsum(-1) - 1).clamp(min=0)
    start = 0
    with torch.no_grad():
        for _ in range(steps):
            slots = torch.arange(start, start + ids.shape[1])
            made = model(
                ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                cache_position=slots,
                use_cache=True,
            )
            logits.append(made.logits[:, -1])
            ids, start = logits[-1].argmax(-1, keepdim=True), start + ids.shape[1]
            mask = torch.cat((mask, torch.ones_like(ids)), 1)
            positions = mask.sum(-1, keepdim=True) - 1
    return torch.stack(logits)


def test_a_mask_that_is_not_numbers() -> None:
    model = mistral()
    inputs = prompt([12, 12])
    inputs["attention_mask"][0, 5] = 0  # padding between tokens
    results = []
    for name in ("sdpa", "kvscatter"):
        model.set_attn_implementation(name)
        results.append(_decode(model, KvCache(model.config, 40), inputs, 20))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


def test_a_ring_is_read_in_place(calls: list[dict[str, Any]]) -> None:
    model = mistral()
    model.set_attn_implementation("kvscatter")
    cache = KvCache(model.config, 60, rewind=3)
    _decode(model, cache, prompt([5]), 30)
    modes = [call.get("mode") for call in calls[2 * model.config.num_hidden_layers :]]
    assert set(modes) == {"circular"}
    assert calls[-1]["lengths"] == [34] and cache.layers[0].max_cache_len == WINDOW + 2


@pytest.mark.parametrize("makes_mask", [True, False])
def test_older_rows_of_a_ring_are_hidden(makes_mask: bool) -> None:
    """A model may make masks without the window of a layer, or none. The ring has more rows than they count."""
    config = mistral().config
    config._attn_implementation = "kvscatter"
    layer = KvCache(config, 60, rewind=3).layers[0]
    rows = torch.randn(3, 1, 2, 3 * WINDOW, 8)
    for position in range(rows.shape[3]):
        new = rows[:, :, :, position : position + 1]
        length, first = layer.get_mask_sizes(1)
        keys, values = layer.update(new[0], new[1])
        mask = _interface._seen(length, first, q_length=1, q_offset=position) if makes_mask else None
        made, _ = _interface.attention_forward(torch.nn.Module(), new[2], keys, values, mask)
        seen = rows[:2, :, :, first : position + 1]
        expected = torch.nn.functional.scaled_dot_product_attention(new[2], *seen)
        torch.testing.assert_close(made, expected.transpose(1, 2))


def test_numbers_of_masks() -> None:
    causal, sliding = _interface.causal_mask_function, None
    from transformers.masking_utils import and_masks, or_masks, sliding_window_causal_mask_function

    sliding = sliding_window_causal_mask_function(4)
    assert _interface._window(causal) == (True, None)
    assert _interface._window(sliding) == (True, 4)
    for other in (or_masks(causal, causal), and_masks(sliding, causal), and_masks(causal), lambda *_: True):
        assert not _interface._window(other)[0]

    def seen(mask: list[list[int]] | None, offset: int = 0, **arguments: Any) -> Any:
        tokens = None if mask is None else torch.tensor(mask)
        slots = {"cache_position": torch.tensor([4, 5]), "kv_length": 6 - offset, "kv_offset": offset}
        return _interface._seen(**{**slots, "attention_mask": tokens, **arguments})

    assert seen(None) == (6, None, None)
    assert seen([[1] * 6]) == (6, None, None)
    assert seen(None, cache_position=None, q_length=2, q_offset=4) == (6, None, None)
    length, starts, window = seen([[0, 0, 1, 1, 1, 1], [1] * 6], 1, mask_function=sliding)
    assert (length, starts.tolist(), window) == (5, [1, 0], 4)
    for hidden in ([[1, 0, 1, 1, 1, 1]], [[1, 1, 1, 1, 1, 0]], [[0] * 6], [[1] * 5]):
        assert seen(hidden) is None
    assert seen(None, kv_length=5) is None and seen(None, kv_length=7) is None
    assert seen(None, cache_position=None) is None


def test_dropout_is_refused() -> None:
    module, rows = torch.nn.Module(), torch.ones(1, 1, 1, 4)
    with pytest.raises(kvscatter.OptionError, match=r"dropout = 0\.5"):
        _interface.attention_forward(module, rows, rows, rows, None, dropout=0.5)

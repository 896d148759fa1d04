"""Tests `KvCache` in a tiny Llama with random weights, which must generate the same tokens as transformers'
caches."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import models
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from models import LLAMA, prompt
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    StaticCache,
)
from transformers_version import CROP_KEEPS, VERSION, cache_position, needs_drafting

import kvscatter
from kvscatter.torch import KvCache, KvLayer, KvRingLayer
from kvscatter.torch import onnx as kvscatter_onnx


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    return models.llama()


def test_generate_compiles_as_it_does_for_a_static_cache(llama: LlamaForCausalLM) -> None:
    from transformers.generation import CompileConfig

    inputs, options = prompt([5] * 2), {"max_new_tokens": 6, "do_sample": False}
    want = llama.generate(**inputs, **options)
    cache = KvCache(LLAMA, max_cache_len=16)
    assert cache.is_compileable
    compiled = CompileConfig(fullgraph=True, backend="aot_eager")
    compiled._compile_all_devices = True  # transformers does not compile for the CPU otherwise
    assert torch.equal(
        llama.generate(**inputs, **options, past_key_values=cache, compile_config=compiled), want
    )


@torch.no_grad()
def test_compiled_steps_write_what_a_static_cache_holds(llama: LlamaForCausalLM) -> None:
    torch.compiler.reset()
    ours, theirs = KvCache(LLAMA, max_cache_len=16), StaticCache(LLAMA, max_cache_len=16)
    step = torch.compile(llama, fullgraph=True, backend="aot_eager")
    tokens = prompt([5] * 2)["input_ids"]
    want = llama(tokens, past_key_values=theirs).logits
    torch.testing.assert_close(llama(tokens, past_key_values=ours).logits, want)
    addresses = [layer.keys.data_ptr() for layer in ours.layers]
    for move in range(4):
        tokens = want[:, -1:].argmax(-1)
        at = cache_position(torch.tensor([5 + move]))
        want = llama(tokens, past_key_values=theirs, **at).logits
        with torch.compiler.set_stance("default" if move == 0 else "fail_on_recompile"):
            torch.testing.assert_close(step(tokens, past_key_values=ours, **at).logits, want)
    assert [layer.keys.data_ptr() for layer in ours.layers] == addresses
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys)
        torch.testing.assert_close(one.values, other.values)


@torch.no_grad()
def test_a_cropped_cache_goes_on_as_one_that_never_saw_the_tokens(llama: LlamaForCausalLM) -> None:
    cache, tokens = KvCache(LLAMA, max_cache_len=16), prompt([9] * 2)["input_ids"]
    cache.crop(-1)  # nothing has been allocated
    want = llama(tokens, past_key_values=cache).logits
    address = cache.layers[0].cumulative_length.data_ptr()
    cache.crop(-4)
    assert cache.layers[0].is_croppable and int(cache.get_seq_length()) == 5
    torch.testing.assert_close(llama(tokens[:, 5:], past_key_values=cache).logits, want[:, 5:])
    cache.crop(-100)
    assert int(cache.get_seq_length()) == 0
    torch.testing.assert_close(llama(tokens, past_key_values=cache).logits, want)
    assert cache.layers[0].cumulative_length.data_ptr() == address
    if CROP_KEEPS:
        for most, kept in ((12, 9), (3, 3)):
            cache.crop(most)
            assert int(cache.get_seq_length()) == kept
        torch.testing.assert_close(llama(tokens[:, 3:], past_key_values=cache).logits, want[:, 3:])
        return
    with pytest.raises(kvscatter.OptionError, match="^tokens_to_remove = 3: must be at most 0$"):
        cache.crop(3)
    assert int(cache.get_seq_length()) == 9


@torch.no_grad()
def test_crop_of_0_is_that_of_a_growing_cache(llama: LlamaForCausalLM) -> None:
    lengths = []
    for cache in (KvCache(LLAMA, max_cache_len=16), DynamicCache(config=LLAMA)):
        llama(**prompt([5] * 2), past_key_values=cache)
        cache.crop(0)
        lengths.append(int(cache.get_seq_length()))
    assert lengths[0] == lengths[1]


@torch.no_grad()
def test_initialization_forgets_all_tokens(llama: LlamaForCausalLM) -> None:
    cache, tokens = KvCache(LLAMA, max_cache_len=16), prompt([5] * 2)["input_ids"]
    want = llama(tokens, past_key_values=cache).logits
    length = cache.get_seq_length()
    for layer in cache.layers:
        layer.lazy_initialization(layer.keys, layer.values)
    torch.testing.assert_close(llama(tokens, past_key_values=cache).logits, want)
    assert int(length) == 5


@pytest.mark.skipif(VERSION >= (5, 4), reason="models pass no positions to caches")
@torch.no_grad()
def test_positions_go_back(llama: LlamaForCausalLM) -> None:
    cache, tokens = KvCache(LLAMA, max_cache_len=16), prompt([9] * 2)["input_ids"]
    want = llama(tokens, past_key_values=cache).logits
    at = cache_position(torch.arange(2, 7))
    torch.testing.assert_close(llama(tokens[:, 2:7], past_key_values=cache, **at).logits, want[:, 2:7])
    torch.testing.assert_close(llama(tokens[:, 7:], past_key_values=cache).logits, want[:, 7:])


@torch.no_grad()
def test_models_that_ask_for_a_static_cache() -> None:
    """Some models choose their mask by the class of the cache."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
    config = OlmoeConfig(**sizes, pad_token_id=0)
    model, tokens = OlmoeForCausalLM(config).eval(), prompt([12] * 2)["input_ids"]
    cache = KvCache(config, max_cache_len=32)
    parts = [model(part, past_key_values=cache).logits for part in tokens.split([7, 1, 1, 2, 1], dim=1)]
    want = model(tokens, use_cache=False).logits
    torch.testing.assert_close(torch.cat(parts, 1), want, rtol=1e-4, atol=1e-4)


@needs_drafting
def test_candidates_that_are_rejected_are_cropped(llama: LlamaForCausalLM, monkeypatch: Any) -> None:
    cropped = []
    crop = KvCache.crop
    monkeypatch.setattr(KvCache, "crop", lambda cache, tokens: (cropped.append(tokens), crop(cache, tokens)))
    inputs = {"input_ids": torch.tensor([[5, 8, 5, 8, 5]]), "attention_mask": torch.ones(1, 5).long()}
    options = {"max_new_tokens": 12, "do_sample": False}
    got = llama.generate(**inputs, **options, prompt_lookup_num_tokens=3, past_key_values=KvCache(LLAMA, 20))
    assert torch.equal(got, llama.generate(**inputs, **options))
    assert min(cropped) < 0


ROWS = {
    "of another size": lambda cache: torch.ones(2, 2, 1, 3),
    "of another dtype": lambda cache: torch.ones(2, 2, 1, 4).double(),
    "of fewer samples": lambda cache: torch.ones(1, 2, 1, 4),
    "that are too many": lambda cache: torch.ones(2, 2, 2, 4),
    "of the cache": lambda cache: cache[:, :, 2:3],
    "that are sparse": lambda cache: torch.ones(2, 2, 1, 4).to_sparse(),
}


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("new_layer", [lambda: KvLayer(8), lambda: KvRingLayer(32, 6, 2)])
def test_an_update_that_fails_changes_nothing(new_layer: Any, rows: str, with_gradients: bool) -> None:
    layer = new_layer()
    layer.update(torch.rand(2, 2, 3, 4), torch.rand(2, 2, 3, 4))

    def contents() -> tuple[Any, ...]:
        return layer.keys.tolist(), layer.values.tolist(), int(layer.get_seq_length())

    before = contents()
    keys = torch.ones(2, 2, 1, 4, requires_grad=with_gradients)
    with pytest.raises(kvscatter.Error):
        layer.update(keys, ROWS[rows](layer.values))
    with pytest.raises(kvscatter.Error):
        layer.update(ROWS[rows](layer.keys), keys)
    assert contents() == before
    layer.update(keys, keys)
    assert contents() != before


@pytest.mark.parametrize("nonsense", [0, -1, 2**64, 2.5, "8", True, None])
def test_a_capacity_that_is_none_is_refused_before_a_model_runs(nonsense: Any) -> None:
    with pytest.raises((kvscatter.OptionError, kvscatter.ElementTypeError), match="^max_cache_len "):
        KvCache(LLAMA, nonsense)


@pytest.mark.parametrize(
    ("missing", "wanted", "advice"),
    [
        ("torch", "tensor_scatter", "kvscatter.torch needs PyTorch: pip install kvscatter[torch]"),
        (
            "transformers",
            "KvCache",
            "kvscatter.torch.KvCache needs transformers 4.57: pip install kvscatter[transformers]",
        ),
    ],
)
def test_a_missing_package_is_named(missing: str, wanted: str, advice: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from kvscatter.torch import {wanted}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == f"ImportError: {advice}"


def test_completion_offers_the_cache() -> None:
    assert {"KvCache", "KvLayer", "KvRingLayer", "tensor_scatter_"} <= set(dir(kvscatter.torch))


class Step(torch.nn.Module):
    """A decoding step whose caches are buffers, as `torch.export` requires."""

    def __init__(self, model: LlamaForCausalLM, batch: int, capacity: int) -> None:
        super().__init__()
        self.model = model
        self.past = KvCache(LLAMA, max_cache_len=capacity)
        heads, size = LLAMA.num_key_value_heads, LLAMA.hidden_size // LLAMA.num_attention_heads
        self.past.early_initialization(batch, heads, size, torch.float32, torch.device("cpu"))
        for place, layer in enumerate(self.past.layers):
            self.register_buffer(f"keys_{place}", layer.keys)
            self.register_buffer(f"values_{place}", layer.values)
            self.register_buffer(f"length_{place}", layer.cumulative_length)

    def forward(self, tokens: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        at = cache_position(position[0])
        return self.model(tokens, position_ids=position, past_key_values=self.past, **at).logits


def test_a_decoding_step_in_onnx_runtime(llama: LlamaForCausalLM) -> None:
    """The caches are inputs and outputs of the model. ONNX Runtime decodes the same tokens as `generate`."""
    inputs = prompt([4] * 2)["input_ids"]
    want = llama.generate(inputs, max_new_tokens=5, do_sample=False)
    example = inputs[:, :1], torch.zeros(2, 1, dtype=torch.long)
    # transformers keeps the cache in a Python object. Only the strict mode recognises its tensors as the
    # buffers.
    program = torch.export.export(Step(llama, batch=2, capacity=16), example, strict=True)
    exported = kvscatter_onnx.export(program, verbose=False, output_names=["logits"])
    model = exported.model_proto
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node].count("TensorScatter") == 2 * LLAMA.num_hidden_layers

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of every write that is not in place
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    state = {
        value.name: np.zeros(value.shape, np.int64 if value.type == "tensor(int64)" else np.float32)
        for value in session.get_inputs()
        if value.name not in {"tokens", "position"}
    }
    tokens = inputs.numpy()
    while tokens.shape[1] < want.shape[1]:
        position = np.full((2, 1), state["length_0"])
        feeds = {"tokens": tokens[:, position[0]], "position": position, **state}
        results = dict(zip(names, session.run(None, feeds), strict=True))
        state = {name.removeprefix("present_"): array for name, array in results.items() if name != "logits"}
        if state["length_0"] == tokens.shape[1]:
            tokens = np.concatenate([tokens, results["logits"].argmax(-1)], axis=1)
    assert tokens.tolist() == want.tolist()

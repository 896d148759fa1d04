"""Tiny models with random weights, most of them with sliding windows."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

WINDOW = 8
CONFIG = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "sliding_window": WINDOW,
    "initializer_range": 0.3,  # with smaller weights, attention hardly changes the tokens
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"]}


LLAMA = LlamaConfig(num_hidden_layers=3, **{**CONFIG, "sliding_window": None})


def llama(**options: Any) -> LlamaForCausalLM:
    """Returns a model without windows, and with a config that a test may change."""
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**{**LLAMA.to_dict(), **options})).eval()


def mistral(**options: Any) -> MistralForCausalLM:
    torch.manual_seed(0)
    return MistralForCausalLM(MistralConfig(num_hidden_layers=2, **{**CONFIG, **options})).eval()


def gemma_2() -> Gemma2ForCausalLM:
    torch.manual_seed(0)
    return Gemma2ForCausalLM(Gemma2Config(num_hidden_layers=3, **CONFIG)).eval()


def gemma_3(**options: Any) -> Gemma3ForCausalLM:
    torch.manual_seed(0)
    config = Gemma3TextConfig(num_hidden_layers=2, **{**CONFIG, **options}, **ALTERNATING)
    return Gemma3ForCausalLM(config).eval()


def gpt_oss() -> GptOssForCausalLM:
    torch.manual_seed(0)
    return GptOssForCausalLM(GptOssConfig(num_hidden_layers=2, **CONFIG, **EXPERTS, **ALTERNATING)).eval()


def llama_4() -> Llama4ForCausalLM:
    torch.manual_seed(0)
    options = {"attention_chunk_size": WINDOW, "intermediate_size_mlp": 48, **EXPERTS}
    return Llama4ForCausalLM(Llama4TextConfig(num_hidden_layers=4, **CONFIG, **options)).eval()


def prompt(lengths: list[int]) -> dict[str, torch.Tensor]:
    """Returns samples of these lengths, padded on the left."""
    generator = torch.Generator().manual_seed(sum(lengths))
    longest = max(lengths)
    mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths])
    return {"input_ids": torch.randint(1, 97, mask.shape, generator=generator) * mask, "attention_mask": mask}

"""Makes the two decoders with transformers' `StaticCache`, with transformers 5.24 and PyTorch 2.15.

python make_static_llama.py FOLDER
"""

import sys
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

CAPACITY, BATCH, TOKENS = 16, 2, 3


class Decoder(nn.Module):
    """A decoder with tensors for its caches, and with the number of cached tokens."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        config = LlamaConfig(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
        torch.manual_seed(7)
        self.model = LlamaForCausalLM(config).eval()
        with torch.no_grad():
            for weight in self.model.parameters():
                if weight.dim() >= 2:
                    weight.normal_(0, 0.2)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, cached: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Returns the logits, and the keys and values of each layer."""
        cache = StaticCache(config=self.model.config, max_cache_len=CAPACITY)
        for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values, layer.cumulative_length = keys.clone(), values.clone(), cached.clone()
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
        return (result.logits, *(part for layer in cache.layers for part in (layer.keys, layer.values)))


def export(folder: str, layers: int, is_scripted: bool) -> None:
    """Exports a decoder, without the stack traces that the newer exporter adds."""
    path = Path(sys.argv[1]) / folder / "model.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [f"{layer}.{part}" for layer in range(layers) for part in ("key", "value")]
    mask = (torch.arange(CAPACITY) < 8).long().repeat(BATCH, 1)
    past = [torch.zeros(BATCH, 2, CAPACITY, 4) for _ in names]
    arguments = (torch.randint(3, 60, (BATCH, TOKENS)), mask, torch.tensor(5), past)
    inputs = ["input_ids", "attention_mask", "cached", *(f"past_key_values.{name}" for name in names)]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    tokens, batch = {0: "batch", 1: "tokens"}, {0: "batch"}
    axes = dict.fromkeys(("attention_mask", *inputs[3:], *outputs[1:]), batch)
    axes |= {"input_ids": tokens, "logits": tokens}
    shapes = (tokens, batch, None, [batch for _ in names])
    options = (
        {"dynamo": False, "opset_version": 17, "dynamic_axes": axes}
        if is_scripted
        else {"dynamo": True, "external_data": False, "dynamic_shapes": shapes}
    )
    with torch.no_grad():
        decoder = Decoder(layers).eval()
        torch.onnx.export(decoder, arguments, str(path), input_names=inputs, output_names=outputs, **options)
    saved = onnx.load(path)
    graph = saved.graph
    del graph.value_info[:], graph.metadata_props[:]
    for message in (*graph.node, *graph.input, *graph.output, *graph.initializer):
        del message.metadata_props[:]
    onnx.save(saved, path)


export("torch-2.15-llama-static", layers=2, is_scripted=False)
export("torchscript-2.15-llama-static", layers=1, is_scripted=True)

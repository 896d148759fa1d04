"""PyTorch's own exporter: `torch.onnx.export(dynamo=True)` of a transformers model with its caches as arguments."""

import inspect
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import LinearAttentionLayer

from exporters import dynamo_encoder

# The example has more than one of everything, because the exporter treats 1 as constant.
BATCH, TOKENS, PAST = 2, 3, 5


class Decoder(nn.Module):
    """A decoder with tensors for its caches in place of an object."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Returns the logits, and the keys and values of each layer."""
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(zip(past[::2], past[1::2], strict=True)):
            cache.update(keys, values, layer)
        positions = {"position_ids": position_ids} if self.takes_positions else {}
        result = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
            **positions,
        )
        return (result.logits, *_tensors(result.past_key_values))


def opset20(checkpoint: Path, folder: Path) -> None:
    """Exports with the operator set that is the default: attention is separate nodes."""
    _export(checkpoint, folder, 20)


def opset23(checkpoint: Path, folder: Path) -> None:
    """Exports with the first operator set that has `Attention`, which reads the result of a `Concat`."""
    _export(checkpoint, folder, 23)


def opset24(checkpoint: Path, folder: Path) -> None:
    """Exports with the operator set of converted models."""
    _export(checkpoint, folder, 24)


def _export(checkpoint: Path, folder: Path, opset: int) -> None:
    """Exports in float32."""
    config = AutoConfig.from_pretrained(checkpoint)
    if config.is_encoder_decoder:
        architecture = getattr(transformers, config.architectures[0])
        return dynamo_encoder.export(
            architecture.from_pretrained(checkpoint).float().eval(), checkpoint, folder, opset
        )
    # The usual implementation of experts has an operator for which the exporter knows nothing in ONNX.
    model = AutoModelForCausalLM.from_pretrained(checkpoint, experts_implementation="batched_mm")
    model = model.float().eval()
    past = _example_past(model)
    ids = torch.randint(3, 200, (BATCH, TOKENS))
    mask = torch.ones(BATCH, PAST + TOKENS, dtype=torch.int64)
    positions = torch.arange(PAST, PAST + TOKENS).repeat(BATCH, 1)
    tokens = {0: "batch", 1: "tokens"}
    total = {0: "batch", 1: "total"}
    caches = [{0: "batch", 2: "past"} for _ in past]
    names = [f"{layer}.{part}" for layer in range(len(past) // 2) for part in ("key", "value")]
    with torch.no_grad():
        torch.onnx.export(
            Decoder(model),
            (ids, mask, positions, past),
            str(folder / "model.onnx"),
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=(tokens, total, tokens, caches),
            input_names=[
                "input_ids",
                "attention_mask",
                "position_ids",
                *(f"past_key_values.{name}" for name in names),
            ],
            output_names=["logits", *(f"present.{name}" for name in names)],
        )


def _example_past(model: PreTrainedModel) -> list[Tensor]:
    """Returns caches of the right shapes, from a run of the model."""
    with torch.no_grad():
        result = model(torch.randint(3, 200, (BATCH, PAST)), use_cache=True)
    return _tensors(result.past_key_values)


def _tensors(cache: DynamicCache) -> list[Tensor]:
    """Returns the keys and values of each layer that does not read those of another layer."""
    if any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers):
        raise NotImplementedError("states other than keys and values are not currently supported")
    layers = [layer for layer in cache.layers if layer.keys is not None]
    return [tensor for layer in layers for tensor in (layer.keys, layer.values)]

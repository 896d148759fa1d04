"""PyTorch's own exporter for encoder-decoders: the encoder with the cross caches that it makes, and the decoder."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inputs import read_inputs
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

# The example has more than one of everything, because the exporter treats 1 as constant.
BATCH, TOKENS, PAST = 2, 3, 5


class Encoder(nn.Module):
    """An encoder that returns its result, and the keys and values that each layer of the decoder makes of it."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Runs the decoder on one token, of which nothing is left but the cross caches."""
        masks = {} if attention_mask is None else {"attention_mask": attention_mask}
        hidden = self.model.get_encoder()(given, **masks)[0]
        start = torch.zeros((given.shape[0], 1), dtype=torch.int64)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        _run(self.model, start, hidden, attention_mask, cache)
        return (hidden, *_tensors(cache.cross_attention_cache))


class Decoder(nn.Module):
    """A decoder with tensors for its caches in place of an object."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, hidden: Tensor, mask: Tensor | None, past: list[Tensor], cross: list[Tensor]
    ) -> tuple[Tensor, ...]:
        """Returns the logits, and the keys and values of each layer's own tokens."""
        cache = EncoderDecoderCache(_cache(past), _cache(cross))
        logits = _run(self.model, ids, hidden, mask, cache)
        return (logits, *_tensors(cache.self_attention_cache))


def export(model: PreTrainedModel, checkpoint: Path, folder: Path, opset: int) -> None:
    """Exports both parts."""
    inputs = read_inputs(checkpoint)[0]
    name = next(name for name in inputs if name != "attention_mask")
    given = torch.from_numpy(np.repeat(inputs[name], BATCH, 0))
    mask = torch.ones(given.shape, dtype=torch.int64) if "attention_mask" in inputs else None
    with torch.no_grad():
        hidden, *cross = Encoder(model)(given, mask)
        start = EncoderDecoderCache(DynamicCache(), _cache(cross))
        _run(model, torch.randint(3, 200, (BATCH, PAST)), hidden, mask, start)
    past = _tensors(start.self_attention_cache)
    names = [f"{layer}.{{}}.{part}" for layer in range(len(past) // 2) for part in ("key", "value")]
    own, other = ([each.format(kind) for each in names] for kind in ("decoder", "encoder"))
    # Whisper's encoder takes features of one length.
    source = {0: "batch"} if mask is None else {0: "batch", 1: "source"}
    masks = None if mask is None else source
    positions = {0: "batch", 1: "positions"}
    options = {"dynamo": True, "opset_version": opset}
    with torch.no_grad():
        torch.onnx.export(
            Encoder(model),
            (given, mask),
            str(folder / "encoder_model.onnx"),
            dynamic_shapes=(source, masks),
            input_names=[name, *(["attention_mask"] if masks else [])],
            output_names=["last_hidden_state", *(f"present.{each}" for each in other)],
            **options,
        )
        torch.onnx.export(
            Decoder(model),
            (torch.randint(3, 200, (BATCH, TOKENS)), hidden, mask, past, cross),
            str(folder / "model.onnx"),
            dynamic_shapes=(
                {0: "batch", 1: "tokens"},
                positions,
                masks and {0: "batch", 1: "source"},
                [{0: "batch", 2: "past"} for _ in past],
                [{0: "batch", 2: "positions"} for _ in cross],
            ),
            input_names=[
                "input_ids",
                "encoder_hidden_states",
                *(["encoder_attention_mask"] if masks else []),
                *(f"past_key_values.{each}" for each in own + other),
            ],
            output_names=["logits", *(f"present.{each}" for each in own)],
            **options,
        )


def _run(
    model: PreTrainedModel, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: EncoderDecoderCache
) -> Tensor:
    takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
    masks: dict[str, Any] = {"attention_mask": mask} if takes_mask else {}
    encoded = BaseModelOutput(last_hidden_state=hidden)
    result = model(
        encoder_outputs=encoded, decoder_input_ids=ids, past_key_values=cache, use_cache=True, **masks
    )
    return result.logits


def _cache(tensors: list[Tensor]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        cache.update(keys, values, layer)
    return cache


def _tensors(cache: DynamicCache) -> list[Tensor]:
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]

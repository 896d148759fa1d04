"""PyTorch's own exporter for encoder-decoders: the encoder with the cross caches of its result, and the decoder."""

from pathlib import Path
from typing import Any

import torch
from texts import read_texts
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

# The example has more than one of everything, because the exporter treats 1 as constant.
BATCH, TOKENS = 2, 3


class Encoder(nn.Module):
    """An encoder that returns its result, its mask, and the keys and values of each layer of the decoder."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, given: Tensor, mask: Tensor | None) -> tuple[Any, ...]:
        """Runs the decoder on one token, of which only the cross caches are left."""
        encoded = self.model.get_encoder()(given, attention_mask=mask)
        # Moonshine shortens the mask as it shortens the samples.
        mask = getattr(encoded, "attention_mask", mask)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        start = torch.zeros((given.shape[0], 1), dtype=torch.int64)
        _run(self.model, start, encoded.last_hidden_state, mask, cache)
        return encoded.last_hidden_state, mask, _tensors(cache.cross_attention_cache)


class Decoder(nn.Module):
    """A decoder with tensors for its caches in place of an object."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, ids: Tensor, hidden: Tensor, mask: Tensor | None, past: list[Tensor], cross: list[Tensor]
    ) -> tuple[Any, ...]:
        """Returns the logits, and the keys and values of the decoder's own tokens."""
        cache = EncoderDecoderCache(_cache(past), _cache(cross))
        logits = _run(self.model, ids, hidden, mask, cache)
        return logits, _tensors(cache.self_attention_cache)


def export(model: PreTrainedModel, checkpoint: Path, folder: Path, opset: int) -> None:
    """Exports both parts in float32."""
    inputs = read_texts(checkpoint)[0].inputs
    name = next(name for name in inputs if name != "attention_mask")
    given = torch.from_numpy(inputs[name]).repeat_interleave(BATCH, 0)
    # Whisper takes features of one length, and no mask.
    mask = torch.ones_like(given, dtype=torch.int64) if "attention_mask" in inputs else None
    ids = torch.randint(3, 200, (BATCH, TOKENS))
    with torch.no_grad():
        hidden, short, cross = Encoder(model)(given, mask)
        past = Decoder(model)(ids, hidden, short, [], cross)[1]
    source = {0: "batch"} if mask is None else {0: "batch", 1: "source"}
    positions = {0: "batch", 1: "positions"}
    places = [f"{layer}.{{}}.{part}" for layer in range(len(past) // 2) for part in ("key", "value")]
    own, other = ([place.format(kind) for place in places] for kind in ("decoder", "encoder"))
    masks = [] if mask is None else ["encoder_attention_mask"]
    _export(
        Encoder(model),
        (given, mask),
        folder / "encoder_model.onnx",
        opset_version=opset,
        dynamic_shapes=(source, source if masks else None),
        input_names=[name, *(each.removeprefix("encoder_") for each in masks)],
        output_names=["last_hidden_state", *masks, *(f"present.{each}" for each in other)],
    )
    _export(
        Decoder(model),
        (ids, hidden, short, past, cross),
        folder / "model.onnx",
        opset_version=opset,
        dynamic_shapes=(
            {0: "batch", 1: "tokens"},
            positions,
            positions if masks else None,
            [{0: "batch", 2: "past"} for _ in past],
            [{0: "batch", 2: "positions"} for _ in cross],
        ),
        input_names=[
            "input_ids",
            "encoder_hidden_states",
            *masks,
            *(f"past_key_values.{each}" for each in own + other),
        ],
        output_names=["logits", *(f"present.{each}" for each in own)],
    )


def _export(part: nn.Module, example: tuple[Any, ...], file: Path, **options: Any) -> None:
    with torch.no_grad():
        torch.onnx.export(part, example, str(file), dynamo=True, **options)


def _run(
    model: PreTrainedModel, ids: Tensor, hidden: Tensor, mask: Tensor | None, cache: EncoderDecoderCache
) -> Tensor:
    """Runs the decoder, and returns its logits."""
    encoded = BaseModelOutput(last_hidden_state=hidden)
    encoded.attention_mask = mask
    return model(
        encoder_outputs=encoded,
        attention_mask=mask,
        decoder_input_ids=ids,
        past_key_values=cache,
        use_cache=True,
    ).logits


def _cache(tensors: list[Tensor]) -> DynamicCache:
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(tensors[::2], tensors[1::2], strict=True)):
        cache.update(keys, values, layer)
    return cache


def _tensors(cache: DynamicCache) -> list[Tensor]:
    """Returns the keys and values of each layer."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]

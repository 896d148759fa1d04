"""Runs the encoder of an export, and makes what its decoder reads in every step."""

from pathlib import Path

import numpy as np
from graph import Graph, is_cross, place
from texts import Arrays, Text, for_encoder


class Encoder:
    """The encoder beside a decoder."""

    def __init__(self, model: Path, decoder: Graph) -> None:
        self._decoder = decoder
        config = model.parent / "config.json"
        self._encoder = Graph(model.parent / "encoder_model.onnx", config)
        first = model.parent / "decoder_model.onnx"
        # Without a decoder for the first token, the encoder or the decoder itself returns the cross caches.
        self._first = Graph(first, config) if first.exists() else decoder

    def encode(self, text: Text) -> Arrays:
        """Returns the inputs of the decoder that do not change between its steps."""
        encoded = self._encoder.run(for_encoder(text.inputs, self._encoder.inputs))
        hidden = next(
            array for name, array in encoded.items() if name.endswith(("hidden_state", "hidden_states"))
        )
        fixed = {"encoder_hidden_states": hidden}
        # An encoder that shortens its input can return the shorter mask.
        mask = encoded.get("encoder_attention_mask", text.inputs.get("attention_mask"))
        if mask is not None:
            fixed["encoder_attention_mask"] = mask
        caches = _cross(encoded) or _cross(self._run_first(fixed, text.prompt))
        return (
            fixed | {"use_cache_branch": [True]} | {name: caches[place(name)] for name in self._decoder.cross}
        )

    def _run_first(self, fixed: Arrays, prompt: list[int]) -> Arrays:
        """Runs a decoder without any caches."""
        first = self._first
        empty = first.empty(first.caches + first.cross) | {"use_cache_branch": [False]}
        return first.step(prompt, 0, fixed | empty)


def _cross(arrays: Arrays) -> dict[tuple[str, ...], np.ndarray]:
    """Returns the cross caches by their layer and part."""
    return {place(name): array for name, array in arrays.items() if is_cross(name)}

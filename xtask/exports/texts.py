"""The texts that are continued: their prompts, and what an encoder reads, as `.npy` files beside a checkpoint."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from families import Family

Arrays = dict[str, np.ndarray]

# The lengths of the inputs, in tokens and in samples of audio.
TOKENS = [9, 20, 33]
SAMPLES = [4000, 6000, 9000]


@dataclass(frozen=True)
class Text:
    """A prompt, and what the encoder reads."""

    prompt: list[int]
    inputs: Arrays
    """The inputs of the encoder, if there is one."""

    def after(self, tokens: list[int]) -> "Text":
        """Returns the text with more tokens."""
        return replace(self, prompt=self.prompt + tokens)


def make_inputs(family: Family, folder: Path) -> list[Arrays]:
    """Writes the inputs of the family's encoder, one folder for each text."""
    inputs = list(_inputs(family, np.random.default_rng(11)))
    for number, arrays in enumerate(inputs):
        at = folder / "encoder" / f"{number}"
        at.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(at / f"{name}.npy", array)
    return inputs


def read_texts(checkpoint: Path) -> list[Text]:
    """Reads the prompts of the reference, and what `make_inputs` wrote."""
    prompts = json.loads((checkpoint / "reference.json").read_text())["prompts"]
    folders = [checkpoint / "encoder" / f"{number}" for number in range(len(prompts))]
    inputs = [{file.stem: np.load(file) for file in folder.glob("*.npy")} for folder in folders]
    return [Text(*each) for each in zip(prompts, inputs, strict=True)]


def for_encoder(inputs: Arrays, names: Iterable[str]) -> Arrays:
    """Returns the inputs under the names of an encoder's inputs."""
    # The builder of onnxruntime-genai has another name for the features.
    other = {"audio_features": "input_features"}
    return {name: inputs[other.get(name, name)] for name in names}


def fit_together(inputs: list[Arrays]) -> bool:
    """Returns whether the inputs can be one batch: they have one length, or they are token ids with a mask."""
    if all(set(arrays) == {"input_ids", "attention_mask"} for arrays in inputs):
        return True
    return len({tuple(array.shape for array in arrays.values()) for arrays in inputs}) == 1


def stack(inputs: list[Arrays]) -> Arrays:
    """Returns the inputs as one batch, with zeros after the shorter ones."""
    return {name: _padded([arrays[name] for arrays in inputs]) for name in inputs[0]}


def _padded(arrays: list[np.ndarray]) -> np.ndarray:
    longest = max(array.shape[-1] for array in arrays)
    width = [(0, 0)] * (arrays[0].ndim - 1)
    return np.concatenate([np.pad(array, [*width, (0, longest - array.shape[-1])]) for array in arrays])


def _inputs(family: Family, random: np.random.Generator) -> list[Arrays]:
    if "num_mel_bins" in family.settings:
        # The encoder takes features of exactly this length.
        shape = (1, family.settings["num_mel_bins"], 2 * family.settings["max_source_positions"])
        return [{"input_features": random.standard_normal(shape, np.float32)} for _ in TOKENS]
    if family.model_type == "moonshine":
        samples = [random.standard_normal((1, length), np.float32) for length in SAMPLES]
        return [_with_mask("input_values", each) for each in samples]
    # None contains the special tokens 0, 1 and 2.
    ids = [random.integers(3, family.settings["vocab_size"], (1, length)) for length in TOKENS]
    return [_with_mask("input_ids", each) for each in ids]


def _with_mask(name: str, array: np.ndarray) -> Arrays:
    return {name: array, "attention_mask": np.ones(array.shape, np.int64)}

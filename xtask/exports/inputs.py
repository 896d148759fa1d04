"""The inputs of the encoders: random token ids, features or samples, as `.npy` files beside a checkpoint."""

from pathlib import Path

import numpy as np
from families import Family

Arrays = dict[str, np.ndarray]

# The lengths of the inputs, in tokens and in samples of audio.
TOKENS = [9, 20, 33]
SAMPLES = [4000, 6000, 9000]


def make_inputs(family: Family, folder: Path) -> list[Arrays]:
    """Writes the inputs of the family's encoder, one folder for each text."""
    inputs = list(_inputs(family, np.random.default_rng(11)))
    for number, arrays in enumerate(inputs):
        at = folder / "encoder" / f"{number}"
        at.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(at / f"{name}.npy", array)
    return inputs


def read_inputs(folder: Path) -> list[Arrays]:
    """Reads what `make_inputs` wrote, which is nothing for a family without an encoder."""
    folders = sorted((folder / "encoder").glob("*"))
    return [{file.stem: np.load(file) for file in at.glob("*.npy")} for at in folders]


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

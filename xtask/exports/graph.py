"""A graph of an export in ONNX Runtime, and what its inputs mean."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from texts import Arrays

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
# The size of caches that do not grow. All texts fit.
SLOTS = 512


class Graph:
    """A session of ONNX Runtime. Making it shows that ONNX Runtime loads the graph."""

    def __init__(self, model: Path, config: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._config = json.loads(config.read_text())
        self._inputs = {value.name: value for value in self._session.get_inputs()}
        self.inputs = list(self._inputs)
        self.outputs = [value.name for value in self._session.get_outputs()]
        caches = [name for name in self._inputs if _is_cache(name)]
        self.cross = [name for name in caches if is_cross(name)]
        """The caches of the encoder's positions."""
        self.caches = [name for name in caches if name not in self.cross]
        """The caches of the decoder's own tokens, and its states."""

    def run(self, values: Mapping[str, Any]) -> Arrays:
        """Runs the graph with those of the values that it takes."""
        feeds = {name: self._cast(name, value) for name, value in values.items() if name in self._inputs}
        return dict(zip(self.outputs, self._session.run(None, feeds), strict=True))

    def step(self, tokens: list[int], read: int, given: Mapping[str, Any]) -> Arrays:
        """Runs the decoder on tokens after those that it has read."""
        length = read + len(tokens)
        values = {
            "input_ids": [tokens],
            "decoder_input_ids": [tokens],
            "attention_mask": np.ones((1, length)),
            "position_ids": np.arange(read, length)[None],
            "write_indices": [read],
            "nonpad_kv_seqlen": [length],
        }
        return self.run(values | given)

    def empty(self, names: list[str]) -> Arrays:
        """Returns empty caches for one sample."""
        return {name: self._cast(name, np.zeros(self._shape(name))) for name in names}

    def _cast(self, name: str, value: Any) -> np.ndarray:
        return np.asarray(value, TYPES[self._inputs[name].type])

    def _shape(self, name: str) -> list[int]:
        shape = list(self._inputs[name].shape)
        return [size if isinstance(size, int) else self._size(axis, size) for axis, size in enumerate(shape)]

    def _size(self, axis: int, symbol: str | None) -> int:
        if axis == 0:
            # Bloom's old caches have the heads of all samples in the first dimension.
            return self._config["n_head"] if symbol and "num_heads" in symbol else 1
        if symbol == "kv_cache_dim":
            heads = self._config["num_attention_heads"]
            return self._config.get("head_dim") or self._config["hidden_size"] // heads
        # The caches of windows have a fixed size that their name does not tell.
        return SLOTS if symbol == "past_sliding_length" else 0


def is_cross(name: str) -> bool:
    """Returns whether a cache has the encoder's positions."""
    return re.search("encoder|cross", name) is not None


def place(name: str) -> tuple[str, ...]:
    """Returns the layer and the part that the name of a cache contains."""
    parts = re.findall(r"key|value|conv", name.replace("past_key_values", ""))
    return (*re.findall(r"\d+", name), *parts)


def _is_cache(name: str) -> bool:
    """Returns whether an input is the past of a layer."""
    return re.search(r"\d", name) is not None

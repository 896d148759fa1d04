"""Runs an export in ONNX Runtime as its exporter meant it, token by token, with nothing but NumPy."""

import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

TYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}
# The size of caches that do not grow. All texts fit.
SLOTS = 512
TOKENS = {"input_ids", "attention_mask", "position_ids", "write_indices", "nonpad_kv_seqlen"}


@dataclass
class Answer:
    """The greedy tokens after a prompt."""

    tokens: list[int] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    """By how much the logit of each token leads the second."""


class Original:
    """An export in a session of ONNX Runtime. Making it shows that ONNX Runtime loads the export."""

    def __init__(self, model: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = {value.name: value for value in self._session.get_inputs()}
        self._outputs = [value.name for value in self._session.get_outputs()]
        self._config = json.loads((model.parent / "config.json").read_text())

    def greedy(self, prompt: list[int], steps: int) -> Answer:
        """Feeds the prompt at once, and then token by token."""
        caches = {name: np.zeros(self._shape(name), self._type(name)) for name in self._pairs}
        answer = Answer()
        tokens, read = prompt, 0
        while len(answer.tokens) < steps:
            outputs = self._session.run(None, self._feeds(tokens, read) | caches)
            results = dict(zip(self._outputs, outputs, strict=True))
            caches = {past: results[present] for past, present in self._pairs.items()}
            logits = results["logits"][0, -1].astype(np.float32)
            if not np.isfinite(logits).all():
                raise ValueError("the logits are not finite")
            second, first = np.argsort(logits)[-2:]
            answer.tokens.append(int(first))
            answer.leads.append(float(logits[first] - logits[second]))
            tokens, read = [int(first)], read + len(tokens)
        return answer

    def _feeds(self, tokens: list[int], read: int) -> dict[str, np.ndarray]:
        length = read + len(tokens)
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, length)),
            "position_ids": np.arange(read, length)[None],
            "write_indices": np.array([read]),
            "nonpad_kv_seqlen": np.array([length]),
        }
        return {name: value.astype(self._type(name)) for name, value in feeds.items() if name in self._inputs}

    @cached_property
    def _pairs(self) -> dict[str, str]:
        """The present of each past."""
        pasts = [name for name in self._inputs if name not in TOKENS]
        presents = {_place(name): name for name in self._outputs if name != "logits"}
        return {past: presents[_place(past)] for past in pasts}

    def _type(self, name: str) -> Any:
        return TYPES[self._inputs[name].type]

    def _shape(self, name: str) -> list[int]:
        """Returns the shape of an empty cache for one sample."""
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


def _place(name: str) -> tuple[str, ...]:
    """Returns the layer and the part that the name of a cache contains."""
    parts = re.findall(r"key|value|conv", name.replace("past_key_values", ""))
    return (*re.findall(r"\d+", name), *parts)

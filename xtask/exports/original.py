"""Runs an export in ONNX Runtime as its exporter meant it, token by token, with nothing but NumPy."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from encoder import Encoder
from graph import Graph, is_cross, place
from texts import Text


@dataclass
class Answer:
    """The greedy tokens after a prompt."""

    tokens: list[int] = field(default_factory=list)
    leads: list[float] = field(default_factory=list)
    """By how much the logit of each token leads the second."""


class Original:
    """A decoder that was exported, and its encoder if it has one."""

    def __init__(self, model: Path, has_encoder: bool) -> None:
        self._decoder = Graph(model, model.parent / "config.json")
        self._encoder = Encoder(model, self._decoder) if has_encoder else None
        presents = {place(name): name for name in self._decoder.outputs if not is_cross(name)}
        self._pairs = {past: presents[place(past)] for past in self._decoder.caches}

    def greedy(self, text: Text, steps: int) -> Answer:
        """Feeds the prompt at once, and then token by token."""
        fixed = self._encoder.encode(text) if self._encoder else {}
        caches = self._decoder.empty(self._decoder.caches)
        answer = Answer()
        tokens, read = text.prompt, 0
        while len(answer.tokens) < steps:
            results = self._decoder.step(tokens, read, fixed | caches)
            caches = {past: results[present] for past, present in self._pairs.items()}
            logits = results["logits"][0, -1].astype(np.float32)
            if not np.isfinite(logits).all():
                raise ValueError("the logits are not finite")
            second, first = np.argsort(logits)[-2:]
            answer.tokens.append(int(first))
            answer.leads.append(float(logits[first] - logits[second]))
            tokens, read = [int(first)], read + len(tokens)
        return answer

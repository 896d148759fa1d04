"""ONNX Runtime GenAI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai as og

from kvscatter.histories import Engine, Refused


class Genai(Engine):
    """A generator of ONNX Runtime GenAI. It returns the logits after the last token of a step.

    Args:
        model: The folder of a model, with its ``genai_config.json``.
        capacity: The most tokens.
    """

    takes_model = True

    def __init__(self, model: str, capacity: int = 48) -> None:
        self.name = f"onnxruntime-genai {og.__version__}, {Path(model).name}"
        self.capacity = capacity
        # `batch` stays 1, because a batch of several samples takes tokens only once.
        config = json.loads((Path(model) / "genai_config.json").read_text())
        self.vocabulary = config["model"]["vocab_size"]
        self._model: Any = og.Model(model)

    def start(self, samples: int) -> None:
        """Makes a generator."""
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(max_length=self.capacity, batch_size=samples)
        self._generator: Any = og.Generator(self._model, parameters)

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Appends tokens."""
        try:
            self._generator.append_tokens(np.array(rows, dtype=np.int32))
        except RuntimeError as error:
            if "exceeds max length" in str(error):
                raise Refused(str(error)) from error
            raise
        return [logits[-1] for logits in np.asarray(self._generator.get_logits())]

    def truncate(self, lengths: list[int]) -> None:
        """Rewinds."""
        self._generator.rewind_to(lengths[0])

"""Sessions of kvscatter in ONNX Runtime, compared with the exported decoder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnxruntime

import kvscatter
from kvscatter.histories import Engine
from kvscatter.histories.adapters.onnxruntime import OnnxRuntime


class Session(Engine):
    """A `KvSession` with a converted decoder. The exported one computes the expected logits, with empty caches.

    Args:
        model: The file of an exported decoder whose caches grow.
        batch: The most samples.
        max_seq: The slots of each sample.
        options: Other options of `kvscatter.convert`.
    """

    takes_model = True
    ragged = True
    refusals = (kvscatter.OptionError, kvscatter.PositionError)

    def __init__(self, model: str, *, batch: int = 3, max_seq: int = 48, **options: Any) -> None:
        runtime = f"ONNX Runtime {onnxruntime.__version__}"
        self.name = f"kvscatter {kvscatter.__version__} in {runtime}, {Path(model).parent.name}"
        self._folder = tempfile.TemporaryDirectory(prefix="kvscatter-histories-")
        converted = Path(self._folder.name) / "model.onnx"
        conversion = kvscatter.convert(model, converted, max_seq=max_seq, **options)
        self._session = kvscatter.KvSession(converted, batch=batch, threads=1)
        self._exported = OnnxRuntime(model)
        self.vocabulary = self._exported.vocabulary
        self.batch = batch
        # A model whose caches are all rings takes more.
        self.capacity = max_seq if self._session.capacity == max_seq else None
        self.windows = tuple(ring.window for ring in conversion.rings if ring.window)
        self.edges = tuple(ring.capacity for ring in conversion.rings)
        self._samples: list[kvscatter.Sample] = []

    def reference(self, tokens: list[int]) -> Any:
        """Runs the exported decoder on the whole text."""
        self._exported.start(1)
        return self._exported.feed([tokens])[0]

    def start(self, samples: int) -> None:
        """Removes all samples."""
        for sample in self._session.samples:
            self._session.remove(sample)
        self._samples = [self._session.add() for _ in range(samples)]

    def feed(self, rows: list[list[int]]) -> list[Any]:
        """Makes a step."""
        fed = {sample: row for sample, row in zip(self._samples, rows, strict=True) if row}
        logits = self._session.step(fed)
        return [
            [logits.after(sample, index) for index in range(len(row))]
            for sample, row in zip(self._samples, rows, strict=True)
        ]

    def truncate(self, lengths: list[int]) -> None:
        """Takes a sample back."""
        for sample, length in zip(self._samples, lengths, strict=True):
            if length < self._session.cached_tokens(sample):
                self._session.truncate(sample, length)

    def begin(self) -> None:
        """Sets a point in each sample."""
        for sample in self._samples:
            if self._session.begun(sample) is not None:
                self._session.commit(sample)
            self._session.begin(sample)

    def accept(self, counts: list[int]) -> None:
        """Keeps the first tokens of each draft."""
        self._session.accept_all(dict(zip(self._samples, counts, strict=True)))

    def add(self) -> None:
        """Adds a sample."""
        self._samples.append(self._session.add())

    def fork(self, sample: int) -> None:
        """Copies a sample."""
        self._samples += self._session.fork(self._samples[sample], 1)

    def remove(self, sample: int) -> None:
        """Removes a sample."""
        self._session.remove(self._samples.pop(sample))

    def reorder(self, parents: list[int]) -> None:
        """Selects beams."""
        self._samples = self._session.reorder(self._samples, parents)

    def save(self, sample: int, path: str) -> None:
        """Saves a sample."""
        self._session.save(self._samples[sample], path)

    def load(self, sample: int, path: str) -> None:
        """Puts a saved sample into the place of one."""
        self._session.remove(self._samples[sample])
        self._samples[sample] = self._session.load(path)

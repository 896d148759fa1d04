"""An engine with a ring, in NumPy, and the same engine with faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from kvscatter.histories import Engine, Refused

WINDOW, SLOTS, WIDTH, VOCABULARY = 6, 9, 16, 48
RANDOM = np.random.default_rng(1)
EMBED, OUT = RANDOM.normal(size=(VOCABULARY, WIDTH)), RANDOM.normal(size=(WIDTH, VOCABULARY))
Q, K, V = RANDOM.normal(size=(3, WIDTH, WIDTH)) / 4


class Sample:
    """The ring of one sample, and how far it was written."""

    def __init__(self) -> None:
        self.rows = np.zeros((2, SLOTS, WIDTH))
        self.tokens: list[int] = []
        self.furthest = 0
        self.begun: int | None = None

    def copy(self) -> Sample:
        copy = Sample()
        copy.rows, copy.tokens, copy.furthest = self.rows.copy(), [*self.tokens], self.furthest
        return copy


class Ring(Engine):
    """An engine without faults. Each subclass plants one."""

    vocabulary, windows, edges = VOCABULARY, (WINDOW,), (SLOTS,)
    batch, ragged = 3, True

    def start(self, samples: int) -> None:
        self.samples = [Sample() for _ in range(samples)]

    def feed(self, rows: list[list[int]]) -> list[Any]:
        return [
            np.array([self.decode(sample, token) for token in row])
            for sample, row in zip(self.samples, rows, strict=True)
        ]

    def decode(self, sample: Sample, token: int) -> Any:
        x, position = EMBED[token], len(sample.tokens)
        sample.rows[:, self.slot(position)] = x @ K, x @ V
        sample.tokens.append(token)
        sample.furthest = max(sample.furthest, position + 1)
        seen = np.arange(max(position - self.window(sample) + 1, 0), position + 1)
        keys, values = sample.rows[:, [self.slot(each) for each in seen]]
        weights = np.exp(keys @ (x @ Q) / 4 + seen / 8)
        return (x + weights / weights.sum() @ values) @ OUT

    def slot(self, position: int) -> int:
        return position % SLOTS

    def window(self, sample: Sample) -> int:
        return WINDOW

    def truncate(self, lengths: list[int]) -> None:
        for sample, length in zip(self.samples, lengths, strict=True):
            if length < len(sample.tokens):
                self.check(sample, length)
                sample.tokens = sample.tokens[:length]

    def check(self, sample: Sample, length: int) -> None:
        if max(length - WINDOW + 1, 0) < sample.furthest - SLOTS:
            raise Refused("too far")

    def begin(self) -> None:
        for sample in self.samples:
            sample.begun = len(sample.tokens)

    def accept(self, counts: list[int]) -> None:
        lengths = [(sample.begun or 0) + count for sample, count in zip(self.samples, counts, strict=True)]
        for sample, length in zip(self.samples, lengths, strict=True):
            self.check(sample, length)
        for sample, length in zip(self.samples, lengths, strict=True):
            sample.tokens = sample.tokens[:length]

    def add(self) -> None:
        self.samples.append(Sample())

    def fork(self, sample: int) -> None:
        self.samples.append(self.samples[sample].copy())

    def remove(self, sample: int) -> None:
        del self.samples[sample]

    def reorder(self, parents: list[int]) -> None:
        self.samples = [self.samples[parent].copy() for parent in parents]

    def save(self, sample: int, path: str) -> None:
        saved = self.samples[sample]
        Path(path).write_text(json.dumps([saved.rows.tolist(), saved.tokens, saved.furthest]))

    def load(self, sample: int, path: str) -> None:
        loaded = Sample()
        rows, loaded.tokens, loaded.furthest = json.loads(Path(path).read_text())
        loaded.rows = np.array(rows)
        self.samples[sample] = loaded

    def poison(self) -> None:
        for sample in self.samples:
            first = max(sample.furthest - SLOTS, 0)
            kept = {self.slot(position) for position in range(first, len(sample.tokens))}
            sample.rows[:, [slot for slot in range(SLOTS) if slot not in kept]] = np.nan


class ShortWindowAfterRewind(Ring):
    def window(self, sample: Sample) -> int:
        return WINDOW - (len(sample.tokens) < sample.furthest)


class ForgetsRefusal(Ring):
    def check(self, sample: Sample, length: int) -> None:
        pass


class RewindsOneTooFar(Ring):
    def check(self, sample: Sample, length: int) -> None:
        super().check(sample, length + 1)


class ChangesBeforeRefusal(Ring):
    def check(self, sample: Sample, length: int) -> None:
        sample.rows[0, 0] += 1
        super().check(sample, length)


class SharesForkedRows(Ring):
    def fork(self, sample: int) -> None:
        super().fork(sample)
        self.samples[-1].rows = self.samples[sample].rows


class SwapsInPlace(Ring):
    def reorder(self, parents: list[int]) -> None:
        for index, parent in enumerate(parents):
            self.samples[index] = self.samples[parent].copy()


class SavesInOrder(Ring):
    def save(self, sample: int, path: str) -> None:
        super().save(sample, path)
        rows, tokens, furthest = json.loads(Path(path).read_text())
        rolled = np.roll(rows, -len(tokens) if len(tokens) > SLOTS else 0, axis=1)
        Path(path).write_text(json.dumps([rolled.tolist(), tokens, furthest]))


class RemovesTheNext(Ring):
    def remove(self, sample: int) -> None:
        del self.samples[min(sample + 1, len(self.samples) - 1)]


class AcceptsOneMore(Ring):
    def accept(self, counts: list[int]) -> None:
        drafted = [len(sample.tokens) - (sample.begun or 0) for sample in self.samples]
        super().accept([min(count + 1, most) for count, most in zip(counts, drafted, strict=True)])


class ReadsHiddenSlots(Ring):
    def decode(self, sample: Sample, token: int) -> Any:
        return super().decode(sample, token) + 0 * sample.rows.sum()


class Crashes(Ring):
    def add(self) -> None:
        raise KeyError("no free row")


class RefusesToFeed(Ring):
    def feed(self, rows: list[list[int]]) -> list[Any]:
        if (
            max(len(sample.tokens) + len(row) for sample, row in zip(self.samples, rows, strict=True))
            > 3 * WINDOW
        ):
            raise Refused("full")
        return super().feed(rows)

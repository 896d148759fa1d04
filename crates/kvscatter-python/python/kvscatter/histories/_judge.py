"""Runs histories on an engine, and compares its logits with those computed from scratch."""

from __future__ import annotations

import tempfile
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvscatter.histories._engine import Engine, Refused
from kvscatter.histories._facts import Facts
from kvscatter.histories._history import (
    Accept,
    Add,
    Begin,
    Done,
    Feed,
    Fork,
    History,
    Load,
    Operation,
    Poison,
    Refusal,
    Remove,
    Reorder,
    Save,
    SetAdapter,
    Start,
    Texts,
    Truncate,
)

Logits = NDArray[np.floating[Any]]

MEMORY: Final = 2048
"""The number of texts whose logits are kept."""


class EngineError(Exception):
    """An adapter describes no engine, or one that no history can test."""


class Failed(AssertionError):
    """An engine does not do what a history needs.

    Attributes:
        history: The operations up to the one that fails.
        sample: The sample with wrong logits, or None.
        position: The number of tokens up to the one with wrong logits.
        difference: The largest difference of its logits, as a part of the largest logit. It is NaN if one is.
    """

    def __init__(
        self,
        message: str,
        history: History,
        *,
        sample: int | None = None,
        position: int | None = None,
        difference: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.history = history
        self.sample = sample
        self.position = position
        self.difference = difference

    def __reduce__(self) -> str:
        raise TypeError("a failure cannot be pickled")


class Reference:
    """The right logits of a text: those of the adapter's `reference`, or of an engine with an empty cache."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[tuple[str | None, tuple[int, ...]], Logits] = OrderedDict()

    def logits(self, tokens: tuple[int, ...], adapter: str | None) -> Logits:
        """Returns the logits after some tokens, from the last one back: all, or only those after the last."""
        key = (adapter, tokens)
        if key not in self._known:
            self._known[key] = self._computed(tokens, adapter)
            if len(self._known) > MEMORY:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def _computed(self, tokens: tuple[int, ...], adapter: str | None) -> Logits:
        engine = self._engine
        if hasattr(engine, "reference"):
            given = (list(tokens), adapter) if engine.adapters else (list(tokens),)
            return _logits(engine.reference(*given), len(tokens), engine)
        engine.start(1)
        if adapter is not None and hasattr(engine, "set_adapter"):
            engine.set_adapter(adapter)
        most = engine.max_feed or len(tokens)
        parts = [tokens[first : first + most] for first in range(0, len(tokens), most)]
        rows = [_logits(_feed(engine, Feed((part,)))[0], len(part), engine) for part in parts]
        return np.concatenate(rows) if sum(map(len, rows)) == len(tokens) else rows[-1]


class Judge:
    """Runs one history at a time. Each operation that is not refused is compared at once."""

    def __init__(self, engine: Engine, reference: Reference) -> None:
        self.engine = engine
        self.texts = Texts()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._refusals: tuple[type[Exception], ...] = (Refused, *engine.refusals)
        self._reference = reference
        self._operations: list[Operation] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def history(self) -> History:
        """The operations since the last `Start`."""
        return History(tuple(self._operations))

    def close(self) -> None:
        """Removes the files of the history."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def apply(self, operation: Operation) -> None:
        """Runs an operation, or tries one that was refused again.

        Raises:
            Failed: The engine fails, or returns wrong logits.
            ValueError: The operation is impossible here.
        """
        done = operation.operation if isinstance(operation, Refusal) else operation
        if isinstance(done, Start):
            self.close()
            self._operations.clear()
            self.texts = Texts(adapter=self.engine.adapters[0] if self.engine.adapters else None)
        after = self.texts.copy()
        after.apply(done)
        self._operations.append(done)
        try:
            returned = self._call(done)
        except self._refusals as error:
            self.refused[done.name] += 1
            self._check_refusal(done, after, error)
            self._operations[-1] = Refusal(done)
            return
        except Exception as error:
            raise Failed(f"{done.name} raises {named(error)}", self.history) from error
        self.texts = after
        self.done[done.name] += 1
        if isinstance(done, Feed):
            self._compare(done, returned)

    def _call(self, operation: Done) -> Any:
        engine: Any = self.engine
        match operation:
            case Start(samples):
                return engine.start(samples)
            case Feed():
                return _feed(engine, operation)
            case Truncate(values) | Accept(values) | Reorder(values):
                return getattr(engine, operation.name)(list(values))
            case Begin():
                return engine.begin() if hasattr(engine, "begin") else None
            case Add() | Poison():
                return getattr(engine, operation.name)()
            case Fork(sample) | Remove(sample):
                return getattr(engine, operation.name)(sample)
            case Save(sample, file) | Load(sample, file):
                return getattr(engine, operation.name)(sample, self._path(file))
            case SetAdapter(adapter):
                return engine.set_adapter(adapter)

    def _path(self, file: int) -> str:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="kvscatter-histories-")
        return str(Path(self._folder.name) / f"sample-{file}")

    def _check_refusal(self, operation: Done, after: Texts, error: Exception) -> None:
        """Fails if an engine refuses to start, or tokens for which it has room."""
        capacity = self.engine.capacity
        has_room = capacity is None or all(len(sample.tokens) <= capacity for sample in after.samples)
        if isinstance(operation, Start) or (isinstance(operation, Feed) and has_room):
            room = f" although it has room for {capacity} tokens" if capacity else ""
            raise Failed(f"{operation.name} is refused{room}: {named(error)}", self.history) from error

    def _compare(self, feed: Feed, returned: Any) -> None:
        try:
            count = len(returned)
        except TypeError:
            count = -1
        if count != len(feed.rows):
            raise EngineError(f"feed returned {_shown(returned)} for {len(feed.rows)} samples")
        for index, row in enumerate(feed.rows):
            if row:
                self._compare_sample(index, len(row), _logits(returned[index], len(row), self.engine))

    def _compare_sample(self, index: int, fed: int, logits: Logits) -> None:
        tokens = self.texts.samples[index].tokens
        try:
            expected = self._reference.logits(tokens, self.texts.adapter)
        except self._refusals as error:
            message = f"feed accepts {len(tokens)} tokens of sample {index}, which an empty cache refuses"
            raise Failed(f"{message}: {named(error)}", self.history, sample=index) from error
        rows = min(len(logits), len(expected), fed)
        for back in range(rows, 0, -1):
            difference = relative_difference(logits[-back], expected[-back])
            if not difference <= self.engine.tolerance:
                position = len(tokens) - back + 1
                message = f"the logits of sample {index} after token {position} " + (
                    "contain NaN or infinity, unlike those computed again"
                    if not np.isfinite(difference)
                    else f"differ by {difference:.2g} of the largest from those computed again "
                    f"(allowed: {self.engine.tolerance:g})"
                )
                raise Failed(
                    message, self.history, sample=index, position=position, difference=float(difference)
                )


def relative_difference(logits: Logits, expected: Logits) -> float:
    """Returns the largest difference of two logits, as a part of the largest one that is expected."""
    largest = np.abs(expected).max()
    return float(np.abs(logits - expected).max() / (largest if largest > 0 else 1))


def run(judge: Judge, history: History) -> Failed | None:
    """Runs a history, and returns why it fails.

    Raises:
        EngineError: The engine has no method for an operation, or returns no logits.
        ValueError: The engine refuses an operation that a later one needs.
    """
    try:
        for operation in history.operations:
            if operation.name != "begin" and operation.name not in Facts(judge.engine).can:
                raise EngineError(f"the engine has no method {operation.name}, which the history needs")
            judge.apply(operation)
    except Failed as failed:
        return failed
    finally:
        judge.close()
    return None


def _feed(engine: Any, feed: Feed) -> Any:
    rows = [list(row) for row in feed.rows]
    if not engine.paddings:
        return engine.feed(rows)
    return engine.feed(rows, feed.padding or engine.paddings[0])


def _logits(returned: object, rows: int, engine: Engine) -> Logits:
    """Returns the logits after each of some tokens, or after the last one only."""
    logits = np.asarray(returned)
    if logits.dtype.kind != "f":
        raise EngineError(f"feed returned {_shown(returned)}; logits must be floating-point")
    logits = np.atleast_2d(logits.astype(np.float64))
    if logits.ndim != 2 or logits.shape[0] not in (1, rows) or logits.shape[1] != engine.vocabulary:
        shapes = f"[{rows}, {engine.vocabulary}] or [{engine.vocabulary}]"
        raise EngineError(
            f"the logits of {rows} tokens have the shape {list(np.shape(logits))}, not {shapes}"
        )
    return logits


def named(error: Exception) -> str:
    """Returns the class and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _shown(value: object) -> str:
    return f"{type(value).__name__} {str(value)[:60]}"

"""Runs histories on an engine, and compares its logits with those computed from scratch."""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvscatter.histories._engine import Engine, EngineError, Refused
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
    counted,
)

Logits = NDArray[np.floating[Any]]

MEMORY: Final = 1 << 27
"""The most bytes of logits that are kept."""


class Failed(AssertionError):
    """An engine does not do what a history needs.

    Attributes:
        kind: What fails, such as ``logits`` or ``feed raises IndexError``. A shorter history must fail in the same way.
        history: The operations up to the one that fails.
        sample: The sample with wrong logits, or None.
        position: The number of tokens up to the one with wrong logits.
        difference: The largest difference of its logits, as a part of the largest logit. It is NaN if one is.
    """

    def __init__(
        self,
        message: str,
        kind: str,
        history: History,
        *,
        sample: int | None = None,
        position: int | None = None,
        difference: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.history = history
        self.sample = sample
        self.position = position
        self.difference = difference


class Reference:
    """The right logits of a text: those of the adapter's `reference`, or of an engine with an empty cache."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Any = engine
        self._known: OrderedDict[tuple[str | None, tuple[int, ...]], Logits] = OrderedDict()
        self._bytes = 0

    def logits(self, tokens: tuple[int, ...], adapter: str | None) -> Logits:
        """Returns the logits after each token, or after the last one only."""
        key = (adapter, tokens)
        if key not in self._known:
            self._known[key] = self._computed(tokens, adapter)
            self._bytes += self._known[key].nbytes
            while self._bytes > MEMORY and len(self._known) > 1:
                self._bytes -= self._known.popitem(last=False)[1].nbytes
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
    """Runs one history at a time. The logits of each step are compared at once."""

    def __init__(self, engine: Engine, reference: Reference) -> None:
        self.engine = engine
        self.texts = Texts()
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.longest = 0
        self._refusals: tuple[type[Exception], ...] = (Refused, *engine.refusals)
        self._reference = reference
        self.can = Facts(engine).can
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
        """Runs an operation, or repeats a refused one.

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
            if isinstance(done, Save):
                Path(self._path(done.file)).unlink(missing_ok=True)
            self._check_refusal(done, after, error)
            self._operations[-1] = Refusal(done)
            return
        except (Exception, SystemExit) as error:
            kind = f"{done.name} raises {type(error).__name__}"
            raise Failed(
                f"{done.name} raises {first_line(error)}{_place(error)}", kind, self.history
            ) from error
        self.texts = after
        self.longest = max(self.longest, *(len(sample.tokens) for sample in after.samples))
        self.done[done.name] += 1
        if isinstance(done, Feed):
            self._check_capacity()
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
                return engine.begin() if "begin" in self.can else None
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
            room = f" although the capacity is {capacity} tokens" if capacity else ""
            kind = f"{operation.name} is refused"
            raise Failed(f"{kind}{room}: {first_line(error)}", kind, self.history) from error

    def _check_capacity(self) -> None:
        """Fails if a step was accepted although a sample has no room for it."""
        capacity = self.engine.capacity
        for index, sample in enumerate(self.texts.samples):
            if capacity is not None and len(sample.tokens) > capacity:
                message = f"feed accepts {len(sample.tokens)} tokens of sample {index}, but the capacity is {capacity}"
                raise Failed(message, "feed exceeds the capacity", self.history)

    def _compare(self, feed: Feed, returned: Any) -> None:
        if not isinstance(returned, list | tuple) or len(returned) != len(feed.rows):
            samples = counted(len(feed.rows), "sample")
            raise EngineError(
                f"feed returned {_shown(returned)}; return a list with an array for each of {samples}"
            )
        for index, row in enumerate(feed.rows):
            if row:
                self._compare_sample(index, len(row), _logits(returned[index], len(row), self.engine))

    def _compare_sample(self, index: int, fed: int, logits: Logits) -> None:
        tokens = self.texts.samples[index].tokens
        try:
            expected = self._reference.logits(tokens, self.texts.adapter)
        except (Exception, SystemExit) as error:
            does = "refuses" if isinstance(error, self._refusals) else "fails on"
            again = f"an empty cache {does} them: {first_line(error)}{_place(error)}"
            message = f"feed accepts {len(tokens)} tokens of sample {index}, but {again}"
            raise Failed(message, f"an empty cache {does}", self.history, sample=index) from error
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
                    message,
                    "logits",
                    self.history,
                    sample=index,
                    position=position,
                    difference=float(difference),
                )


def relative_difference(logits: Logits, expected: Logits) -> float:
    """Returns the largest difference of two logits, as a part of the largest finite one that is expected.

    Infinities of the same sign are equal, because some engines mask tokens with them. NaN equals nothing.
    """
    logits, expected = logits.astype(np.float64), expected.astype(np.float64)
    differences = np.subtract(logits, expected, out=np.zeros_like(expected), where=logits != expected)
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)
    return float(np.abs(differences).max() / (largest if largest > 0 else 1))


def run(judge: Judge, history: History) -> Failed | None:
    """Runs a history, and returns why it fails.

    Raises:
        EngineError: The history is not one of this engine, or its logits have another shape.
    """
    _check_history(history, judge.engine, judge.can)
    try:
        for number, operation in enumerate(history.operations):
            try:
                judge.apply(operation)
            except ValueError as error:
                reason = "because the engine refuses other operations than those recorded in the history"
                raise EngineError(f"operation {number} is impossible, {reason}: {error}") from error
    except Failed as failed:
        return failed
    finally:
        judge.close()
    return None


def _check_history(history: History, engine: Engine, can: set[str]) -> None:
    """Checks that the engine has the samples, the tokens and the methods of a history."""
    for step, texts in history.texts():
        operation = step.operation if isinstance(step, Refusal) else step
        if operation.name != "begin" and operation.name not in can:
            raise EngineError(f"the engine has no method {operation.name}, which the history needs")
        if len(texts.samples) > engine.batch:
            raise EngineError(f"the history has {len(texts.samples)} samples, and batch is {engine.batch}")
        if isinstance(operation, Feed):
            token = max((token for row in operation.rows for token in row), default=0)
            if token >= engine.vocabulary:
                raise EngineError(f"the history has token {token}, and vocabulary is {engine.vocabulary}")
            if not engine.ragged and len({len(row) for row in operation.rows}) > 1:
                raise EngineError("the history feeds rows of different lengths, and the engine is not ragged")
            if operation.padding not in (None, *engine.paddings):
                raise EngineError(f"the history pads on the {operation.padding!r}, which is not in paddings")
        if isinstance(operation, SetAdapter) and operation.adapter not in engine.adapters:
            raise EngineError(f"the history sets adapter {operation.adapter!r}, which is not in adapters")


def _feed(engine: Any, feed: Feed) -> Any:
    rows = [list(row) for row in feed.rows]
    if not engine.paddings:
        return engine.feed(rows)
    return engine.feed(rows, feed.padding or engine.paddings[0])


def _logits(returned: object, rows: int, engine: Engine) -> Logits:
    """Returns the logits after each of some tokens, or after the last one only."""
    logits = np.asarray(returned)
    if logits.dtype.kind != "f":
        raise EngineError(f"the logits are {_shown(returned)}; they must be floating-point numbers")
    shape = logits.shape
    logits = np.atleast_2d(logits)
    if logits.ndim != 2 or logits.shape[0] not in (1, rows) or logits.shape[1] != engine.vocabulary:
        shapes = f"[{rows}, {engine.vocabulary}] or [{engine.vocabulary}]"
        raise EngineError(f"the logits of {rows} tokens have the shape {list(shape)}, not {shapes}")
    return logits


def first_line(error: BaseException) -> str:
    """Returns the class and the first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _place(error: BaseException) -> str:
    """Returns the file and the line that raised an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _shown(value: object) -> str:
    """Returns what a method returned, in a few words."""
    if value is None:
        return "None"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of length {len(value)}"
    shape = getattr(value, "shape", None)
    return (
        f"an array of shape {list(shape)}"
        if shape is not None
        else f"{type(value).__name__} {str(value)[:60]}"
    )

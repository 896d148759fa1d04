"""Shortens a history that fails, by what is known about its operations.

Hypothesis can shorten a history too, but it knows only the choices that led to it, and a choice means something else
when an earlier step is missing. Here the later steps are adapted, so that they stay possible. For two faults of
transformers, Hypothesis left 10 and 13 operations where this leaves 4 and 4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvscatter.histories._facts import Facts
from kvscatter.histories._history import (
    Accept,
    Add,
    Feed,
    Fork,
    History,
    Load,
    Operation,
    Refusal,
    Remove,
    Reorder,
    Save,
    Start,
    Texts,
    Truncate,
)


def shorten(history: History, facts: Facts, fails: Callable[[History], History | None]) -> History:
    """Returns a failing history that has no smaller failing form.

    Args:
        history: A history that fails.
        facts: What histories the engine can have.
        fails: Runs a history. Returns it up to the operation that fails, or None if none fails or the time is over.
    """
    tried = {history}
    while True:
        for smaller in _smaller(history, facts):
            if (
                smaller not in tried
                and size(smaller) < size(history)
                and _longest(smaller) <= facts.longest + 2
            ):
                tried.add(smaller)
                failing = fails(smaller)
                if failing is not None:
                    history = failing
                    break
        else:
            return history


def size(history: History) -> tuple[int, int, int, int]:
    """Returns the sizes by which histories are compared: operations, samples, tokens and dropped tokens."""
    tokens = sum(len(row) for step in history.operations if isinstance(step, Feed) for row in step.rows)
    samples = max(len(texts.samples) for _, texts in history.texts())
    dropped = sum(sum(each) for _, each in _truncations(history))
    return len(history.operations), samples, tokens, dropped


def _longest(history: History) -> int:
    """Returns the most tokens of a sample."""
    return max(len(sample.tokens) for _, texts in history.texts() for sample in texts.samples)


def _truncations(history: History) -> Iterator[tuple[Operation, tuple[int, ...]]]:
    """Returns each truncation with the number of tokens that it drops from each sample."""
    before: list[int] = []
    for operation, texts in history.texts():
        if isinstance(operation, Truncate):
            pairs = zip(before, operation.lengths, strict=True)
            yield operation, tuple(length - after for length, after in pairs)
        before = [len(sample.tokens) for sample in texts.samples]


def _smaller(history: History, facts: Facts) -> Iterator[History]:
    """Returns smaller histories, the smallest first."""
    steps, dropped = history.operations, dict(_truncations(history))
    yield from _possible(dropped, [step for step in steps if not isinstance(step, Refusal)], facts)
    for length in (4, 2, 1):
        for first in range(1, len(steps) - length + 1):
            yield from _possible(dropped, steps[:first] + steps[first + length :], facts)
    for first in range(1, len(steps)):
        for second in range(first + 1, len(steps)):
            rest = [step for index, step in enumerate(steps) if index not in (first, second)]
            yield from _possible(dropped, rest, facts)
    for first in range(1, len(steps) - 1):
        merged = _merged(steps[first], steps[first + 1])
        if merged is not None:
            yield from _possible(dropped, [*steps[:first], merged, *steps[first + 2 :]], facts)
    for sample in range(_samples(steps) if _samples(steps) > 1 else 0):
        without = _without_sample(steps, sample)
        if without is not None:
            yield from _possible(dropped, without, facts)
    for index, step in enumerate(steps):
        for changed in _simpler(step):
            yield from _possible(dropped, [*steps[:index], changed, *steps[index + 1 :]], facts)


def _merged(first: Operation, second: Operation) -> Operation | None:
    """Returns one step with the tokens of two."""
    if not isinstance(first, Feed) or not isinstance(second, Feed) or len(first.rows) != len(second.rows):
        return None
    return replace(first, rows=tuple(row + more for row, more in zip(first.rows, second.rows, strict=True)))


def _samples(steps: Sequence[Operation]) -> int:
    return steps[0].samples if isinstance(steps[0], Start) else 0


def _without_sample(steps: Sequence[Operation], sample: int) -> list[Operation] | None:
    """Leaves one of the first samples out of all steps, or returns None if it has copies."""
    rest: list[Operation] = []
    index: int | None = sample
    for step in steps:
        if index is None:
            rest.append(step)
            continue
        done = step.operation if isinstance(step, Refusal) else step
        match done:
            case Start(samples):
                rest.append(Start(samples - 1))
            case Feed(values):
                rest.append(replace(done, rows=values[:index] + values[index + 1 :]))
            case Truncate(values) | Accept(values):
                rest.append(type(done)(values[:index] + values[index + 1 :]))
            case Reorder(parents):
                others = parents[:index] + parents[index + 1 :]
                if index in others:
                    return None
                rest.append(Reorder(tuple(parent - (parent > index) for parent in others)))
            case Remove(removed) if removed == index:
                index = None
            case Fork(other) | Remove(other) | Save(other) | Load(other):
                if other == index and not isinstance(done, Load):
                    return None
                if other != index:
                    rest.append(replace(done, sample=other - (other > index)))
                if isinstance(done, Remove) and other < index:
                    index -= 1
            case _:
                rest.append(done)
    return rest


def _simpler(step: Operation) -> Iterator[Operation]:
    """Returns simpler forms of one operation."""
    match step:
        case Feed(rows):
            counts = [len(row) for row in rows]
            for count in sorted({1, max(counts) // 2, max(counts) - 1} - {0}):
                yield replace(step, rows=tuple(row[:count] for row in rows))
            for index, count in enumerate(counts):
                for fewer in sorted({0, 1, count // 2, max(count - 1, 0)} if count else set()):
                    yield replace(step, rows=(*rows[:index], rows[index][:fewer], *rows[index + 1 :]))
        case Truncate(lengths):
            yield Truncate(tuple(length + 1 for length in lengths))
            for index, length in enumerate(lengths):
                yield Truncate((*lengths[:index], length + 1, *lengths[index + 1 :]))
        case Accept(counts):
            for index, count in enumerate(counts):
                yield Accept((*counts[:index], max(count - 1, 0), *counts[index + 1 :]))


def _possible(
    dropped: dict[Operation, tuple[int, ...]], steps: Sequence[Operation], facts: Facts
) -> Iterator[History]:
    """Returns the history of some steps, adapted so that each is possible.

    Samples are taken back by as many tokens as they were before, or to the same length.
    """
    yield _adapted(steps, facts, dropped)
    if dropped:
        yield _adapted(steps, facts, {})


def _adapted(steps: Sequence[Operation], facts: Facts, dropped: dict[Operation, tuple[int, ...]]) -> History:
    texts = Texts()
    adapted: list[Operation] = []
    for step in steps:
        for possible in _adapted_step(step, texts, facts, dropped):
            texts.apply(possible)
            adapted.append(possible)
    return History(tuple(_with_new_files(adapted)))


def _with_new_files(steps: Sequence[Operation]) -> Iterator[Operation]:
    """Numbers the files in the order in which they are saved."""
    numbers: dict[int, int] = {}
    new = itertools.count()
    for step in steps:
        if isinstance(step, Save):
            numbers[step.file] = next(new)
        yield replace(step, file=numbers[step.file]) if isinstance(step, Save | Load) else step


def _adapted_step(
    step: Operation, texts: Texts, facts: Facts, dropped: dict[Operation, tuple[int, ...]]
) -> Iterator[Operation]:
    """Returns the operation in a form that is possible after these texts, or nothing."""
    lengths = [len(sample.tokens) for sample in texts.samples]
    count = len(lengths)
    if isinstance(step, Refusal):
        for possible in _adapted_step(step.operation, texts, facts, dropped):
            assert not isinstance(possible, Refusal)
            yield Refusal(possible)
        return
    match step:
        case Feed(rows):
            row = max(rows[:count], key=len, default=())
            rows = rows[:count] + (() if facts.engine.ragged else row,) * (count - len(rows))
            rows = tuple(row[: facts.engine.max_feed] for row in rows)
            if not facts.engine.ragged:
                fewest = min(len(row) for row in rows)
                rows = tuple(row[:fewest] for row in rows)
            if any(rows):
                yield replace(step, rows=rows)
        case Truncate(to):
            less = dropped.get(step, ())
            after = [
                max(length - less[index], 0)
                if index < len(less)
                else min(length, *to[index : index + 1] or [length])
                for index, length in enumerate(lengths)
            ]
            if not facts.engine.ragged:
                after = [min(after)] * count
            if sum(map(int.__ne__, after, lengths)) in ((1,) if facts.engine.ragged else (count,)):
                yield Truncate(tuple(after))
        case Accept(counts):
            if all(sample.begun is not None for sample in texts.samples):
                drafted = [
                    length - (sample.begun or 0)
                    for length, sample in zip(lengths, texts.samples, strict=True)
                ]
                kept = [min(most, *counts[index : index + 1] or [most]) for index, most in enumerate(drafted)]
                yield Accept(tuple(kept if facts.engine.ragged else [min(kept)] * count))
        case Add():
            if count < facts.engine.batch and facts.engine.ragged:
                yield step
        case Fork(sample):
            if count < facts.engine.batch:
                yield Fork(min(sample, count - 1))
        case Remove(sample):
            if count > 1:
                yield Remove(min(sample, count - 1))
        case Reorder(parents):
            known = [min(parent, count - 1) for parent in parents[:count]]
            yield Reorder((*known, *range(len(known), count)))
        case Save(sample, file):
            yield Save(min(sample, count - 1), file)
        case Load(sample, file):
            at = min(sample, count - 1)
            if file in texts.files and (
                facts.engine.ragged or count == 1 or len(texts.files[file]) == lengths[at]
            ):
                yield Load(at, file)
        case _:
            yield step

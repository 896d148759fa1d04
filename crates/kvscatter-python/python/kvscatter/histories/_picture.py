"""Pictures of the cache: which slots each step of a history writes, as `kvscatter.plan` draws them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvscatter._native import Plan, plan
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import Feed, History, Texts
from kvscatter.histories._words import story


@dataclass(frozen=True, slots=True)
class Step:
    """One operation, what it leaves in the cache, and what it writes.

    Attributes:
        story: What the operation does, in words.
        lengths: The number of tokens of each sample after it.
        plan: The write of a `Feed`, which draws itself as text and SVG, or None for other operations.
    """

    story: str
    lengths: tuple[int, ...]
    plan: Plan | None


def steps(history: History, engine: Engine) -> Iterator[Step]:
    """Returns the steps of a history. Samples are drawn in the order of the batch."""
    every = list(history.texts())
    longest = max(len(sample.tokens) for _, texts in every for sample in texts.samples)
    before = Texts()
    for operation, texts in every:
        writes = _plan(operation, before, engine, longest) if isinstance(operation, Feed) else None
        yield Step(story(operation), tuple(len(sample.tokens) for sample in texts.samples), writes)
        before = texts


def slots(engine: Engine, longest: int) -> int:
    """Returns the number of slots to draw: those of the smallest ring that has a window, or of a linear cache."""
    if engine.windows:
        window = max(engine.windows)
        return min((edge for edge in engine.edges if edge >= window), default=window)
    return engine.capacity or max(longest, 1)


def _plan(feed: Feed, before: Texts, engine: Engine, longest: int) -> Plan | None:
    capacity = slots(engine, longest)
    is_ring = bool(engine.windows)
    starts, counts = [], []
    for sample, row in zip(before.samples, feed.rows, strict=True):
        # A ring keeps the last tokens of a row that is longer than it.
        kept = min(len(row), capacity)
        starts.append(len(sample.tokens) + len(row) - kept)
        counts.append(kept)
    if not is_ring and any(start + count > capacity for start, count in zip(starts, counts, strict=True)):
        return None
    shape = (len(starts), 1, capacity, 1)
    update = (len(starts), 1, max(counts), 1)
    mode: Literal["circular", "linear"] = "circular" if is_ring else "linear"
    return plan(shape, update, starts, lengths=counts, mode=mode, dtype="float32")

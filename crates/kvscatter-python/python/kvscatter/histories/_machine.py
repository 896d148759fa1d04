"""Makes histories with Hypothesis. They prefer lengths next to a window, the capacity or another edge of a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvscatter.histories._facts import Facts
from kvscatter.histories._history import (
    Accept,
    Add,
    Begin,
    Feed,
    Fork,
    Load,
    Operation,
    Poison,
    Remove,
    Reorder,
    Sample,
    Save,
    SetAdapter,
    Start,
    Truncate,
)

T = TypeVar("T")


class Operations(RuleBasedStateMachine):
    """One history. The subclass that :func:`machine` makes has the facts and starts a judge."""

    facts: Facts

    @staticmethod
    def begin_history() -> Any:
        """Returns a judge for each history. Each subclass has its own."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.judge = type(self).begin_history()
        self._fed = 0
        self._repeats = False

    def teardown(self) -> None:
        """Removes the files of the history."""
        self.judge.close()

    def _can(self, *names: str) -> bool:
        return self.facts.can.issuperset(names)

    @property
    def _samples(self) -> list[Sample]:
        samples: list[Sample] = self.judge.texts.samples
        return samples

    def _apply(self, operation: Operation) -> None:
        self.judge.apply(operation)

    def _row(self, data: st.DataObject, sample: Sample, count: int) -> tuple[int, ...]:
        """Returns new tokens. In a quarter of the histories, all tokens come from two fixed texts, so that caches that
        look for known prefixes are tested."""
        if self._repeats:
            first = len(sample.tokens) + 1000 * data.draw(st.integers(0, 1))
        else:
            first = self._fed
            self._fed += count
        return tuple(self.facts.token(first + number) for number in range(count))

    def _room(self, sample: Sample) -> int:
        """Returns the most tokens that the sample may be fed."""
        room = self.facts.longest - len(sample.tokens)
        return min(room, self.facts.engine.max_feed or room)

    def _count(self, data: st.DataObject, sample: Sample, room: int) -> int:
        """Draws a number of tokens: few, as many as an edge, or up to an edge."""
        to_edges = {length - len(sample.tokens) for length in self.facts.lengths}
        edges = sorted(count for count in to_edges | set(self.facts.sizes) if 1 <= count <= room)
        few = st.integers(1, min(3, room))
        return data.draw(few | st.sampled_from(edges) if edges else few)

    def _padding(self, data: st.DataObject) -> str | None:
        sides = self.facts.engine.paddings
        return data.draw(st.sampled_from(sides)) if sides else None

    def _one(self, data: st.DataObject, values: Iterable[T]) -> T:
        return data.draw(st.sampled_from(list(values)))

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self._apply(Start(data.draw(st.integers(1, self.facts.engine.batch))))
        self._repeats = data.draw(st.integers(0, 3)) == 3

    def _has_room(self) -> bool:
        return min(self._room(sample) for sample in self._samples) > 0

    def _feed_all(self, data: st.DataObject) -> None:
        room = min(self._room(sample) for sample in self._samples)
        self._feed_count(data, self._count(data, self._samples[0], room))

    def _feed_count(self, data: st.DataObject, count: int) -> None:
        """Feeds each sample this number of tokens."""
        rows = tuple(self._row(data, sample, count) for sample in self._samples)
        self._apply(Feed(rows, self._padding(data)))

    @precondition(lambda self: self._has_room())
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        self._feed_all(data)

    @precondition(lambda self: self._has_room())
    @rule(data=st.data())
    def feed_one_token(self, data: st.DataObject) -> None:
        self._feed_count(data, 1)

    @precondition(lambda self: not self._has_room())
    @rule()
    def wait(self) -> None:
        """Does nothing. Hypothesis needs a rule that is possible."""

    @precondition(lambda self: self._most_missing() is not None)
    @rule(data=st.data())
    def feed_too_much(self, data: st.DataObject) -> None:
        # Tried in one of four draws, because a refused step tests little else.
        count = (self._most_missing() or 0) + data.draw(st.integers(1, 2))
        if data.draw(st.integers(0, 3)) == 0 and count <= (self.facts.engine.max_feed or count):
            self._feed_count(data, count)

    def _most_missing(self) -> int | None:
        """Returns how many tokens the longest sample has room for, if the cache has a capacity."""
        capacity = self.facts.engine.capacity
        if capacity is None or capacity > self.facts.longest:
            return None
        return capacity - max(len(sample.tokens) for sample in self._samples)

    @precondition(lambda self: self._is_ragged())
    @rule(data=st.data())
    def feed_each(self, data: st.DataObject) -> None:
        self._feed_each(data)

    def _is_ragged(self) -> bool:
        return self.facts.engine.ragged and len(self._samples) > 1

    def _feed_each(self, data: st.DataObject) -> None:
        rows = []
        for sample in self._samples:
            room = self._room(sample)
            is_fed = room > 0 and data.draw(st.booleans())
            rows.append(self._row(data, sample, self._count(data, sample, room)) if is_fed else ())
        if any(rows):
            self._apply(Feed(tuple(rows), self._padding(data)))

    @precondition(lambda self: self._can("truncate") and self._has_tokens())
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        self._truncate(data)

    @precondition(lambda self: self._can("truncate") and self._has_tokens())
    @rule(data=st.data())
    def go_back_and_on(self, data: st.DataObject) -> None:
        """Rewinds add up: back 3, on 1 and back 3 is 5."""
        for _ in range(data.draw(st.integers(1, 3))):
            if self._has_tokens():
                self._truncate(data)
            if self._is_ragged() and data.draw(st.booleans()):
                self._feed_each(data)
            elif self._has_room():
                self._feed_all(data)

    def _has_tokens(self) -> bool:
        return any(sample.tokens for sample in self._samples)

    def _truncate(self, data: st.DataObject) -> None:
        lengths = [len(sample.tokens) for sample in self._samples]
        chosen = self._one(data, (index for index, length in enumerate(lengths) if length))
        length = lengths[chosen]
        edges = {edge for edge in self.facts.lengths if edge < length} | {0}
        edges |= {length - dropped for dropped in self.facts.sizes if dropped <= length}
        kept = [length - dropped for dropped in self.facts.kept if dropped <= length]
        ways = [
            st.integers(1, min(3, length)).map(lambda dropped: length - dropped),
            st.sampled_from(sorted(edges)),
            *([st.sampled_from(kept)] if kept else []),
        ]
        to = data.draw(st.one_of(ways))
        if self.facts.engine.ragged:
            lengths[chosen] = to
        else:
            lengths = [to] * len(lengths)
        self._apply(Truncate(tuple(lengths)))

    @precondition(lambda self: self._can("accept") and any(s.begun != len(s.tokens) for s in self._samples))
    @rule()
    def begin(self) -> None:
        self._apply(Begin())

    @precondition(lambda self: self._can("accept") and self._has_room())
    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        self._apply(Begin())
        self._feed_all(data)
        self._accept(data)

    @precondition(lambda self: self._can("accept") and self._have_begun())
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        self._accept(data)

    def _have_begun(self) -> bool:
        return all(sample.begun is not None for sample in self._samples)

    def _accept(self, data: st.DataObject) -> None:
        if not self._have_begun():
            return
        drafted = [len(sample.tokens) - (sample.begun or 0) for sample in self._samples]
        if self.facts.engine.ragged:
            counts = [data.draw(st.integers(0, count)) for count in drafted]
        else:
            counts = [data.draw(st.integers(0, min(drafted)))] * len(drafted)
        self._apply(Accept(tuple(counts)))

    def _can_grow(self) -> bool:
        return len(self._samples) < self.facts.engine.batch

    @precondition(lambda self: self._can("add") and self._can_grow() and self.facts.engine.ragged)
    @rule()
    def add(self) -> None:
        self._apply(Add())

    @precondition(lambda self: self._can("fork") and self._can_grow())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        self._apply(Fork(self._index(data)))

    @precondition(lambda self: self._can("remove") and len(self._samples) > 1)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self._apply(Remove(self._index(data)))

    @precondition(lambda self: self._can("reorder") and len(self._samples) > 1)
    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self._apply(Reorder(tuple(self._index(data) for _ in self._samples)))

    def _index(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self._samples) - 1))

    @precondition(lambda self: self._can("save", "load"))
    @rule(data=st.data())
    def save(self, data: st.DataObject) -> None:
        self._apply(Save(self._index(data), len(self.judge.texts.files)))

    @precondition(lambda self: self._can("save", "load"))
    @rule(data=st.data())
    def save_and_load(self, data: st.DataObject) -> None:
        file = len(self.judge.texts.files)
        sample = self._index(data)
        self._apply(Save(sample, file))
        if file in self._loadable():
            self._apply(Load(self._index(data) if self.facts.engine.ragged else sample, file))

    @precondition(lambda self: self._can("save", "load") and self._loadable())
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        self._apply(Load(self._index(data), self._one(data, self._loadable())))

    def _loadable(self) -> list[int]:
        """Returns the files that can take the place of a sample. Without ragged batches all lengths are equal."""
        texts = self.judge.texts
        length = len(self._samples[0].tokens)
        is_free = self.facts.engine.ragged or len(self._samples) == 1
        return [file for file, tokens in texts.files.items() if is_free or len(tokens) == length]

    @precondition(lambda self: self._can("set_adapter") and len(self.facts.engine.adapters) > 1)
    @rule(data=st.data())
    def set_adapter(self, data: st.DataObject) -> None:
        self._apply(SetAdapter(self._one(data, self.facts.engine.adapters)))

    @precondition(lambda self: self._can("poison"))
    @rule()
    def poison(self) -> None:
        self._apply(Poison())


def machine(facts: Facts, begin_history: Callable[[], Any]) -> type[Operations]:
    """Returns the state machine of an engine. ``begin_history`` returns a judge for each history."""
    return type("Histories", (Operations,), {"facts": facts, "begin_history": staticmethod(begin_history)})

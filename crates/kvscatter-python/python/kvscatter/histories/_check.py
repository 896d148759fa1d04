"""Searches for a history that an engine computes wrongly, and shortens it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvscatter.histories._engine import Engine
from kvscatter.histories._facts import Facts
from kvscatter.histories._history import OPERATIONS, History
from kvscatter.histories._judge import EngineError, Failed, Judge, Reference, named, relative_difference, run
from kvscatter.histories._report import Report
from kvscatter.histories._shorten import shorten, size

BATCH: Final = 100
"""The number of histories between two seeds of Hypothesis."""
OPERATIONS_OF_A_HISTORY: Final = 24
SHORTENING_SECONDS: Final = 60.0
"""The longest time in which a failing history is shortened."""
SHORTER_SECONDS: Final = 10.0
SHORTER_BATCHES: Final = 3
"""The longest time, and the most batches, in which shorter histories are searched after one was shortened."""


class _Over(BaseException):
    """Ends a run of Hypothesis, which catches every `Exception`."""


class _Search:
    """The histories so far, and the shortest one that failed."""

    def __init__(
        self,
        engine: Engine,
        reference: Reference,
        deadline: float,
        most: float,
        report: Callable[[int], None],
    ) -> None:
        self.engine = engine
        self.reference = reference
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.histories = 0
        self.shortest: Failed | None = None
        self.is_over = False
        self._deadline = deadline
        self._most = most
        self._report = report

    def begin_history(self) -> Judge:
        # Hypothesis can run a few more examples than it was asked for.
        has_enough = self.shortest is None and self.histories >= self._most
        self.is_over = has_enough or time.monotonic() >= self._deadline
        if self.is_over:
            raise _Over
        if self.shortest is None:
            self.histories += 1
            self._report(self.histories)
        return _SearchingJudge(self)

    def failed(self, failed: Failed) -> None:
        if self.shortest is None:
            self._deadline = time.monotonic() + SHORTENING_SECONDS
        if self.shortest is None or size(failed.history) < size(self.shortest.history):
            self.shortest = failed

    def is_over_at(self, deadline: float) -> None:
        """Ends the search at another time."""
        self._deadline = deadline

    def shorten(self) -> None:
        """Shortens the shortest history that failed."""

        def fails(history: History) -> History | None:
            if time.monotonic() >= self._deadline:
                return None
            try:
                failed = run(Judge(self.engine, self.reference), history)
            except ValueError:
                return None
            if failed is not None:
                self.failed(failed)
            return failed.history if failed else None

        if self.shortest is not None:
            shorten(self.shortest.history, Facts(self.engine), fails)


class _SearchingJudge(Judge):
    """A judge that counts what it ran until a history failed."""

    def __init__(self, search: _Search) -> None:
        super().__init__(search.engine, search.reference)
        self._search = search
        if search.shortest is None:
            self.done, self.refused = search.done, search.refused

    def apply(self, operation: Any) -> None:
        try:
            super().apply(operation)
        except Failed as failed:
            self._search.failed(failed)
            raise


def check(
    make: Callable[[], Engine],
    *,
    minutes: float = 1.0,
    histories: int | None = None,
    seed: int = 0,
    without: Iterable[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Report:
    """Runs random histories on an engine until one fails, and shortens that one.

    Args:
        make: The class of an adapter, or a function that makes one. It is called twice: the second engine computes
            the expected logits.
        minutes: The time for the search. Shortening a history takes up to a minute more.
        histories: The most histories, or None for as many as the time allows.
        seed: Another seed makes other histories.
        without: The names of operations to leave out, such as one whose fault is known.
        progress: Is called with the number of each history.

    Raises:
        EngineError: The adapter cannot be tested, for example because its logits do not depend on earlier tokens.
        ImportError: Hypothesis is not installed. The extra ``histories`` installs it.
    """
    # Only a search needs Hypothesis. A replay does not.
    from hypothesis import HealthCheck, Phase, Verbosity, settings
    from hypothesis import seed as with_seed
    from hypothesis.stateful import run_state_machine_as_test

    from kvscatter.histories._machine import machine

    left_out = tuple(without)
    for name in left_out:
        if name not in OPERATIONS or name in ("start", "feed"):
            raise ValueError(f"without: {name!r} is not one of {', '.join(list(OPERATIONS)[2:])}")
    begun = time.monotonic()
    engine, other = make(), make()
    facts = Facts(engine, left_out)
    reference = Reference(other)
    _check_engine(engine, facts, reference)
    most = math.inf if histories is None else histories
    search = _Search(engine, reference, begun + minutes * 60, most, progress)

    def run_batch(number: int, operations: int) -> None:
        options = settings(
            max_examples=BATCH,
            stateful_step_count=operations,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
        )
        life = with_seed(seed * 1_000_003 + number)(machine(facts, search.begin_history))
        try:
            run_state_machine_as_test(life, settings=options)
        except (EngineError, KeyboardInterrupt):
            raise
        except BaseException:
            # Hypothesis raises the failure, that it does not come again, or that the time is over.
            if search.shortest is None and not search.is_over:
                raise

    batch = 0
    while search.shortest is None and not search.is_over:
        run_batch(batch, OPERATIONS_OF_A_HISTORY)
        batch += 1
    if search.shortest is not None:
        search.shorten()
        search.is_over_at(time.monotonic() + SHORTER_SECONDS)
        last = batch + SHORTER_BATCHES
        while batch < last and not search.is_over and len(search.shortest.history) > 1:
            shortest = search.shortest
            run_batch(batch, len(shortest.history) - 1)
            if search.shortest is not shortest:
                search.shorten()
            batch += 1
    failed = search.shortest
    is_repeatable = failed is None or run(Judge(engine, reference), failed.history) is not None
    seconds = time.monotonic() - begun
    return Report.of(
        engine, search.histories, search.done, search.refused, seconds, seed, failed, is_repeatable
    )


def _check_engine(engine: Engine, facts: Facts, reference: Reference) -> None:
    """Checks that a token changes the logits after the next ones, so that a wrong cache can be noticed."""
    if not engine.vocabulary:
        raise EngineError("vocabulary must be the number of tokens")
    if len(facts.tokens) < 3:
        raise EngineError(f"tokens must have at least 3 token ids, not {len(facts.tokens)}")
    adapter = engine.adapters[0] if engine.adapters else None
    first, other, middle = (facts.token(number) for number in range(3))
    texts = [(token, middle) for token in (first, other)]
    try:
        difference = relative_difference(*(reference.logits(text, adapter)[-1] for text in texts))
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"an empty cache does not take two tokens: {named(error)}") from error
    if not difference > 10 * engine.tolerance:
        raise EngineError(
            f"another first token changes the logits after the second by {difference:.2g} of the largest; "
            f"a wrong cache cannot be noticed with a tolerance of {engine.tolerance:g}"
        )

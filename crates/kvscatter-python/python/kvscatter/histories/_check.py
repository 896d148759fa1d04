"""Searches for a history that an engine computes wrongly, and shortens it."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from kvscatter.histories._engine import Engine, EngineError
from kvscatter.histories._facts import Facts
from kvscatter.histories._history import OPERATIONS, History, Operation, Start
from kvscatter.histories._judge import Failed, Judge, Reference, first_line, relative_difference, run
from kvscatter.histories._report import Report
from kvscatter.histories._shorten import shorten, size

BATCH: Final = 100
"""The number of histories in one run of Hypothesis, which has its own seed."""
OPERATIONS_OF_A_HISTORY: Final = 24
CHOICES: Final = tuple(name for name in OPERATIONS if name not in ("start", "feed", "begin"))
"""The operations that can be left out. `begin` goes with `accept`."""
SHORTENING_SECONDS: Final = 60.0
"""The longest time in which a failing history is shortened."""
SHORTER_SECONDS: Final = 10.0
"""The longest time in which shorter histories are searched after one was shortened."""
SHORTER_BATCHES: Final = 3
"""The most runs of Hypothesis in that time."""


class _Over(BaseException):
    """Ends a run of Hypothesis, which catches every `Exception`, and the shortening of a history."""


class _Search:
    """The histories so far, and the shortest one that failed."""

    def __init__(
        self,
        engine: Engine,
        reference: Reference,
        *,
        seconds: float,
        most: float,
        report: Callable[[int], None],
    ) -> None:
        self.engine = engine
        self.reference = reference
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.histories = 0
        self.shortest: Failed | None = None
        self.longest = 0
        self.inconsistent = 0
        self.is_over = False
        self._deadline = time.monotonic() + seconds
        self._most = most
        self._report = report

    def begin_history(self) -> Judge:
        # Hypothesis can run a few more examples than it was asked for.
        if self.shortest is None and self.histories >= self._most:
            self.is_over = True
        self.check_time()
        if self.shortest is None:
            self.histories += 1
            self._report(self.histories)
        return _SearchingJudge(self)

    def check_time(self) -> None:
        """Raises `_Over` if the time is over."""
        self.is_over = self.is_over or time.monotonic() >= self._deadline
        if self.is_over:
            raise _Over

    def failed(self, failed: Failed) -> None:
        """Keeps a failure if it is the first one, or a shorter one of the same kind."""
        if self.shortest is None or (
            failed.kind == self.shortest.kind and size(failed.history) < size(self.shortest.history)
        ):
            self.shortest = failed

    def end_after(self, seconds: float) -> None:
        """Ends the search after another time."""
        self.is_over = False
        self._deadline = time.monotonic() + seconds

    def shorten(self) -> None:
        """Shortens the history that failed, until nothing shorter fails in the same way or the time is over."""
        first = self.shortest
        assert first is not None

        def fails(history: History) -> History | None:
            self.check_time()
            try:
                failed = run(Judge(self.engine, self.reference), history)
            except EngineError:
                return None
            if failed is None or failed.kind != first.kind:
                return None
            self.failed(failed)
            return failed.history

        with contextlib.suppress(_Over):
            shorten(first.history, Facts(self.engine), fails)


class _SearchingJudge(Judge):
    """A judge that counts what it ran until a history failed."""

    def __init__(self, search: _Search) -> None:
        super().__init__(search.engine, search.reference)
        self._search = search
        if search.shortest is None:
            self.done, self.refused = search.done, search.refused

    def apply(self, operation: Operation) -> None:
        """Runs an operation, unless the time is over."""
        if not isinstance(operation, Start):
            self._search.check_time()
        try:
            super().apply(operation)
        except Failed as failed:
            self._search.failed(failed)
            raise
        finally:
            self._search.longest = max(self._search.longest, self.longest)


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
        make: The class of an adapter, or a function that makes one. It is called twice, and twice more to repeat a
            failure. Every second engine computes the expected logits.
        minutes: The time for the search. Shortening a history takes up to 70 seconds more.
        histories: The most histories, or None for as many as the time allows.
        seed: Another seed makes other histories.
        without: The names of operations to leave out, such as one whose fault is known.
        progress: Is called with the number of each history.

    Raises:
        EngineError: The adapter cannot be tested, for example because its logits do not depend on earlier tokens.
        ImportError: Hypothesis is not installed. The extra ``histories`` installs it.
    """
    try:
        # Only a search needs Hypothesis. A replay does not.
        from hypothesis import HealthCheck, Phase, Verbosity, settings
        from hypothesis import seed as with_seed
        from hypothesis.errors import Flaky
        from hypothesis.stateful import run_state_machine_as_test
    except ImportError as error:
        raise ImportError(f"{error}; pip install 'kvscatter[histories]'") from error
    from kvscatter.histories._machine import machine

    if isinstance(make, Engine):
        raise TypeError("make must be the class of an adapter or a function that makes one, not an engine")
    left_out = (without,) if isinstance(without, str) else tuple(without)
    for name in left_out:
        if name not in CHOICES:
            raise ValueError(f"without: {name!r} is not one of {', '.join(CHOICES)}")
    begun = time.monotonic()
    engine, other = make(), make()
    if engine is other:
        raise EngineError(
            "make must return a new engine each time, because the second one computes the expected logits"
        )
    facts = Facts(engine, left_out)
    reference = Reference(other)
    _check_engine(engine, facts, reference)
    most = math.inf if histories is None else histories
    search = _Search(engine, reference, seconds=minutes * 60, most=most, report=progress)

    # An engine takes the time that it takes, and a history the operations that are possible.
    slow = (
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    )

    def run_batch(number: int, operations: int) -> None:
        options = settings(
            max_examples=BATCH,
            stateful_step_count=operations,
            phases=(Phase.generate,),
            suppress_health_check=slow,
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
        except Flaky:
            # Equal choices led to other operations, because the engine refused one in only one of two histories.
            search.inconsistent += not (search.shortest or search.is_over)
        except BaseException:
            # Hypothesis raises the failure or `_Over`.
            if search.shortest is None and not search.is_over:
                raise

    batch = 0
    while search.shortest is None and not search.is_over:
        run_batch(batch, OPERATIONS_OF_A_HISTORY)
        batch += 1
    if search.shortest is not None:
        # An interruption ends the shortening, and the failure stays.
        with contextlib.suppress(KeyboardInterrupt):
            search.end_after(SHORTENING_SECONDS)
            search.shorten()
            search.end_after(SHORTER_SECONDS)
            last = batch + 1 + SHORTER_BATCHES
            while (batch := batch + 1) < last and not search.is_over and len(search.shortest.history) > 1:
                shortest = search.shortest
                run_batch(batch, len(shortest.history) - 1)
                if search.shortest is not shortest:
                    search.shorten()
    return Report(
        histories=search.histories,
        done=dict(search.done),
        refused=dict(search.refused),
        longest=search.longest,
        inconsistent=search.inconsistent,
        seconds=time.monotonic() - begun,
        seed=seed,
        failed=search.shortest,
        is_repeatable=search.shortest is None or _fails_again(make, search.shortest),
        adapter=engine,
        never_run=tuple(sorted(facts.can - search.done.keys() - search.refused.keys())),
    )


def _fails_again(make: Callable[[], Engine], failed: Failed) -> bool:
    """Runs a history on new engines."""
    try:
        return run(Judge(make(), Reference(make())), failed.history) is not None
    except EngineError:
        return False


def _check_engine(engine: Engine, facts: Facts, reference: Reference) -> None:
    """Checks that a token changes the logits after the next one, so that a wrong cache can be noticed."""
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
        raise EngineError(f"an empty cache does not take two tokens: {first_line(error)}") from error
    if math.isnan(difference):
        raise EngineError("the logits of an empty cache contain NaN")
    if not difference > 10 * engine.tolerance:
        raise EngineError(
            f"another first token changes the logits after the second by {difference:.2g} of the largest; "
            f"a wrong cache cannot be noticed with a tolerance of {engine.tolerance:g}"
        )

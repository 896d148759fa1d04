"""What follows from the facts of an engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvscatter.histories._engine import Engine, EngineError
from kvscatter.histories._history import OPERATIONS

FAR: Final = 512
"""The largest capacity that histories fill. A larger one would take most of the time."""


class Facts:
    """What histories an engine can have."""

    def __init__(self, engine: Engine, without: Iterable[str] = ()) -> None:
        _check_facts(engine)
        self.engine = engine
        self.can = {name for name in OPERATIONS if hasattr(engine, name)} - {*engine.lacks, *without}
        if "accept" not in self.can:
            self.can.discard("begin")
        self.tokens = engine.tokens or range(1, engine.vocabulary)
        lengths = {*engine.windows, *engine.edges} | ({engine.capacity} if engine.capacity else set())
        self.sizes = sorted({length + side for length in lengths for side in (-1, 0, 1)} - {0})
        """The numbers of tokens around an edge."""
        rounds = {length * times for length in (*engine.windows, *engine.edges) for times in (2, 3)}
        self.lengths = sorted({*self.sizes, *(length + side for length in rounds for side in (-1, 0, 1))})
        """The lengths of a sample around an edge, also of later rounds in a ring."""
        kept = {
            edge - window + side for edge in engine.edges for window in engine.windows for side in (-1, 0, 1)
        }
        self.kept = sorted(length for length in kept if length > 0)
        """The numbers of tokens around those that a ring keeps beside a window, and so can go back."""
        of_rounds = 3 * max(engine.windows + engine.edges) + 2 if rounds else 64
        capacity = engine.capacity or math.inf
        self.longest = engine.longest or (int(capacity) if capacity <= FAR else of_rounds)

    def token(self, number: int) -> int:
        """Returns a token for each number. Neighbours are far apart, so that no two chunks are alike."""
        count = len(self.tokens)
        step = next(
            step for step in range(int(count * 0.618) or 1, 2 * count + 1) if math.gcd(step, count) == 1
        )
        return self.tokens[number * step % count]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _are(is_one: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda values: isinstance(values, tuple) and all(map(is_one, values))


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


_COUNT: Final = ("an integer of at least 1", _is_count)
_COUNT_OR_NONE: Final = ("None or an integer of at least 1", lambda value: value is None or _is_count(value))
_COUNTS: Final = ("a tuple of integers of at least 1", _are(_is_count))
_NAMES: Final = ("a tuple of names", _are(lambda value: isinstance(value, str)))
_FACTS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    **dict.fromkeys(("vocabulary", "batch"), _COUNT),
    **dict.fromkeys(("capacity", "longest", "max_feed"), _COUNT_OR_NONE),
    **dict.fromkeys(("windows", "edges"), _COUNTS),
    **dict.fromkeys(("paddings", "adapters", "lacks"), _NAMES),
    "refusals": ("a tuple of classes of exceptions", _are(_is_exception)),
    "tolerance": ("a number above 0", lambda value: isinstance(value, int | float) and 0 < value < math.inf),
    "ragged": ("True or False", lambda value: isinstance(value, bool)),
    "name": ("a string", lambda value: isinstance(value, str)),
}


def _check_facts(engine: Engine) -> None:
    """Raises `EngineError` for a fact of another type, and for an engine that cannot start or feed."""
    name = type(engine).__name__
    for method in ("start", "feed"):
        if getattr(type(engine), method, None) in (None, getattr(Engine, method)):
            raise EngineError(f"{name} has no method {method}")
    for fact, (wanted, is_right) in _FACTS.items():
        value = getattr(engine, fact)
        if not is_right(value):
            raise EngineError(f"{name}.{fact} must be {wanted}, not {value!r:.80}")

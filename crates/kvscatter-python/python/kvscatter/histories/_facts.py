"""What follows from the facts of an engine."""

from __future__ import annotations

import math
from collections.abc import Iterable

from kvscatter.histories._engine import Engine
from kvscatter.histories._history import OPERATIONS


class Facts:
    """What histories an engine can have."""

    def __init__(self, engine: Engine, without: Iterable[str] = ()) -> None:
        self.engine = engine
        self.can = {name for name in OPERATIONS if hasattr(engine, name)} - {*engine.lacks, *without}
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
        self.rewinds = sorted({*self.sizes, *(length for length in kept if length > 0)})
        """The numbers of tokens to go back, among them what a ring of this length can keep beside a window."""
        of_rounds = 3 * max(engine.windows + engine.edges) + 2 if rounds else 64
        self.longest = engine.longest or min(engine.capacity or of_rounds, of_rounds)

    def token(self, number: int) -> int:
        """Returns a token for each number. Neighbours are far apart, so that no two chunks are alike."""
        count = len(self.tokens)
        step = next(
            step for step in range(int(count * 0.618) or 1, 2 * count + 1) if math.gcd(step, count) == 1
        )
        return self.tokens[number * step % count]

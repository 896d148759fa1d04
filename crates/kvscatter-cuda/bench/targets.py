"""The targets for an H200, and whether a run meets them."""

import dataclasses
import operator
from collections.abc import Iterator

from names import AGAIN, MEMCPY, OURS
from results import Result, Run

DECODE_MICROSECONDS = 1.5
DECODE_BATCH = 64
JOBS_MICROSECONDS = 6.0
PREFILL_ROWS = 4096
PREFILL_SHARE = 0.90
HOST_MICROSECONDS = 4.0
# The limit of our time over the best peer's. If the peer takes more than EASY times as long as the copy, our
# time must be less than the peer's.
PEER_RATIO = 1.03
EASY = 1.2

# The comparisons of a value with its limit.
RELATIONS = {"≤": operator.le, "<": operator.lt, "≥": operator.ge}


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One target in one case."""

    target: str
    case: str
    value: float
    limit: float
    # The least and the greatest value within the spread of the comparison of our write with itself.
    least: float
    most: float
    relation: str = "≤"

    @property
    def is_at_least(self) -> bool:
        """Returns True if more is better."""
        return self.relation == "≥"

    @property
    def judged(self) -> str:
        """Returns the verdict, "inside the spread" if another run could give the opposite."""
        worst, best = (self.least, self.most) if self.is_at_least else (self.most, self.least)
        if self._keeps(worst):
            return "met"
        return "inside the spread" if self._keeps(best) else "missed"

    def _keeps(self, value: float) -> bool:
        return bool(RELATIONS[self.relation](value, self.limit))


def verdicts(run: Run) -> list[Verdict]:
    """Returns the verdicts about all targets in all their cases."""
    return [verdict for result in run.results for verdict in of_result(result, run.copy_bandwidth)]


def of_result(result: Result, bandwidth: float) -> Iterator[Verdict]:
    """Returns the verdicts about the targets of this case."""
    case = result.case
    replayed, spread = result.median(OURS, "replayed"), result.spread(AGAIN, OURS, "replayed") or (1.0, 1.0)

    def verdict(target: str, value: float, limit: float, relation: str = "≤") -> Verdict:
        return Verdict(target, case.label, value, limit, value * spread[0], value * spread[1], relation)

    if replayed is not None and not case.is_functional:
        if case.is_decode and case.tensors == 2 and case.batch <= DECODE_BATCH:
            yield verdict(f"decode, B ≤ {DECODE_BATCH}, replayed: µs", replayed, DECODE_MICROSECONDS)
        if case.tensors == 64:
            yield verdict("64 jobs, replayed: µs", replayed, JOBS_MICROSECONDS)
        if case.rows == PREFILL_ROWS:
            share = 2 * case.copied_bytes / replayed / bandwidth
            yield verdict(f"prefill {PREFILL_ROWS}: share of the copy bandwidth", share, PREFILL_SHARE, "≥")
    if result.host_in_rust:
        times = sorted(result.host_in_rust)
        middle, least, most = (times[len(times) * at // 4] for at in (2, 1, 3))
        yield Verdict("host, a launch: µs", case.label, middle, HOST_MICROSECONDS, least, most)
    yield from beside_peers(result)


def beside_peers(result: Result) -> Iterator[Verdict]:
    """Returns the verdicts about the best peer, eager and replayed."""
    for what in ("eager", "replayed"):
        peer = result.best_peer(what)
        if peer is None or (value := result.ratio(OURS, peer, what)) is None:
            continue
        ceiling = result.ratio(peer, MEMCPY, what)
        is_easy = ceiling is not None and ceiling > EASY
        limit, relation = (1.0, "<") if is_easy else (PEER_RATIO, "≤")
        least, most = result.spread(AGAIN, OURS, what) or (1.0, 1.0)
        name = f"{what}, of the best peer's time"
        yield Verdict(name, result.case.label, value, limit, value * least, value * most, relation)


def summary(found: list[Verdict]) -> list[tuple[str, dict[str, int], Verdict]]:
    """Returns, for each target, how many cases meet it, and its worst case."""
    by_target: dict[str, list[Verdict]] = {}
    for verdict in found:
        by_target.setdefault(verdict.target, []).append(verdict)

    def worst(one: Verdict) -> float:
        return one.limit / one.value if one.is_at_least else one.value / one.limit

    return [
        (target, {word: sum(one.judged == word for one in group) for word in WORDS}, max(group, key=worst))
        for target, group in by_target.items()
    ]


WORDS = ("met", "inside the spread", "missed")

"""What was measured, and as JSON."""

import dataclasses
import statistics
from typing import Any

from cases import Case

Numbers = list[float]


@dataclasses.dataclass
class Samples:
    """Microseconds per write, one number for each round; empty where there is nothing to measure."""

    eager: Numbers = dataclasses.field(default_factory=list)
    replayed: Numbers = dataclasses.field(default_factory=list)
    # What the host does meanwhile.
    host: Numbers = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Result:
    """One case."""

    case: Case
    # By the name of the way.
    samples: dict[str, Samples]
    peers: list[str]
    # Microseconds of the host for a launch that Rust calls.
    host_in_rust: Numbers
    # Who did not take part in this case, and why.
    absent: dict[str, str]

    def median(self, name: str, what: str) -> float | None:
        """Of `eager`, `replayed` or `host`."""
        samples = self.samples.get(name)
        values = getattr(samples, what) if samples else []
        return statistics.median(values) if values else None

    def best_peer(self, what: str) -> str | None:
        """The fastest of those that were measured so."""
        times = {name: time for name in self.peers if (time := self.median(name, what)) is not None}
        return min(times, key=times.__getitem__) if times else None

    def ratio(self, of: str, to: str, what: str) -> float | None:
        """The median of the ratio, round by round: slow moments fall on both."""
        pairs = self._pairs(of, to, what)
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def spread(self, of: str, to: str, what: str) -> tuple[float, float] | None:
        """The least and the greatest median ratio in blocks of rounds, and 1: for a way and itself."""
        pairs = self._pairs(of, to, what)
        size = max(1, len(pairs) // BLOCKS)
        blocks = [pairs[at : at + size] for at in range(0, len(pairs) - size + 1, size)]
        ratios = [statistics.median(a / b for a, b in block) for block in blocks]
        return (min(1.0, *ratios), max(1.0, *ratios)) if ratios else None

    def _pairs(self, of: str, to: str, what: str) -> list[tuple[float, float]]:
        if of not in self.samples or to not in self.samples:
            return []
        return list(zip(getattr(self.samples[of], what), getattr(self.samples[to], what), strict=False))


BLOCKS = 4


@dataclasses.dataclass
class Run:
    """One run of the bench on one machine."""

    # Words for people: the GPU, the driver, the packages.
    machine: str
    # Bytes per microsecond, read and written.
    copy_bandwidth: float
    results: list[Result]
    # Peers that are not here at all, and cases for which there was no time, with a reason.
    skipped: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Every sample."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(found: dict[str, Any]) -> "Run":
        """The opposite."""
        results = [
            Result(
                Case(**result["case"]),
                {name: Samples(**samples) for name, samples in result["samples"].items()},
                result["peers"],
                result["host_in_rust"],
                result["absent"],
            )
            for result in found["results"]
        ]
        return Run(found["machine"], found["copy_bandwidth"], results, found["skipped"])

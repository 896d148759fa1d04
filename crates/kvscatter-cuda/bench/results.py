"""The measured times, and their form as JSON."""

import dataclasses
import statistics
from typing import Any

from cases import Case

Numbers = list[float]


@dataclasses.dataclass
class Samples:
    """Microseconds per write, one number for each round. Empty if nothing can be measured."""

    eager: Numbers = dataclasses.field(default_factory=list)
    replayed: Numbers = dataclasses.field(default_factory=list)
    # The time of the host.
    host: Numbers = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Result:
    """The times of one case."""

    case: Case
    # The samples by the name of the way.
    samples: dict[str, Samples]
    peers: list[str]
    # Microseconds of the host for a launch from Rust.
    host_in_rust: Numbers
    # The ways that did not take part in this case, with the reasons.
    absent: dict[str, str]

    def median(self, name: str, what: str) -> float | None:
        """Returns the median of `eager`, `replayed` or `host`."""
        samples = self.samples.get(name)
        values = getattr(samples, what) if samples else []
        return statistics.median(values) if values else None

    def best_peer(self, what: str) -> str | None:
        """Returns the fastest peer with such a measurement."""
        times = {name: time for name in self.peers if (time := self.median(name, what)) is not None}
        return min(times, key=times.__getitem__) if times else None

    def ratio(self, of: str, to: str, what: str) -> float | None:
        """Returns the median of the ratios of each round, in which slow moments affect both numbers."""
        pairs = self._pairs(of, to, what)
        return statistics.median(a / b for a, b in pairs) if pairs else None

    def spread(self, of: str, to: str, what: str) -> tuple[float, float] | None:
        """Returns the least and the greatest median ratio in blocks of rounds.

        This is for the comparison of a way with itself. The range always includes 1.
        """
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
    """One run of the benchmark on one machine."""

    # A text with the GPU, the driver and the packages.
    machine: str
    # Bytes per microsecond, read and written.
    copy_bandwidth: float
    results: list[Result]
    # The peers that are not installed, and the cases for which there was no time, with the reasons.
    skipped: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """Returns every sample."""
        return dataclasses.asdict(self)

    @staticmethod
    def of_json(found: dict[str, Any]) -> "Run":
        """Returns the run for the result of `as_json`."""
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

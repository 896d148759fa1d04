"""What the tests of a target caught."""

from collections import Counter
from dataclasses import dataclass

from outcomes import Outcome

# The share of the viable mutants that tests must catch.
SHARE = 0.95


@dataclass(frozen=True)
class Report:
    """The results of a sample."""

    target: str
    mutants: int
    sample: dict[str, Outcome | None]
    reasons: dict[str, str]
    wrong: list[str]

    def line(self) -> str:
        """Returns the numbers. A mutant that runs without end is caught. An explained survivor is not."""
        counts = self._counts()
        caught = counts["caught"] + counts["timeout"]
        tested = sum(counts.values())
        seconds = sum(each.seconds for each in self.sample.values() if each)
        return (
            f"{self.target}: {tested} of {len(self.sample)} tested ({self.mutants} mutants), "
            f"{self._viable()} viable, {caught} caught ({counts['timeout']} of them by a timeout), "
            f"{self._share():.1%}, {counts['missed']} survive, {len(self._explained())} of them explained, "
            f"{seconds / max(tested, 1):.1f} s each"
        )

    def __str__(self) -> str:
        lines = [self.line(), *(f"  unexplained: {name}" for name in self._unexplained())]
        lines += [f"  explained: {name}: {self.reasons[name]}" for name in self._explained()]
        return "\n".join(lines + [f"  explained.toml: {each}" for each in self.wrong])

    def fails(self) -> bool:
        """Returns whether the tests are not good enough, or an explanation is wrong."""
        is_complete = all(self.sample.values())
        return bool(self.wrong) or (is_complete and (self._share() < SHARE or bool(self._unexplained())))

    def _counts(self) -> Counter[str]:
        return Counter(each.result for each in self.sample.values() if each)

    def _viable(self) -> int:
        counts = self._counts()
        return sum(counts.values()) - counts["unviable"]

    def _share(self) -> float:
        counts = self._counts()
        return (counts["caught"] + counts["timeout"]) / max(self._viable(), 1)

    def _survivors(self) -> list[str]:
        return [name for name, each in self.sample.items() if each and each.result == "missed"]

    def _explained(self) -> list[str]:
        return [name for name in self._survivors() if name in self.reasons]

    def _unexplained(self) -> list[str]:
        return [name for name in self._survivors() if name not in self.reasons]

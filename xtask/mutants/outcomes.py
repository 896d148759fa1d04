"""What is known about each mutant: a file for each target, and the explanations of survivors."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import tomllib

EXPLAINED = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True)
class Outcome:
    """How the tests judged a mutant."""

    # caught, timeout, unviable or missed
    result: str
    stage: str
    seconds: float
    # The digest of the package with which the mutant was tested.
    package: str


class Outcomes:
    """The outcomes of a target, in a file that is written after each mutant."""

    def __init__(self, file: Path) -> None:
        self._file = file
        read = json.loads(file.read_text()) if file.exists() else {}
        self._known = {name: Outcome(**each) for name, each in read.items()}

    def add(self, name: str, outcome: Outcome) -> None:
        """Keeps an outcome, also if the machine stops now."""
        self._known[name] = outcome
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps({name: asdict(each) for name, each in self._known.items()}, indent=1))
        new.replace(self._file)

    def of(self, name: str) -> Outcome | None:
        """Returns what is known about a mutant."""
        return self._known.get(name)

    def is_open(self, name: str, package: str) -> bool:
        """Returns whether a mutant must be tested: it never was, or it survived other tests than today's."""
        known = self.of(name)
        return known is None or (known.result == "missed" and known.package != package)


def explanations(target: str) -> dict[str, str]:
    """Returns why mutants of a target survive. An explanation without a sentence is an error."""
    document: dict[str, dict[str, str]] = tomllib.loads(EXPLAINED.read_text())
    reasons = document.get(target, {})
    for name, reason in reasons.items():
        if len(reason.split()) < 4 or not reason.endswith("."):
            raise SystemExit(f"{EXPLAINED.name}: {name}: the reason must be a sentence")
    return reasons


def wrong_explanations(reasons: dict[str, str], mutants: dict[str, str], outcomes: Outcomes) -> list[str]:
    """Returns the explanations of mutants that do not exist, or that do not survive."""
    wrong = [f"there is no such mutant: {name}" for name in reasons if name not in mutants]
    for name in reasons:
        known = outcomes.of(name)
        if known is not None and known.result != "missed":
            wrong.append(f"this one does not survive ({known.result}): {name}")
    return wrong

"""The verdicts of all runtimes on all rules, as the page shows them."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

# The symbols of verdicts on an answer or on a write in place, with the worst verdict last. docs/divergences.md
# describes them.
SYMBOLS = {
    "exact": "✓",
    "copies": "≡",
    "refuses": "⊘",
    "ignores": "○",
    "skips": "○",
    "drops-rows": "◐",
    "clamps": "▲",
    "wraps": "▲",
    "accepts": "▲",
    "differs": "✗",
    "partly-written": "½",
    "corrupts-past": "✗",
    "timeout": "…",
    "crashes": "†",
}

# The place of each verdict in that order.
BADNESS = {verdict: place for place, verdict in enumerate(SYMBOLS)}


@dataclass(frozen=True)
class Cell:
    """The verdicts of one runtime on the cases of one rule."""

    # How many cases have each verdict except exact.
    counts: tuple[tuple[str, int], ...]
    cases: int

    @property
    def worst(self) -> str:
        """The worst verdict, or exact."""
        return max((verdict for verdict, _ in self.counts), key=BADNESS.get, default="exact")

    def __str__(self) -> str:
        """Describes the cell in words."""
        if not self.cases:
            return "not asked"
        if not self.counts:
            return "exact"
        return ", ".join(f"{verdict} {count} of {self.cases}" for verdict, count in self.counts)


class Matrix:
    """The verdicts of results.json."""

    def __init__(self, results: dict[str, Any], index: dict[str, Any]) -> None:
        self.date = results["date"]
        self.system = f"{results['system']} {results['architecture']}"
        self.runtimes = results["runtimes"]
        self.not_run = results["not_run"]
        self.rules = index["rules"]
        self._cells = {
            (runtime["id"], rule["id"]): cell(runtime, rule)
            for runtime in self.runtimes
            for rule in self.rules
        }

    def cell(self, runtime: dict[str, Any], rule: dict[str, Any]) -> Cell:
        """Returns the verdicts of a runtime on a rule."""
        return self._cells[runtime["id"], rule["id"]]

    def newest(self) -> list[dict[str, Any]]:
        """Returns the last version of each runtime, in the order of results.json."""
        return list({runtime["name"]: runtime for runtime in self.runtimes}.values())

    def changes(self) -> Iterator[tuple[dict[str, Any], str, dict[Cell, list[dict[str, Any]]]]]:
        """Yields the rules that versions of one runtime answer differently, with the name of the runtime and its
        versions by their answer, best first."""
        for rule in self.rules:
            for name in dict.fromkeys(runtime["name"] for runtime in self.runtimes):
                answers: dict[Cell, list[dict[str, Any]]] = {}
                for runtime in self.runtimes:
                    answer = self.cell(runtime, rule)
                    if runtime["name"] == name and answer.cases:
                        answers.setdefault(answer, []).append(runtime)
                if len(answers) > 1:
                    best_first = sorted(answers, key=lambda answer: BADNESS[answer.worst])
                    yield rule, name, {answer: answers[answer] for answer in best_first}


def cell(runtime: dict[str, Any], rule: dict[str, Any]) -> Cell:
    """Returns the verdicts of a runtime on the cases of a rule. A runtime without the operator was not asked."""
    if rule["operator"] in runtime["no_operator"]:
        return Cell((), 0)
    cases = [case for case in runtime["cases"] if case["rule"] == rule["id"]]
    counts: Counter[str] = Counter()
    for case in cases:
        verdicts = {case["answer"], in_place(case)} - {"exact", "not-possible"}
        counts.update(verdicts)
    worst_first = sorted(counts.items(), key=lambda item: -BADNESS[item[0]])
    return Cell(tuple(worst_first), len(cases))


def in_place(case: dict[str, Any]) -> str:
    """Returns the verdict on the call in place. A bad call that is accepted in both ways counts once."""
    if case["expect"] == "refused" and case["in_place"] == "differs":
        return "accepts" if case["answer"] == "exact" else "exact"
    return case["in_place"] or "exact"


def versions(some: list[dict[str, Any]], every: list[dict[str, Any]]) -> str:
    """Returns some versions of a runtime in words. Consecutive versions become a range."""
    mine = {runtime["version"] for runtime in some}
    all_versions = [runtime["version"] for runtime in every if runtime["name"] == some[0]["name"]]
    runs = groupby(all_versions, mine.__contains__)
    ranges = [list(run) for is_mine, run in runs if is_mine]
    return ", ".join(" to ".join(dict.fromkeys((run[0], run[-1]))) for run in ranges)


def plain(text: str, limit: int = 160) -> str:
    """Returns a message in one line, without addresses and folders, which differ between runs and machines."""
    # ONNX Runtime begins with the name of the node.
    line = " ".join(text.split()).split("Status Message: ")[-1]
    line = re.sub(r"0x[0-9a-fA-F]{9,}", "0x…", line)
    line = re.sub(r"(?:/[\w.+-]+){2,}/", "", line)
    return line if len(line) <= limit else line[: limit - 1] + "…"

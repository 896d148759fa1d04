"""The verdicts of all runtimes on all rules, as the page shows them."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

# Verdicts on an answer or on a write in place, with the worst one last. Each has a symbol and a sentence.
VERDICTS = {
    "exact": ("✓", "gives the expected output, or refuses what must be refused"),
    "copies": ("≡", "gives the expected output, but copies the cache although it could write in place"),
    "refuses": ("⊘", "refuses a valid call"),
    "ignores": ("○", "accepts a bad call and writes nothing"),
    "skips": ("○", "accepts a bad call and leaves out the bad sample"),
    "drops-rows": ("◐", "accepts a bad call and leaves out the rows that do not fit"),
    "clamps": ("▲", "accepts a bad call and moves the write to the last slots"),
    "wraps": ("▲", "accepts a bad call and writes from the other end of the cache"),
    "accepts": ("▲", "accepts a call that must be refused"),
    "differs": ("✗", "gives another output"),
    "partly-written": ("½", "refuses a call after it has changed the cache"),
    "corrupts-past": ("✗", "changes a past that is still needed"),
    "timeout": ("…", "does not return"),
    "crashes": ("†", "ends the process"),
}

# The place of each verdict in that order.
BADNESS = {verdict: place for place, verdict in enumerate(VERDICTS)}


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


@dataclass
class Group:
    """The runtimes that answer a rule alike."""

    cell: Cell
    runtimes: list[dict[str, Any]] = field(default_factory=list)


class Matrix:
    """The verdicts of results.json."""

    def __init__(self, results: dict[str, Any], index: dict[str, Any]) -> None:
        self.date = results["date"]
        self.system = f"{results['system']} {results['architecture']}"
        self.runtimes = results["runtimes"]
        self.not_run = results["not_run"]
        self.rules = index["rules"]
        self.cases = {
            rule["id"]: [case for case in index["cases"] if case["rule"] == rule["id"]] for rule in self.rules
        }
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

    def groups(self, rule: dict[str, Any]) -> list[Group]:
        """Returns the runtimes that were asked, grouped by their answer, best first."""
        groups: dict[str, Group] = {}
        for runtime in self.runtimes:
            answer = self.cell(runtime, rule)
            if answer.cases:
                groups.setdefault(str(answer), Group(answer)).runtimes.append(runtime)
        return sorted(groups.values(), key=lambda group: BADNESS[group.cell.worst])

    def changes(self) -> list[tuple[dict[str, Any], dict[str, list[Group]]]]:
        """Returns the rules that versions of one runtime answer differently, with the groups of each such runtime."""
        changed = []
        for rule in self.rules:
            runtimes = {}
            for name in dict.fromkeys(runtime["name"] for runtime in self.runtimes):
                groups = []
                for group in self.groups(rule):
                    mine = [runtime for runtime in group.runtimes if runtime["name"] == name]
                    groups += [Group(group.cell, mine)] if mine else []
                if len(groups) > 1:
                    runtimes[name] = groups
            if runtimes:
                changed.append((rule, runtimes))
        return changed


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


def versions(runtimes: list[dict[str, Any]], every: list[dict[str, Any]]) -> str:
    """Returns names and versions in words. Consecutive versions of a runtime become a range."""
    texts = []
    for name in dict.fromkeys(runtime["name"] for runtime in runtimes):
        mine = {runtime["version"] for runtime in runtimes if runtime["name"] == name}
        ranges: list[list[str]] = []
        last_taken = False
        for runtime in (runtime for runtime in every if runtime["name"] == name):
            taken = runtime["version"] in mine
            if taken and last_taken:
                ranges[-1] = [ranges[-1][0], runtime["version"]]
            elif taken:
                ranges.append([runtime["version"]])
            last_taken = taken
        texts.append(f"{name} {', '.join(' to '.join(each) for each in ranges)}")
    return "; ".join(texts)


def plain(text: str, limit: int = 160) -> str:
    """Returns a message in one line, without addresses and folders, which differ between runs and machines."""
    # ONNX Runtime begins with the name of the node.
    line = " ".join(text.split()).split("Status Message: ")[-1]
    line = re.sub(r"0x[0-9a-fA-F]{9,}", "0x…", line)
    line = re.sub(r"(?:/[\w.+-]+){2,}/", "", line)
    return line if len(line) <= limit else line[: limit - 1] + "…"

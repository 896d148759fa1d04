"""What a kernel got wrong, as text and as a picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, Literal

from kvscatter._notebook import image
from kvscatter.testing._case import Case
from kvscatter.testing._compare import MEANINGS, Lanes

ProblemKind = Literal["argument_changed", "not_refused", "raised", "no_array", "wrong_shape", "wrong_dtype"]

WORDS: Final = {
    "not_written": "rows not written",
    "overwritten": "written what must be kept",
    "wrong_row": "another row there",
    "garbled": "neither its row nor the past",
    "argument_changed": "an argument changed",
    "not_refused": "accepted what must be refused",
    "raised": "raised",
    "no_array": "no array returned",
    "wrong_shape": "wrong shape",
    "wrong_dtype": "wrong dtype",
}

SHOWN: Final = 6
"""Failures in a picture, each different in kind from those before as long as there are such."""


@dataclass(frozen=True)
class Problem:
    """Something wrong with a whole call."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True)
class Failure:
    """A case that a kernel got wrong."""

    case: Case
    problems: tuple[Problem, ...]
    lanes: Lanes | None = None
    """The cache slot by slot, where it is one of the right shape and dtype with the wrong contents."""
    hint: str | None = None
    """What all wrong rows have in common."""
    exception: Exception | None = field(default=None, compare=False)
    """What the kernel raised where it must not."""

    @property
    def kinds(self) -> frozenset[str]:
        """Everything that is wrong, by kind: those of ``Problem`` and of ``WrongSlot``."""
        slots = self.lanes.wrong if self.lanes else ()
        return frozenset([*(problem.kind for problem in self.problems), *(slot.kind for slot in slots)])

    @property
    def heading(self) -> str:
        """The call in one line."""
        case = self.case
        shapes = [
            f"{name} {value.shape}" for name, value in case.arguments.items() if _is_tensor(case, value)
        ]
        rest = [
            f"{name}={value.tolist() if hasattr(value, 'tolist') else value!r}"
            for name, value in case.arguments.items()
            if not _is_tensor(case, value) and value is not None
        ]
        return ", ".join([str(case.cache.dtype.name), *shapes, *rest])

    def __str__(self) -> str:
        lines = [self.case.name, f"  {self.heading}", *(f"  {problem.text}" for problem in self.problems)]
        if self.hint:
            lines.append(f"  {self.hint}")
        if self.lanes:
            lines += [f"  {line}" for line in self._drawn(self.lanes)]
        return "\n".join(lines)

    def _drawn(self, lanes: Lanes) -> list[str]:
        sample = "layer, sample" if self.case.operator == "kv_cache_operation" else "sample"
        heads = [(sample, self.case.starts[0]), *zip(lanes.names, positions(self.case), strict=True)]
        widths = [max(len(head[column]) for head in heads) for column in (0, 1)]
        capacity = len(lanes.marks[0]) if lanes.marks else 0
        scale = "".join(str(slot % 10) for slot in range(capacity))
        lines = []
        for index, (lane, start) in enumerate(heads):
            marks = scale if index == 0 else lanes.marks[index - 1]
            wrong = "" if index == 0 else "; ".join(lanes.sentences(index - 1))
            lines.append(f"{lane:>{widths[0]}}  {start:>{widths[1]}}  {marks}  {wrong}".rstrip())
        return lines


@dataclass(frozen=True)
class Report:
    """What a kernel got right and wrong. ``str`` draws it; a notebook shows it as a picture."""

    total: int
    """Cases that ran."""
    failures: tuple[Failure, ...]
    """The cases that failed, in order."""
    left_out: tuple[str, ...] = ()
    """Element types that no case was about, because ml_dtypes is missing or too old."""

    @property
    def passed(self) -> bool:
        """Whether every case passed, and there was one."""
        return not self.failures and self.total > 0

    @property
    def kinds(self) -> dict[str, int]:
        """In how many cases each kind of failure occurred, the most frequent first."""
        return dict(
            Counter(kind for failure in self.failures for kind in sorted(failure.kinds)).most_common()
        )

    def assert_passed(self) -> None:
        """Raises ``AssertionError`` with the picture unless every case passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def shown(self) -> tuple[Failure, ...]:
        """The failures that the picture shows: of each combination of kinds the first, then the next."""
        firsts = {failure.kinds: failure for failure in reversed(self.failures)}
        chosen = sorted(firsts.values(), key=self.failures.index)
        rest = [failure for failure in self.failures if failure not in chosen]
        return tuple((chosen + rest)[:SHOWN])

    def summary(self) -> list[str]:
        """The report without the cases."""
        failed = len(self.failures)
        lines = [
            f"{self.total - failed} of {self.total} cases passed" + (f", {failed} failed" if failed else "")
        ]
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(f"left out: {names}; for these: pip install kvscatter[testing]")
        width = max((len(WORDS[kind]) for kind in self.kinds), default=0)
        lines += [f"  {WORDS[kind]:<{width}}  {_cases(count)}" for kind, count in self.kinds.items()]
        return lines

    def __str__(self) -> str:
        shown = self.shown()
        lines = ["\n".join(self.summary())]
        lines += [f"{failure}" for failure in shown]
        if any(failure.lanes for failure in shown):
            lines.append("  ".join(f"{glyph} {meaning}" for glyph, meaning in MEANINGS.items()))
        if len(self.failures) > len(shown):
            lines.append(f"{len(self.failures) - len(shown)} more in report.failures")
        return "\n\n".join(lines)

    def svg(self) -> str:
        """The same as a picture."""
        from kvscatter.testing._svg import draw

        return draw(self)

    def _repr_html_(self) -> str:
        return image(self.svg(), alt=self.summary()[0])


def positions(case: Case) -> list[str]:
    """What was given as the position of each lane: nothing for samples that the update does not have."""
    _, starts = case.starts
    given = [] if starts is None else [str(start) for start in starts.tolist()]
    if case.operator == "kv_cache_operation":
        layers, samples = case.cache.shape[:2]
        layer = int(case.arguments["layerId"][0])
        return [given[b] if this == layer else "" for this in range(layers) for b in range(samples)]
    return given + [""] * (case.cache.shape[0] - len(given))


def _is_tensor(case: Case, value: object) -> bool:
    return value is case.cache or value is case.update


def _cases(count: int) -> str:
    return f"{count} {'case' if count == 1 else 'cases'}"

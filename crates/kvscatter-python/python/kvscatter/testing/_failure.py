"""A case that a kernel failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvscatter.testing._case import Case
from kvscatter.testing._compare import Lanes

ProblemKind = Literal["argument_changed", "not_refused", "raised", "no_array", "wrong_shape", "wrong_dtype"]


@dataclass(frozen=True)
class Problem:
    """A failure of a whole call."""

    kind: ProblemKind
    text: str


@dataclass(frozen=True)
class Failure:
    """A case that a kernel failed."""

    case: Case
    problems: tuple[Problem, ...]
    lanes: Lanes | None = None
    """The cache slot by slot, if it has the right shape and dtype but the wrong contents."""
    hint: str | None = None
    """A description of what all wrong rows have in common."""
    exception: Exception | None = field(default=None, compare=False)
    """The exception that the kernel raised for a valid call."""

    @property
    def kinds(self) -> frozenset[str]:
        """All kinds of failures in this case, those of ``Problem`` and of ``WrongSlot``."""
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


def positions(case: Case) -> list[str]:
    """Returns the position argument of each lane as text, which is empty for samples that the update does
    not have."""
    _, starts = case.starts
    given = [] if starts is None else [str(start) for start in starts.tolist()]
    if case.operator == "kv_cache_operation":
        layers, samples = case.cache.shape[:2]
        layer = int(case.arguments["layerId"][0])
        return [given[b] if this == layer else "" for this in range(layers) for b in range(samples)]
    return given + [""] * (case.cache.shape[0] - len(given))


def _is_tensor(case: Case, value: object) -> bool:
    return value is case.cache or value is case.update

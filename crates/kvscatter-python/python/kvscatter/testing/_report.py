"""The results of a check, as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape
from typing import Final

from kvscatter.testing._compare import MEANINGS
from kvscatter.testing._failure import Failure

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
"""The number of failures that the text shows. Failures of different kinds come first."""


@dataclass(frozen=True, repr=False)
class Report:
    """The results of a check. ``str`` draws them as text, which a notebook shows."""

    total: int
    """The number of cases that ran."""
    failures: tuple[Failure, ...]
    """The cases that failed, in order."""
    left_out: tuple[str, ...] = ()
    """Element types without any case, because ml_dtypes is missing or too old."""

    @property
    def passed(self) -> bool:
        """Whether every case passed. It is False if no case ran."""
        return not self.failures and self.total > 0

    @property
    def kinds(self) -> dict[str, int]:
        """The number of cases with each kind of failure, the most frequent kind first."""
        return dict(
            Counter(kind for failure in self.failures for kind in sorted(failure.kinds)).most_common()
        )

    def assert_passed(self) -> None:
        """Raises ``AssertionError`` with the text unless every case passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def shown(self) -> tuple[Failure, ...]:
        """Returns the failures that the text shows, beginning with the first of each combination of
        kinds."""
        firsts = {failure.kinds: failure for failure in reversed(self.failures)}
        chosen = sorted(firsts.values(), key=self.failures.index)
        rest = [failure for failure in self.failures if failure not in chosen]
        return tuple((chosen + rest)[:SHOWN])

    def summary(self) -> list[str]:
        """Returns the lines of the report that precede the failures."""
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
        if self._hidden():
            lines.append(f"{self._hidden()} more in report.failures")
        return "\n\n".join(lines)

    def __repr__(self) -> str:
        return f"<kvscatter.testing.Report: {self.summary()[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _hidden(self) -> int:
        return len(self.failures) - len(self.shown())


def _cases(count: int) -> str:
    return f"{count} {'case' if count == 1 else 'cases'}"

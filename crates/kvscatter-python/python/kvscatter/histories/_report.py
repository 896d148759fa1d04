"""What a search found, as text, JSON and HTML."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvscatter._plan import figure
from kvscatter.histories._engine import Engine
from kvscatter.histories._history import History, counted
from kvscatter.histories._judge import Failed
from kvscatter.histories._picture import Step, steps
from kvscatter.histories._script import script


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """The result of a search or of a replay. ``str`` returns the text, and a notebook shows the HTML.

    Attributes:
        histories: The number of histories that ran until one failed.
        done: How often each operation was done.
        refused: How often each operation was refused.
        seconds: The time for everything.
        longest: The most tokens of a sample.
        seed: The seed of the histories, or None for a replay.
        failed: The shortest history that fails and how, or None.
        is_repeatable: Whether that history failed again on new engines.
        adapter: The engine, for its facts.
        never_run: The operations that the engine has and that never ran.
        inconsistent: How often the engine refused an operation in only one of two equal histories.
    """

    histories: int
    done: dict[str, int]
    refused: dict[str, int]
    longest: int
    seconds: float
    seed: int | None
    failed: Failed | None
    is_repeatable: bool
    adapter: Engine
    never_run: tuple[str, ...] = ()
    inconsistent: int = 0

    @property
    def engine(self) -> str:
        """The name of the engine."""
        return self.adapter.name or type(self.adapter).__name__

    @property
    def passed(self) -> bool:
        """Whether no history failed. It is False if none ran."""
        return self.failed is None and self.histories > 0

    @property
    def history(self) -> History | None:
        """The shortest history that fails, or None."""
        return self.failed.history if self.failed else None

    def assert_passed(self) -> None:
        """Raises ``AssertionError`` with the text unless every history passed."""
        if not self.passed:
            raise AssertionError(str(self))

    def script(self, making: str | None = None) -> str:
        """Returns a Python script that shows the failure with nothing but the engine and NumPy.

        Args:
            making: The expression that makes the engine. The default calls its class without arguments.

        Raises:
            ValueError: No history failed.
        """
        if self.failed is None:
            raise ValueError("no history failed, so there is no script")
        return script(self.failed, self.adapter, making)

    def document(self) -> dict[str, Any]:
        """Returns the report as values for JSON. A failure can be replayed from them."""
        document: dict[str, Any] = {
            "engine": self.engine,
            "passed": self.passed,
            "histories": self.histories,
            "done": self.done,
            "refused": self.refused,
            "never_run": list(self.never_run),
            "longest": self.longest,
            "inconsistent": self.inconsistent,
            "seconds": round(self.seconds, 3),
            "seed": self.seed,
        }
        if self.failed is not None:
            difference = self.failed.difference
            document |= {
                "message": self.failed.message,
                "is_repeatable": self.is_repeatable,
                "sample": self.failed.sample,
                "position": self.failed.position,
                # JSON has no NaN and no infinity.
                "difference": None if difference is None or not math.isfinite(difference) else difference,
                "story": [step.story for step in self._steps()],
                **self.failed.history.document(),
            }
        return document

    def json(self) -> str:
        """Returns the report as JSON."""
        return json.dumps(self.document(), indent=2) + "\n"

    def html(self) -> str:
        """Returns the report as a page without outside references."""
        parts = [f"<p>{html.escape(line)}</p>" for line in self._summary()]
        if self.failed is not None:
            parts.append('<ol start="0">')
            for step in self._steps():
                lengths = figure(step.plan.svg(), _lengths(step)) if step.plan else f"<p>{_lengths(step)}</p>"
                parts.append(f"<li>{html.escape(step.story)}{lengths}</li>")
            parts.append(f"</ol><p><strong>{html.escape(self.failed.message)}</strong></p>")
            parts.append(
                f"<p>The history, for --replay:</p><pre>{html.escape(self.failed.history.text())}</pre>"
            )
        title = html.escape(f"Histories of {self.engine}")
        style = ":root{color-scheme:light dark}pre{overflow:auto}"
        style += "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}"
        return (
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{style}</style>'
            f"<h1>{title}</h1>{''.join(parts)}</html>\n"
        )

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<kvscatter.histories.Report: {self._summary()[0]}>"

    def __str__(self) -> str:
        lines = self._summary()
        if self.failed is not None:
            lines += ["", *self._story(), "", *self._pictures()]
        return "\n".join(lines)

    def _summary(self) -> list[str]:
        verdict = "passed" if self.passed else "FAILED" if self.failed else "no history ran"
        seed = "" if self.seed is None else f", seed {self.seed}"
        counts = [
            f"{name} {count:,}" + (f" (and {self.refused[name]:,} refused)" if self.refused.get(name) else "")
            for name, count in sorted(self.done.items(), key=lambda item: -item[1])
        ]
        counts += [
            f"{name} 0 (and {count:,} refused)"
            for name, count in self.refused.items()
            if name not in self.done
        ]
        lines = [
            f"{self.engine}: {verdict}",
            f"{counted(self.histories, 'history')} in {self.seconds:.0f} s{seed}",
            ", ".join(counts),
            self._facts(),
        ]
        if self.never_run:
            lines.append(f"never ran: {', '.join(self.never_run)}")
        if self.inconsistent:
            times = counted(self.inconsistent, "time")
            lines.append(f"{times}, an operation was refused in only one of two equal histories")
        return lines

    def _facts(self) -> str:
        """Returns what limited the histories, so that a fact that was forgotten is seen."""
        engine = self.adapter
        facts = [
            f"windows {', '.join(map(str, engine.windows)) or 'none'}",
            f"edges {', '.join(map(str, engine.edges)) or 'none'}",
            f"capacity {engine.capacity or 'none'}",
            f"batch {engine.batch}{', ragged' if engine.ragged else ''}",
            f"the longest sample {counted(self.longest, 'token')}",
        ]
        return "; ".join(facts)

    def _steps(self) -> Iterator[Step]:
        return steps(self.failed.history, self.adapter) if self.failed else iter(())

    def _story(self) -> list[str]:
        assert self.failed is not None
        every = list(self._steps())
        which = "The history" if self.seed is None else "The shortest history"
        lines = [f"{which} that fails, with {counted(len(every) - 1, 'operation')}:"]
        width = max(len(step.story) for step in every)
        for number, step in enumerate(every):
            lines.append(f"  {number}. {step.story:<{width}}  {_lengths(step)}")
        lines.append(f"  => {self.failed.message}")
        if not self.is_repeatable:
            lines.append(
                "  This history did not fail again on new engines. The engine keeps state from earlier ones,"
            )
            lines.append("  or gives different logits each time.")
        return lines

    def _pictures(self) -> list[str]:
        pictures = [
            (number, step.plan.text(width=64).splitlines())
            for number, step in enumerate(self._steps())
            if step.plan
        ]
        lines = ["The slots that each step writes:"] if pictures else []
        for number, picture in pictures:
            lines += [f"  step {number}", *(f"    {line}" for line in picture[:-1])]
        return lines + [f"  {picture[-1]}" for _, picture in pictures[-1:]]


def _lengths(step: Step) -> str:
    """Returns the lengths of the samples after a step."""
    return f"lengths {', '.join(map(str, step.lengths))}"

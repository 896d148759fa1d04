"""Draws a report as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from kvscatter.testing._compare import GLYPHS, KEPT, MEANINGS, WRITTEN, Lanes
from kvscatter.testing._failure import Failure, positions

CELL = 18
"""The side of a slot."""
LINE = 18
"""The distance between two lines of text."""
LETTER = 7.3
"""The width of a letter in the monospaced font."""
MARGIN = 16
LONGEST = 118
"""The maximum number of letters in a line of prose."""

_STYLE = """
.card { fill: #ffffff; stroke: #d0d7de }
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; fill: #57606a }
.heading { font-size: 14px; font-weight: 600; fill: #1f2328 }
.name { font-weight: 600; fill: #1f2328 }
.hint { fill: #9a6700 }
.end { text-anchor: end }
.glyph { text-anchor: middle; font-size: 12px; font-weight: 700 }
.slot { stroke: #8c959f; stroke-opacity: 0.5; fill: #f3f5f7 }
.slot.written { fill: #0969da }
.slot.wrong { fill: #ffd8d3; stroke: #cf222e; stroke-opacity: 1; stroke-width: 1.5 }
.on-wrong { fill: #a40e26 }
@media (prefers-color-scheme: dark) {
  .card { fill: #0d1117; stroke: #30363d }
  text { fill: #9198a1 }
  .heading, .name { fill: #f0f6fc }
  .hint { fill: #d29922 }
  .slot { fill: #161b22 }
  .slot.written { fill: #4493f8 }
  .slot.wrong { fill: #5d1a1f; stroke: #f85149 }
  .on-wrong { fill: #ffc1bc }
}
"""


class _Page:
    """Lines from top to bottom, and the width that they need."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.y = float(MARGIN)
        self.width = 0.0

    def line(self, text: str, kind: str = "") -> None:
        """Adds text at the margin and breaks it into lines."""
        for line in wrap(text, LONGEST):
            self.y += LINE
            self.text(MARGIN, line, kind)

    def text(self, x: float, text: str, kind: str = "") -> None:
        """Adds text to the current line."""
        size = LETTER * (14 / 12 if kind == "heading" else 1)
        if kind not in {"end", "glyph", "glyph on-wrong"}:
            self.width = max(self.width, x + len(text) * size)
        self.parts.append(f'<text class="{kind}" x="{x:g}" y="{self.y:g}">{escape(text)}</text>')

    def slot(self, x: float, glyph: str) -> None:
        """Adds a slot of a cache to the current line."""
        wrong = glyph in GLYPHS.values()
        kind = "slot wrong" if wrong else "slot written" if glyph == WRITTEN else "slot"
        top = self.y - 13
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{top:g}" width="{CELL}" height="{CELL}"/>')
        if glyph != WRITTEN:
            self.text(x + CELL / 2, glyph, "glyph on-wrong" if wrong else "glyph")
        self.width = max(self.width, x + CELL)

    def drawn(self, title: str) -> str:
        """Returns the whole picture."""
        width, height = self.width + MARGIN, self.y + MARGIN
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}"'
                f' viewBox="0 0 {width:.0f} {height:.0f}" role="img">',
                f"<title>{escape(title)}</title>",
                f"<style>{_STYLE}</style>",
                f'<rect class="card" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="6"/>',
                *self.parts,
                "</svg>",
            ]
        )


def draw(summary: Sequence[str], shown: Sequence[Failure], hidden: int) -> str:
    """Draws a summary with its first line as the heading, then the failures, then the number of failures not
    shown."""
    page = _Page()
    heading, *rest = summary
    page.line(heading, "heading")
    for line in rest:
        page.line(line.strip())
    for failure in shown:
        page.y += LINE / 2
        _draw_failure(page, failure)
    if any(failure.lanes for failure in shown):
        page.y += LINE
        _draw_legend(page)
    if hidden:
        page.y += LINE / 2
        page.line(f"{hidden} more in report.failures")
    return page.drawn(heading)


def _draw_failure(page: _Page, failure: Failure) -> None:
    page.line(failure.case.name, "name")
    page.line(failure.heading)
    for problem in failure.problems:
        page.line(problem.text)
    if failure.hint:
        page.line(failure.hint, "hint")
    if failure.lanes:
        _draw_lanes(page, failure, failure.lanes)


def _draw_lanes(page: _Page, failure: Failure, lanes: Lanes) -> None:
    sample = "layer, sample" if failure.case.operator == "kv_cache_operation" else "sample"
    starts = failure.case.starts[0]
    first = MARGIN + LETTER * max(len(sample), *(len(name) for name in lanes.names))
    second = first + LETTER * (2 + max(len(starts), *(len(start) for start in positions(failure.case))))
    x = second + 2 * LETTER
    page.y += LINE
    page.text(first, sample, "end")
    page.text(second, starts, "end")
    for slot in range(len(lanes.marks[0])):
        page.text(x + (slot + 0.5) * CELL, str(slot), "glyph")
    for lane, (name, start) in enumerate(zip(lanes.names, positions(failure.case), strict=True)):
        page.y += CELL + 4
        page.text(first, name, "end")
        page.text(second, start, "end")
        for slot, glyph in enumerate(lanes.marks[lane]):
            page.slot(x + slot * CELL, glyph)
        page.text(x + len(lanes.marks[lane]) * CELL + 2 * LETTER, "; ".join(_cut(lanes.sentences(lane))))


def _cut(sentences: list[str]) -> Iterator[str]:
    """Yields the first sentences, and then the number of the others."""
    yield from sentences[:2]
    if len(sentences) > 2:
        yield f"{len(sentences) - 2} more"


def _draw_legend(page: _Page) -> None:
    page.y += LINE
    x = float(MARGIN)
    for glyph in (KEPT, WRITTEN, *GLYPHS.values()):
        page.slot(x, glyph)
        page.text(x + CELL + 6, MEANINGS[glyph])
        x += CELL + 6 + LETTER * (len(MEANINGS[glyph]) + 2)

"""Writes the tables and the plot."""

import statistics
from pathlib import Path
from typing import Any

from candidates import GENAI, GENAI_OURS

import pages

COMMAND = "cargo xtask bench-real"
PAGE = pages.ROOT / "docs" / "performance" / "real.md"
GENAI_PAGE = pages.ROOT / "docs" / "genai.md"
PLOT = "real.svg"
TITLE = "Decode of models with real weights"
COLORS = {
    "kvscatter, ONNX Runtime": "#0969da",
    "kvscatter, tract": "#54aeff",
    "kvscatter, ONNX Runtime, unconverted": "#80ccff",
    "onnxruntime-genai with kvscatter": "#d4a72c",
    "onnxruntime-genai": "#bc4c00",
    "llama.cpp": "#1a7f37",
    "transformers, static cache": "#8250df",
    "transformers, dynamic cache": "#bf3989",
}
Results = dict[str, Any]


def write(results: Results, folder: Path, docs: bool) -> None:
    """Prints the tables, and writes them to a folder and to pages. Only a whole run has the page of all engines."""
    text = tables(results)
    (folder / "results.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\n\nwrote {folder / 'results.md'}")
    if docs:
        pages.write(GENAI_PAGE, COMMAND, f"{gains(results['groups'])}\n\n{machine(results)}")
        print(f"wrote {GENAI_PAGE}")
    if docs and results["whole"]:
        plot(results["groups"], PAGE.with_name(PLOT))
        picture = f"![{TITLE}: tokens per second against the tokens in the cache]({PLOT})"
        pages.write(PAGE, COMMAND, f"{picture}\n\n{text}")
        print(f"wrote {PAGE}")


def plot(groups: list[Results], path: Path) -> None:
    """Draws a panel for each group. The axis of tokens per second begins at 0."""
    import draw

    def line(name: str, row: Results) -> draw.Line:
        points = [(int(length), value) for length in lengths(groups) if (value := rate(row, length))]
        return draw.Line(name, COLORS[name], points)

    panels = {
        group["title"]: [
            line(name, row) for name in COLORS for row in group["candidates"] if row["name"] == name
        ]
        for group in groups
    }
    x = draw.Axis("tokens in the cache", lambda value: f"{value:,.0f}", base=2)
    y = draw.Axis("tokens per second", lambda value: f"{value:g}", base=0)
    draw.lines(path, TITLE, "tokens per second against tokens in the cache, batch 1", panels, x, y)


def tables(results: Results) -> str:
    """Returns the generated part of the page."""
    parts = [
        times(results["groups"]),
        checks(results["groups"]),
        *remarks(results["groups"]),
        machine(results),
    ]
    return "\n\n".join(part for part in parts if part)


def lengths(groups: list[Results]) -> list[str]:
    """Returns the numbers of tokens in the cache. JSON has them as texts."""
    found = {str(length) for group in groups for row in group["candidates"] for length in row["decode"]}
    return sorted(found, key=int)


def rate(row: Results, length: str) -> float | None:
    """Returns the tokens per second of decode after so many tokens."""
    seconds = {str(key): value for key, value in row["decode"].items()}.get(length)
    return 1 / statistics.median(seconds) if seconds else None


def prefill_rate(row: Results, length: str) -> float | None:
    """Returns the tokens per second of a prompt of this length."""
    seconds = {str(key): value for key, value in row["prefill"].items()}.get(length)
    return int(length) / statistics.median(seconds) if seconds else None


def times(groups: list[Results]) -> str:
    """Returns a row for each candidate. The best of each group is bold."""
    columns = lengths(groups)
    lines = []
    for group in groups:
        title, rows = group["title"], group["candidates"]
        rates = [
            [function(row, length) for function in (rate, prefill_rate) for length in columns] for row in rows
        ]
        best = [
            max((value for value in values if value), default=None) for values in zip(*rates, strict=True)
        ]
        for row, values in zip(rows, rates, strict=True):
            cells = [
                f"**{shown(value)}**" if value == most else shown(value)
                for value, most in zip(values, best, strict=True)
            ]
            lines.append([title, row["name"], *cells, size(row["peak"]), size(row["caches"])])
            title = ""
    return pages.table(["model", "engine", *heads(columns), "peak memory", "caches"], lines, left=2)


def gains(groups: list[Results]) -> str:
    """Returns the generated part of the page for GenAI: its speed with the plugin divided by that without it."""
    columns, lines = lengths(groups), []
    for group in groups:
        rows = {row["name"]: row for row in group["candidates"]}
        if rows.keys() >= {GENAI, GENAI_OURS}:
            without, ours = rows[GENAI], rows[GENAI_OURS]
            pairs = [
                (f(ours, length), f(without, length)) for f in (rate, prefill_rate) for length in columns
            ]
            lines.append(
                [group["title"], *(f"{fast / slow:.2f}" if fast and slow else "–" for fast, slow in pairs)]
            )
    text = "Speed with the plugin divided by that without it, with N tokens in the cache or in the prompt:"
    return f"{text}\n\n{pages.table(['model', *heads(columns)], lines)}"


def heads(columns: list[str]) -> list[str]:
    """Returns the names of the columns with rates."""
    return [f"{what} {int(length):,}" for what in ("decode", "prefill") for length in columns]


def checks(groups: list[Results]) -> str:
    """Returns how many tokens equal those of transformers in float32, and how far logits of 4 bits differ."""
    lines = []
    for group in groups:
        title, found = group["title"], {name: each for name, each in group["checks"].items() if each}
        if all(each["same"] == each["of"] for of_engine in found.values() for each in of_engine):
            lines.append(f"- {title}: all tokens of all engines, {agreement(next(iter(found.values()), []))}")
        else:
            lines += [f"- {title}, {name}: {agreement(of_engine)}" for name, of_engine in found.items()]
        lines += [f"- {title}, kvscatter, ONNX Runtime: {difference(each)}" for each in group["logits"]]
    title = "Tokens that equal those of transformers in float32, or of the export, after a prompt of so many tokens:"
    return "\n".join([title, "", *lines]) if lines else ""


def agreement(found: list[Results]) -> str:
    """Returns how many tokens equal those of transformers, for each prompt."""
    return ", ".join(f"{each['same']} of {each['of']} after {each['prompt']:,}" for each in found)


def difference(found: Results) -> str:
    """Returns how far the logits of a conversion are from those of its export."""
    return (
        f"{found['same']} of {found['of']} tokens of the export after {found['prompt']:,}; logits differ by at most "
        f"{found['rounded']:.2g}, without rounding by {found['exact']:.2g}, and the rounding moves them by "
        f"{found['rounding']:.2g}"
    )


def remarks(groups: list[Results]) -> list[str]:
    """Returns what is missing and why, and the notes of the groups."""
    lines = [f"- {group['title']}: {note}" for group in groups for note in group["notes"]]
    for group in groups:
        lines += [
            f"- {group['title']}: not run: {name} ({reason})" for name, reason in group["left_out"].items()
        ]
    return ["\n".join(lines)] if lines else []


def machine(results: Results) -> str:
    """Returns the machine and the versions."""
    facts = [*map(tuple, results["machine"]), ("threads of each engine", results["threads"])]
    facts.append(("time that other virtual machines took", f"{results['stolen']:.1%}"))
    return "; ".join(f"{name}: {fact}" for name, fact in facts) + "."


def shown(value: float | None) -> str:
    """Returns three digits."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(count: int) -> str:
    """Returns a number of bytes with a unit."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"

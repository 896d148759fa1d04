"""Writes the tables and the plot."""

import statistics
from html import escape
from pathlib import Path
from typing import Any

import generated

COMMAND = "cargo xtask bench-real"
PAGE = generated.ROOT / "docs" / "performance" / "real.md"
PLOT = "real.svg"
TITLE = "Decode of models with real weights"
# The colours of the other plots, and the width of a line.
LOOKS = {
    "kvscatter, ONNX Runtime": ("#0969da", 3),
    "kvscatter, tract": ("#54aeff", 3),
    "onnxruntime-genai": ("#bc4c00", 2),
    "GroupQueryAttention in place": ("#d4a72c", 2),
    "llama.cpp": ("#1a7f37", 2),
    "transformers, static cache": ("#8250df", 2),
    "transformers, dynamic cache": ("#bf3989", 2),
}
Results = dict[str, Any]
NONE = {"count": 0, "us": 0}


def write(results: Results, folder: Path, docs: bool) -> None:
    """Prints the tables, and writes them and the plot to a folder or to the page."""
    picture = f"![{TITLE}: tokens per second against the tokens in the cache]({PLOT})"
    text = f"{picture}\n\n{tables(results)}"
    (folder / "results.md").write_text(text, encoding="utf-8")
    (folder / PLOT).write_text(plot(results["groups"]), encoding="utf-8")
    print(f"\n{tables(results)}\n\nwrote {folder / 'results.md'} and {folder / PLOT}")
    if docs:
        generated.write(PAGE, COMMAND, text)
        PAGE.with_name(PLOT).write_text(plot(results["groups"]), encoding="utf-8")
        print(f"wrote {PAGE}")


def tables(results: Results) -> str:
    """Returns the generated part of the page."""
    parts = [
        times(results["groups"]),
        checks(results["groups"]),
        *operators(results["groups"]),
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
    names = [f"{int(length):,}" for length in columns]
    head = ["model", "engine", *(f"decode {name}" for name in names), *(f"prefill {name}" for name in names)]
    lines = [
        f"| {' | '.join([*head, 'peak memory', 'caches'])} |",
        f"|---|---|{'--:|' * (2 * len(names) + 2)}",
    ]
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
            lines.append(
                f"| {' | '.join([title, row['name'], *cells, size(row['peak']), size(row['caches'])])} |"
            )
            title = ""
    return "\n".join(lines)


def checks(groups: list[Results]) -> str:
    """Returns how many tokens each engine has in common with transformers, and how far logits of 4 bits differ."""
    lines = []
    for group in groups:
        for name, found in group["checks"].items():
            if found:
                lines.append(f"| {group['title']} | {name} | {agreement(found)} |")
        ours = f"| {group['title']} | kvscatter, ONNX Runtime |"
        lines += [f"{ours} {difference(each)} |" for each in group["logits"]]
    head = ["| model | engine | tokens that equal those of transformers in float32 |", "|---|---|---|"]
    return "\n".join([*head, *lines]) if lines else ""


def agreement(found: list[Results]) -> str:
    """Returns how many tokens equal those of transformers, for each prompt."""
    return ", ".join(f"{each['same']} of {each['of']} after {each['prompt']:,}" for each in found)


def difference(found: Results) -> str:
    """Returns how far the logits of a conversion are from those of its export."""
    return (
        f"{found['same']} of {found['of']} tokens of the export after {found['prompt']:,}; logits differ by at most "
        f"{found['rounded']:.2g}, without rounding to 8 bits by {found['exact']:.2g}. The rounding alone moves logits "
        f"of the export by {found['rounding']:.2g}"
    )


def operators(groups: list[Results]) -> list[str]:
    """Returns a table for each group whose operators were timed. The longest are first."""
    tables = []
    for group in groups:
        export, converted = (group.get("operators", {}).get(name, {}) for name in ("export", "converted"))
        names = {*export, *converted}
        both = {name: export.get(name, NONE)["us"] + converted.get(name, NONE)["us"] for name in names}
        if names:
            lines = [
                "| operator of a decode step | nodes | µs | converted: nodes | µs |",
                "|---|--:|--:|--:|--:|",
            ]
            order = sorted(names, key=lambda name: (-both[name], name))
            lines += [
                f"| {name} | {cells(export.get(name))} | {cells(converted.get(name))} |" for name in order
            ]
            totals = (total(export), total(converted))
            lines.append(f"| all | {' | '.join(map(cells, totals))} |")
            tables.append(f"{group['title']}, in ONNX Runtime's profiler:\n\n" + "\n".join(lines))
    return tables


def total(operators: Results) -> Results:
    """Returns the sums of the operators of a model."""
    return {key: sum(found[key] for found in operators.values()) for key in NONE}


def cells(found: Results | None) -> str:
    """Returns the number of nodes and their time."""
    return f"{found['count']} | {found['us']:,.0f}" if found else "|"


def remarks(groups: list[Results]) -> list[str]:
    """Returns what is missing and why, and the notes of the groups."""
    lines = [f"- {group['title']}: {note}" for group in groups for note in group["notes"]]
    for group in groups:
        lines += [
            f"- {group['title']}, without {name}: {reason}" for name, reason in group["left_out"].items()
        ]
    return ["\n".join(lines)] if lines else []


def machine(results: Results) -> str:
    """Returns the machine and the versions."""
    facts = [*map(tuple, results["machine"]), ("threads of each engine", results["threads"])]
    facts.append(("time that other virtual machines took", f"{results['stolen']:.1%}"))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {fact} |" for name, fact in facts)])


def shown(value: float | None) -> str:
    """Returns three digits."""
    return "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def size(count: int) -> str:
    """Returns a number of bytes with a unit."""
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):,.0f} MiB"


PANEL, TOP, BOTTOM, LEFT, NAMES = 300, 84, 344, 54, 230


def plot(groups: list[Results]) -> str:
    """Returns a plot with a panel for each group, as SVG. Lines are named on the right."""
    columns = lengths(groups)
    used = [
        name for name in LOOKS if any(row["name"] == name for group in groups for row in group["candidates"])
    ]
    shapes = [
        label(16, 24, TITLE, "bold"),
        label(16, 46, "tokens per second against tokens in the cache, batch 1"),
    ]
    for number, group in enumerate(groups):
        shapes += panel(group, columns, LEFT + number * PANEL)
    right = LEFT + len(groups) * PANEL
    for number, name in enumerate(used):
        color, width = LOOKS[name]
        y = TOP + 10 + number * 20
        shapes.append(f'<path d="M{right} {y}h24" stroke="{color}" stroke-width="{width}"/>')
        shapes.append(label(right + 30, y + 4, name, color=color))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + NAMES} {BOTTOM + 44}" '
        f'font-family="sans-serif" font-size="12" fill="none" role="img" aria-label="{TITLE}">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(shapes)}</svg>\n'
    )


def panel(group: Results, columns: list[str], left: int) -> list[str]:
    """Draws the lines of a group. The axis of tokens per second begins at 0."""
    rows = [row for row in group["candidates"] if row["name"] in LOOKS]
    most = max((rate(row, length) or 0 for row in rows for length in columns), default=0) or 1
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**6) if most / step <= 6)
    width = PANEL - 60

    def x(length: str) -> float:
        return left + width * columns.index(length) / max(1, len(columns) - 1)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / (step * -(-most // step))

    shapes = [label(left, TOP - 14, group["title"], "bold")]
    tick = 0.0
    while tick <= most + step - 1e-9 and y(tick) >= TOP - 1e-6:
        shapes.append(f'<path d="M{left} {y(tick):.1f}h{width}" stroke="#d8dee4"/>')
        shapes.append(label(left - 6, y(tick) + 4, f"{tick:g}", anchor="end"))
        tick += step
    shapes += [label(x(length), BOTTOM + 20, f"{int(length):,}", anchor="middle") for length in columns]
    for row in sorted(rows, key=lambda row: -list(LOOKS).index(row["name"])):
        color, thick = LOOKS[row["name"]]
        points = [(x(length), y(value)) for length in columns if (value := rate(row, length))]
        path = "L".join(f"{at:.1f} {height:.1f}" for at, height in points)
        shapes.append(f'<path d="M{path}" stroke="{color}" stroke-width="{thick}"/>')
        shapes += [f'<circle cx="{at:.1f}" cy="{height:.1f}" r="3" fill="{color}"/>' for at, height in points]
    return shapes


def label(
    x: float, y: float, words: str, weight: str = "normal", color: str = "#59636e", anchor: str = "start"
) -> str:
    """Returns a text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )

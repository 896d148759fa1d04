"""Prints the tables of a run of the benchmarks in Rust, or writes them and the plots into pages.

python bench/report.py target/bench/write.json [--write-docs]
"""

import argparse
import json
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import pages

Row = dict[str, Any]
Case = dict[str, Any]
NONE = "–"

ORANGE, SAND, GREEN, PURPLE, PINK, INK, OURS = (
    "#bc4c00", "#d4a72c", "#1a7f37", "#8250df", "#bf3989", "#57606a", "#0969da"
)  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """A plot of the rows that name it. The first subject is the limit if its line is ink-coloured."""

    title: str
    subtitle: str
    number: str
    label: str
    subjects: dict[str, str]


@dataclass(frozen=True)
class Page:
    """The page of a benchmark, the command that writes it, and the plots by the name of their rows."""

    path: str
    command: str
    plots: dict[str, Plot] = field(default_factory=dict)


WRITERS = {
    "memcpy": INK,
    "kvscatter": OURS,
    "hand loop": "#24292f",
    "candle slice_set": ORANGE,
    "candle scatter_set": SAND,
    "ndarray assign": GREEN,
    "onnxruntime, shared buffer": PURPLE,
}
ATTENTION = {
    "pass over the bytes": INK,
    "kvscatter": OURS,
    "GroupQueryAttention": PURPLE,
    "Attention": ORANGE,
    "Attention, plugin": GREEN,
    "candle": PINK,
    "tract": SAND,
}
STEPS = {
    "static, plugin": OURS,
    "growing": ORANGE,
    "static, separate nodes": SAND,
    "static": GREEN,
    "GroupQueryAttention": PURPLE,
}
PAGES = {
    "write": Page(
        "docs/performance.md",
        "cargo xtask bench",
        {
            "batch": Plot(
                "Time per decode step against the batch",
                "8 heads of 128 float16, one new row per sample; one cache, hot",
                "batch",
                "batch",
                WRITERS,
            ),
            "capacity": Plot(
                "Time per decode step against the capacity",
                "batch 4, 1 head of 128 float16, one new row per sample; hot",
                "capacity",
                "capacity in rows",
                WRITERS | {"onnxruntime, run()": PINK},
            ),
        },
    ),
    "candle": Page("docs/candle.md", "cargo xtask bench candle"),
    "attention": Page(
        "docs/attention.md",
        "cargo xtask bench models",
        {
            "attention-valid": Plot(
                "Time of one token's attention against the valid slots",
                "8 heads of 128 float32, capacity 4096, batch 1, one thread",
                "valid",
                "valid slots",
                ATTENTION,
            ),
            "attention-capacity": Plot(
                "Time of one token's attention against the capacity",
                "8 heads of 128 float32, 300 valid slots, batch 1, one thread",
                "capacity",
                "slots of the cache",
                ATTENTION,
            ),
        },
    ),
    "models": Page(
        "docs/models.md",
        "cargo xtask bench models",
        {
            "caches": Plot(
                "Time of the caches per decode step against the context",
                "the nodes between past and present alone, batch 1",
                "context",
                "tokens in the caches",
                STEPS,
            ),
            "step": Plot(
                "Time of a whole decode step against the context",
                "everything, batch 1",
                "context",
                "tokens in the caches",
                STEPS,
            ),
        },
    ),
    "tract": Page("docs/models.md", "cargo xtask bench models --only tract"),
    "rings": Page("docs/rings.md", "cargo xtask bench rings"),
    "sessions": Page("docs/sessions.md", "cargo xtask bench sessions"),
}


def time_of(case: Case, subject: str) -> float | None:
    """Returns the median nanoseconds of a subject, if it was timed."""
    times = (each["time"] for each in case["subjects"] if each["name"] == subject)
    return next((time["median"] for time in times if time), None)


def cell(nanoseconds: float | None) -> str:
    """Returns a time, or a dash if there is none."""
    return NONE if nanoseconds is None else pages.shown(nanoseconds)


def names(row: Row) -> list[str]:
    """Returns the subjects that any case of a row has timed, in order."""
    found = (each["name"] for case in row["cases"] for each in case["subjects"] if each["time"])
    return list(dict.fromkeys(found))


def times(row: Row) -> str:
    """Returns the median times: a line for each case, or for each subject if each case has other ones."""
    subjects, cases = names(row), [case for case in row["cases"] if case["subjects"]]
    if not cases:
        return ""
    if len(cases) > 1 and not set.intersection(
        *({each["name"] for each in case["subjects"]} for case in cases)
    ):
        lines = [
            [case["name"], each["name"], cell(time_of(case, each["name"]))]
            for case in cases
            for each in case["subjects"]
        ]
        return pages.table(["", row["description"], "time"], lines, 2)
    lines = [[case["name"], *(cell(time_of(case, subject)) for subject in subjects)] for case in cases]
    return pages.table([row["description"], *subjects], lines)


def missed(rows: list[Row]) -> str:
    """Returns how many targets were met, and a list of the others."""
    found = [(case, verdict) for row in rows for case in row["cases"] for verdict in case["verdicts"]]
    if not found:
        return ""
    others = [pair for pair in found if pair[1]["status"] != "met"]
    lines = [
        f"{len(found) - len(others)} of {len(found)} targets were met{'. The others:' if others else '.'}"
    ]
    for case, verdict in others:
        ratio = NONE if verdict["ratio"] is None else f"{verdict['ratio']:.2f}"
        lines.append(
            f"- {case['name']}: {verdict['subject']} is {ratio} × {verdict['baseline']}, "
            f"at most {verdict['limit']:.2f}: {verdict['status'].replace('-', ' ')}"
        )
    return "\n".join([lines[0], "", *lines[1:]]) if others else lines[0]


def facts(results: Row) -> str:
    """Returns what a reader needs to know about the machine and the run."""
    return "; ".join(f"{name}: {fact}" for name, fact in results["facts"]) + "."


PEERS = {
    "candle slice_set": "slice_set",
    "candle scatter_set": "scatter_set",
    "ndarray assign": "ndarray",
    "onnxruntime, shared buffer": "ORT in place",
    "onnxruntime, run()": "ORT run()",
}


def writes(rows: list[Row]) -> str:
    """Returns one table with kvscatter's time, its ratios to the yardsticks, and those of others to it."""
    lines = []
    for case in (case for row in rows for case in row["cases"]):
        yardsticks = [ratio(case, "kvscatter", yardstick) for yardstick in ("memcpy", "hand loop")]
        peers = [ratio(case, peer, "kvscatter") for peer in PEERS]
        lines.append([case["name"], cell(time_of(case, "kvscatter")), *yardsticks, *peers])
    return pages.table(["case", "time", "× memcpy", "× hand loop", *PEERS.values()], lines)


def ratio(case: Case, subject: str, baseline: str) -> str:
    """Returns the median ratio of two subjects by rounds."""
    over = (each["over"].get(baseline) for each in case["subjects"] if each["name"] == subject)
    return next((pages.digits(ratio) for ratio in over if ratio), NONE)


def machine(results: Row) -> str:
    """Returns the name of a machine in file names: its processor and the instructions of the library."""
    known = dict(map(tuple, results["facts"]))
    text = f"{known.get('CPU', 'unknown')} {known['kvscatter uses']}".lower()
    words = re.split(r"[^a-z0-9]+", re.sub(r"\((r|tm)\)|processor", "", text))
    return "-".join(filter(None, words))


def generate(results: Row) -> str:
    """Returns the generated part of a page."""
    rows = results["rows"]
    if results["suite"] == "write":
        return "\n\n".join([writes(rows), missed(rows).split(" The")[0], facts(results)])
    return "\n\n".join(filter(None, [*map(times, rows), missed(rows), facts(results)]))


def draw(results: Row, name: str, plot: Plot, path: pathlib.Path) -> bool:
    """Draws a plot, if a line has two points."""
    import draw

    rows = [row for row in results["rows"] if row["plot"] == name]
    cases = [case for row in rows for case in row["cases"] if case["numbers"].get("threads", 1) == 1]
    lines = []
    for subject, color in plot.subjects.items():
        points = sorted(
            (case["numbers"][plot.number], time) for case in cases if (time := time_of(case, subject))
        )
        if len(points) > 1:
            lines.append(draw.Line(subject, color, points, color == INK))
    if lines:
        known = dict(map(tuple, results["facts"]))
        x = draw.Axis(plot.label, lambda value: f"{value:,.0f}", base=2)
        y = draw.Axis("time per call", pages.shown)
        draw.lines(path, plot.title, f"{plot.subtitle}; {known.get('CPU')}", {"": lines}, x, y)
    return bool(lines)


def write(results: Row) -> None:
    """Writes the tables and plots into the page."""
    page = PAGES[results["suite"]]
    path = pages.ROOT / page.path
    of_machine = f"-{machine(results)}" if results["suite"] == "write" else ""
    text = generate(results)
    for name, plot in page.plots.items():
        file = path.with_suffix("") / f"{name}{of_machine}.svg"
        if of_machine:
            # The page shows these plots outside the table of the machine, and only for one machine.
            if file.exists():
                draw(results, name, plot, file)
        elif draw(results, name, plot, file):
            text += f"\n\n![{plot.title}]({file.relative_to(path.parent).as_posix()})"
    pages.write(path, page.command, text, machine(results) if of_machine else "")
    print(f"wrote {path}")


def main() -> None:
    """Prints or writes what the arguments name."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("results", type=pathlib.Path)
    options.add_argument("--write-docs", action="store_true", help="write the page and its plots")
    given = options.parse_args()
    results = json.loads(given.results.read_text(encoding="utf-8"))
    if not given.write_docs:
        print(generate(results))
    elif results["is_complete"]:
        write(results)
    else:
        raise SystemExit("error: --write-docs needs a whole run, without --quick and --case")


if __name__ == "__main__":
    main()

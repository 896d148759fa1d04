"""Times each choice of how a launch is spread over the device, changed in turn, next to the default."""

import ctypes
import statistics

import report
from names import AGAIN, OURS
from results import Result, Run

# The values that are tried instead of the default, in the order of the crate's struct.
VALUES = {
    "small_table_jobs": (0,),
    "max_threads_per_block": (64, 128),
    "min_threads_per_block": (32, 128, 256),
    "max_vectors_per_thread": (1, 2),
    "min_blocks_per_multiprocessor": (1, 2, 8, 16),
}


class Choices(ctypes.Structure):
    """The struct `LaunchConfig` of the crate."""

    _fields_ = [(name, ctypes.c_uint32) for name in VALUES]


def variations(default: Choices) -> dict[str, Choices]:
    """Returns the changed choices by names such as `min_blocks_per_multiprocessor 4 → 8`."""
    found = {}
    for name, values in VALUES.items():
        for value in values:
            changed = Choices.from_buffer_copy(default)
            setattr(changed, name, value)
            found[f"{name} {getattr(default, name)} → {value}"] = changed
    return found


def page(run: Run) -> str:
    """Returns the whole report, as Markdown."""
    parts = [
        f"{run.machine}.",
        "Times with one choice changed over those of the default: below 1 is faster. **Bold**: further from 1 than the "
        "default over itself (A/A).",
        "**Replayed**, of the device:",
        table(run, "replayed"),
        "**Eager**, of the device:",
        table(run, "eager"),
        "**Eager**, of the host, called from Python:",
        table(run, "host"),
        report.left_out(run),
    ]
    return report.paragraphs(parts)


def table(run: Run, what: str) -> str:
    """Returns a table with a row for each case and a column for each choice."""
    names = list(dict.fromkeys(name for result in run.results for name in result.samples))
    changed = [name for name in names if name not in (OURS, AGAIN)]
    lines = [report.row(["", "default, µs", "A/A", *changed]), f"|---|{'--:|' * (len(changed) + 2)}"]
    for result in run.results:
        cells = [result.case.label, report.shown(result.median(OURS, what)), noise(result, what)]
        lines.append(report.row([*cells, *(cell(result, name, what) for name in changed)]))
    means = [mean([result.ratio(name, OURS, what) for result in run.results]) for name in changed]
    lines.append(report.row(["geometric mean", "", "", *means]))
    return "\n".join(lines)


def noise(result: Result, what: str) -> str:
    """Returns how much the default differs from itself."""
    found = result.spread(AGAIN, OURS, what)
    return f"{found[0]:.2f} – {found[1]:.2f}" if found else report.NONE


def cell(result: Result, name: str, what: str) -> str:
    """Returns the cell for one choice in one case."""
    ratio, alike = result.ratio(name, OURS, what), result.spread(AGAIN, OURS, what)
    if ratio is None or alike is None:
        return report.NONE
    return f"{ratio:.2f}" if alike[0] <= ratio <= alike[1] else f"**{ratio:.2f}**"


def mean(ratios: list[float | None]) -> str:
    """Returns the geometric mean of the cases that were measured."""
    found = [ratio for ratio in ratios if ratio is not None]
    return f"{statistics.geometric_mean(found):.2f}" if found else report.NONE

"""Draws the plot, with a line for each case and a point for each engine, in the colours of
docs/performance.md."""

import pathlib
import statistics
from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

import engines
from cases import Case
from generated import shown
from report import Samples

TITLE = "Time of a write from Python"

INK = "#1f2328"
GREY = "#59636e"
GRID = "#d8dee4"
SHADE = "#eef0f2"

COLORS = {
    engines.OURS: "#0969da",
    engines.OURS_DLPACK: "#54aeff",
    engines.OURS_JAX: "#0a3069",
    engines.NUMPY: "#1a7f37",
    engines.TORCH_SLICES: "#bc4c00",
    engines.TORCH_INDEX_PUT: "#d4a72c",
    engines.TORCH_INDEX_COPY: "#e16f24",
    engines.ONNX_RUNTIME: "#8250df",
    engines.JAX: "#bf3989",
}

# These are the sizes of the other plots, in points of 1/72 inch.
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 170, 560, 64, HEIGHT - 56


def write(path: pathlib.Path, results: Mapping[Case, Samples]) -> None:
    """Writes the plot as SVG. The same results give the same file."""
    mpl.rcParams.update({"svg.hashsalt": "kvscatter", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure = Figure(figsize=(WIDTH / 72, HEIGHT / 72), facecolor="white")
    figure.text(16 / WIDTH, 1 - 18 / HEIGHT, TITLE, color=INK, size=13, weight="bold", va="center")
    subtitle = "float16, one cache, in place, hot, ragged positions; the shade ends at memcpy of the update"
    figure.text(16 / WIDTH, 1 - 40 / HEIGHT, subtitle, color=GREY, size=9.7, va="center")
    box = (LEFT / WIDTH, 1 - BOTTOM / HEIGHT, (RIGHT - LEFT) / WIDTH, (BOTTOM - TOP) / HEIGHT)
    axes = figure.add_axes(box)
    places = range(len(results))
    medians = [{name: statistics.median(of) for name, of in samples.items()} for samples in results.values()]
    for place, found in zip(places, medians, strict=True):
        axes.plot(
            [min(found.values()), max(found.values())], [place, place], color=GRID, linewidth=1, zorder=1
        )
        axes.barh(place, found[engines.MEMCPY], height=0.9, color=SHADE, zorder=0)
    # kvscatter's points are drawn last, over the others.
    for name in reversed(COLORS):
        values, ours = [found[name] for found in medians], name == engines.OURS
        axes.scatter(
            values, places, s=64 if ours else 30, color=COLORS[name], label=name, zorder=3 if ours else 2
        )
    decorate(figure, [case.label for case in results])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", metadata={"Date": None})


def decorate(figure: Figure, cases: list[str]) -> None:
    """Adds a logarithmic axis with a few ticks, and the names on the right."""
    axes = figure.axes[0]
    axes.set_xscale("log")
    axes.set_yticks(range(len(cases)), cases)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(LogLocator(numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value)))
    axes.set_xlabel("time per call", color=GREY, size=9.7)
    axes.tick_params(length=0, labelsize=9.7, labelcolor=GREY)
    axes.grid(axis="x", color=GRID, linewidth=1, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    handles, names = axes.get_legend_handles_labels()
    corner = ((RIGHT + 10) / WIDTH, 1 - (TOP - 8) / HEIGHT)
    legend = figure.legend(
        handles[::-1], names[::-1], loc="upper left", bbox_to_anchor=corner, frameon=False, fontsize=9.7
    )
    for text, name in zip(legend.get_texts(), names[::-1], strict=True):
        text.set_color(COLORS[name])

"""The look of all plots, which are drawn with matplotlib."""

import pathlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

INK, GREY, GRID, SHADE = "#1f2328", "#59636e", "#d8dee4", "#eef0f2"
OURS = "#0969da"
# The space around the axes, in points of 1/72 inch. The names of lines are on the right.
LEFT, RIGHT, TOP, BOTTOM = 76, 216, 64, 56
SMALL = 9.7


@dataclass(frozen=True)
class Line:
    """A line, and the colour of its name."""

    name: str
    color: str
    points: list[tuple[float, float]]
    # A limit is dashed, and the area below it is shaded.
    is_limit: bool = False

    def sides(self) -> tuple[list[float], list[float]]:
        """Returns the coordinates in both directions."""
        return [x for x, _ in self.points], [y for _, y in self.points]


@dataclass(frozen=True)
class Axis:
    """The label of an axis, and the text at a tick. The base of a linear axis is 0."""

    label: str
    tick: Callable[[float], str]
    base: int = 10


def lines(
    path: pathlib.Path, title: str, subtitle: str, panels: dict[str, list[Line]], x: Axis, y: Axis
) -> None:
    """Draws a panel of lines for each title. Every name is listed once."""
    width, height = 480 if len(panels) == 1 else 240, 340
    drawing = figure(title, subtitle, LEFT + len(panels) * (width + 60) - 60 + RIGHT, TOP + height + BOTTOM)
    named: dict[str, Line] = {}
    for number, (name, of_panel) in enumerate(panels.items()):
        axes = axes_at(drawing, LEFT + number * (width + 60), TOP, width, height)
        axes.set_title(name, color=INK, size=SMALL, weight="bold", loc="left")
        for order, line in enumerate(reversed(of_panel)):
            look = {"linestyle": "--"} if line.is_limit else {"marker": "o", "markersize": 4}
            wide = 3 if line.color == OURS else 2
            axes.plot(*line.sides(), color=line.color, lw=wide, zorder=2 + order, **look)
        scaled(axes, x, y)
        for line in of_panel:
            if line.is_limit:
                axes.fill_between(*line.sides(), axes.get_ylim()[0], color=SHADE, zorder=0, lw=0)
        named |= {line.name: line for line in of_panel}
    names(drawing, {name: line.color for name, line in named.items()})
    save(drawing, path)


def figure(title: str, subtitle: str, width: float, height: float) -> Figure:
    """Returns a figure of this size with a title."""
    mpl.rcParams.update({"svg.hashsalt": "kvscatter", "svg.fonttype": "none", "font.family": "sans-serif"})
    drawing = Figure(figsize=(width / 72, height / 72), facecolor="white")
    drawing.text(16 / width, 1 - 18 / height, title, color=INK, size=13, weight="bold", va="center")
    drawing.text(16 / width, 1 - 40 / height, subtitle, color=GREY, size=SMALL, va="center")
    return drawing


def axes_at(drawing: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Returns axes at this place, without a frame."""
    whole, high = (72 * size for size in drawing.get_size_inches())
    axes = drawing.add_axes((left / whole, 1 - (top + height) / high, width / whole, height / high))
    axes.tick_params(length=0, labelsize=SMALL, labelcolor=GREY)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    return axes


def scaled(axes: Axes, x: Axis | None = None, y: Axis | None = None) -> None:
    """Sets the scales, labels and grid lines of axes."""
    for axis, direction, scale, label in (
        (x, axes.xaxis, axes.set_xscale, axes.set_xlabel),
        (y, axes.yaxis, axes.set_yscale, axes.set_ylabel),
    ):
        if axis is None:
            continue
        if axis.base:
            scale("log", base=axis.base)
            direction.set_major_locator(LogLocator(axis.base, numticks=9))
            direction.set_minor_locator(NullLocator())
        else:
            direction.set_major_locator(MaxNLocator(6))
            axes.set_ylim(bottom=0)
        direction.set_major_formatter(FuncFormatter(lambda value, _, axis=axis: axis.tick(value)))
        label(axis.label, color=GREY, size=SMALL)
        direction.grid(visible=True, color=GRID, linewidth=1)


def names(drawing: Figure, colors: Mapping[str, str]) -> None:
    """Lists names in their colours on the right."""
    width, height = (72 * size for size in drawing.get_size_inches())
    for place, (name, color) in enumerate(colors.items()):
        at = (1 - (RIGHT - 12) / width, 1 - (TOP + 10 + 17 * place) / height)
        drawing.text(*at, name, color=color, size=SMALL, va="center")


def save(drawing: Figure, path: pathlib.Path) -> None:
    """Writes the figure as SVG. The same results give the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, format="svg", metadata={"Date": None})
    print(f"wrote {path}")

"""The sheet of a figure: a grid of panels of readable size, one legend outside of them, and notes
below.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from fedbench.report.output.figures.groups import NO_RUNS, Notes
from fedbench.report.output.figures.style import NOTE, literal

DPI = 130
PANEL_SIZES = {
    1: (5.2, 3.5),
    2: (3.9, 2.9),
    3: (3.2, 2.5),
    4: (2.8, 2.2),
    5: (2.5, 2.0),
}  # inches, by columns
_CHARACTER, _LINE = 0.062, 0.165  # inches that a letter of the legend is wide, and its line high
_NOTE_CHARACTER, _NOTE_LINE = 0.05, 0.14


class Sheet:
    """Panels 0, 1 ... row by row; what is left of the last row stays empty."""

    def __init__(
        self, count: int, columns: int | None = None, size: tuple[float, float] | None = None
    ):
        self.count = max(count, 1)
        self.columns = columns or _columns(self.count)
        self.rows = math.ceil(self.count / self.columns)
        width, height = size or PANEL_SIZES[min(self.columns, max(PANEL_SIZES))]
        self.figure = new_figure(width * self.columns, height * self.rows)
        grid = self.figure.add_gridspec(self.rows, self.columns)
        self.panels: list[Axes] = [
            self.figure.add_subplot(grid[divmod(place, self.columns)])
            for place in range(self.count)
        ]
        self.handles: dict[str, Any] = {}  # of the legend

    def label(self, place: int, title: str, x: str, y: str, every: bool = False) -> None:
        """Names of the axes stand at the left and at the bottom only, unless every panel has its
        own.
        """
        axes = self.panels[place]
        if title:
            axes.set_title(literal(title))
        if every or place + self.columns >= self.count:
            axes.set_xlabel(literal(x))
        if every or place % self.columns == 0:
            axes.set_ylabel(literal(y))

    def finish(self, notes: Notes) -> Figure:
        entries = {notes.legend_name(name): handle for name, handle in self.handles.items()}
        finish(self.figure, entries, notes, beside=self.columns == 1)
        return self.figure


def new_figure(width: float, height: float) -> Figure:
    layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.03)
    return Figure(figsize=(width, height), dpi=DPI, layout=layout)


def empty(axes: Axes, text: str = NO_RUNS) -> None:
    """A panel that has nothing to show says so."""
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.text(
        0.5,
        0.5,
        text,
        transform=axes.transAxes,
        ha="center",
        va="center",
        color=NOTE,
        style="italic",
    )


def named_ticks(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Ticks with names along the x axis, upright when they would run into each other."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None
    assert place is not None  # all panels of a sheet lie in a grid
    width = figure.get_size_inches()[0] * place.get_position(figure).width
    crowded = len(names) * max(map(len, names), default=0) * _CHARACTER > width
    axes.set_xticks(list(places), [literal(name) for name in names], rotation=90 if crowded else 0)


def whole_numbers(axes: Axes, ticks: int = 6) -> None:
    """Ticks at whole numbers, as rounds and steps are: along x, and on a map along y, too."""
    for axis in (axes.xaxis, axes.yaxis) if axes.images else (axes.xaxis,):
        axis.set_major_locator(MaxNLocator(nbins=ticks, integer=True, min_n_ticks=1))


def finish(figure: Figure, handles: dict[str, Any], notes: Notes, beside: bool) -> None:
    """Make room for legend and notes, and lay everything out once and for all."""
    width, height = figure.get_size_inches()
    if handles:
        longest = max(map(len, handles)) * _CHARACTER + 0.75
        if beside:
            columns = math.ceil(len(handles) * _LINE / (height - 0.5))
            place, width = "outside right upper", width + columns * longest
        else:
            columns = int(np.clip(width // longest, 1, len(handles)))
            columns = math.ceil(
                len(handles) / math.ceil(len(handles) / columns)
            )  # rows of equal length
            place, height = (
                "outside upper center",
                height + math.ceil(len(handles) / columns) * _LINE,
            )
        names = [literal(name) for name in handles]
        looks: dict[str, Any] = {"loc": place, "ncols": columns}
        figure.legend(list(handles.values()), names, **looks)
    lines = [
        line
        for text in notes.sentences()
        for line in textwrap.wrap(text, int((width - 0.2) / _NOTE_CHARACTER))
    ]
    if lines:
        note = literal("\n".join(lines))
        figure.supxlabel(note, x=0.1 / width, ha="left", fontsize=7, color=NOTE, linespacing=1.25)
        height += len(lines) * _NOTE_LINE
    figure.set_size_inches(width, height)
    # Frozen: drawn anew, a layout moves by a hair, and a file that is written twice would differ.
    layout = figure.get_layout_engine()
    assert layout is not None  # `new_figure` gave it one
    layout.execute(figure)
    figure.set_layout_engine("none")


def _columns(count: int) -> int:
    return count if count <= 3 else {4: 2, 5: 3, 6: 3, 9: 3}.get(count, 4)

"""Forms made of lines: curves, layers, entropy and conformal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from fedbench.report.experiments.spec import COSTS, Conformal, Curves, Entropy, Layers, Lines
from fedbench.report.numbers.readers import cost_series, last_rounds
from fedbench.report.numbers.runs import RunFiles
from fedbench.report.numbers.statistics import entropy
from fedbench.report.output.figures.groups import Line, Notes, Part
from fedbench.report.output.figures.sheet import Sheet, empty, named_ticks, whole_numbers
from fedbench.report.output.figures.style import GREY, column_words, is_share, literal
from fedbench.report.output.figures.tables import (
    Curve,
    Lacking,
    at_common_rounds,
    interpolated,
    over,
    read_all,
    read_columns,
)

BANDS = {
    "std": "± one standard deviation over seeds",
    "range": "from the lowest to the highest seed",
}
NAMED_LAYERS = 24  # ticks with a layer's name along an axis


def draw_curves(part: Part[Curves], notes: Notes) -> Figure:
    """A column of metrics.csv by round, seconds, bytes or gradients; of seconds also those of every
    single round.
    """
    x, y = part.show.x, part.show.y
    factor = 100.0 if is_share(y) else 1.0

    def read(run: RunFiles) -> pd.Series:
        needed = ["bytes_up", "bytes_down"] if x == "bytes" else [x]
        if y == "round_seconds":
            table = read_columns(run, "metrics.csv", "seconds", "round", *needed)
            values = np.diff(table["seconds"], prepend=0.0) / np.diff(table["round"], prepend=0)
        else:
            table = read_columns(run, "metrics.csv", y, *needed)
            values = table[y].to_numpy(dtype=float) * factor
        series = pd.Series(values, index=cost_series(table, x).to_numpy())
        return series[np.isfinite(series)]

    def dress(axes: Axes, found: list[list[pd.Series]]) -> None:
        if x == "round":
            whole_numbers(axes)
        elif x == "gradients":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))

    combine = at_common_rounds if x == "round" else interpolated
    along = COSTS[x].along if x in COSTS else x
    return _figure(part, notes, read, combine, along, column_words(y), dress)


def draw_entropy(part: Part[Entropy], notes: Notes) -> Figure:
    """Entropy over the clients of a column of clients.csv, by round, and that of the uniform
    distribution.
    """
    column = part.show.column
    counts: set[int] = set()  # of clients, in a panel

    def read(run: RunFiles) -> pd.Series:
        rounds = (
            read_columns(run, "clients.csv", "round", column)
            .dropna(subset=[column])
            .groupby("round")[column]
        )
        counts.add(int(rounds.size().max()))
        return rounds.apply(lambda values: entropy(values.to_numpy(dtype=float))).dropna()

    def dress(axes: Axes, found: list[list[pd.Series]]) -> None:
        for clients in sorted(counts):
            axes.axhline(
                math.log(clients), color=GREY, linestyle=(0, (5, 2)), linewidth=1, label="_uniform"
            )
            where: dict[str, Any] = {
                "xy": (1, math.log(clients)),
                "xycoords": ("axes fraction", "data"),
            }
            text = f"uniform, log {clients}"
            axes.annotate(
                text,
                **where,
                xytext=(0, 1.5),
                textcoords="offset points",
                ha="right",
                va="bottom",
                fontsize=7,
                color=GREY,
            )
        axes.margins(y=0.12)
        whole_numbers(axes)
        counts.clear()

    return _figure(
        part, notes, read, at_common_rounds, "round", f"entropy of {column_words(column)}", dress
    )


def draw_layers(part: Part[Layers], notes: Notes) -> Figure:
    """Norms of the gradients of every layer, mean over clients and the last rounds, layers in their
    order.
    """
    prefix, last = "gradient_norm/", part.show.last

    def read(run: RunFiles) -> pd.DataFrame:
        table = last_rounds(read_columns(run, "clients.csv", "round"), last)
        names = [name for name in table if name.startswith(prefix)]
        if not names:
            raise Lacking("No gradient norms in clients.csv (diagnostics.gradient_norms=true)")
        return table[names].dropna()

    def combine(tables: list[pd.DataFrame], band: str) -> Curve | None:
        joined = pd.concat(tables, join="inner")
        return (
            over(joined.to_numpy(dtype=float), np.arange(joined.shape[1]), band)
            if joined.size
            else None
        )

    def dress(axes: Axes, found: list[list[pd.DataFrame]]) -> None:
        longest = max(
            (table for tables in found for table in tables), key=lambda table: table.shape[1]
        )
        names = [name.removeprefix(prefix) for name in longest]
        every = math.ceil(len(names) / NAMED_LAYERS)
        named_ticks(axes, range(0, len(names), every), names[::every])
        axes.set_ylim(bottom=0)

    if part.show.band == "std":
        rounds = (
            "rounds"
            if last is None
            else "the last round"
            if last == 1
            else f"the last {last} rounds"
        )
        notes.remark(
            f"Lines: mean over clients, {rounds} and seeds; shaded: ± one standard deviation of"
            " these"
        )
    return _figure(
        part, notes, read, combine, "layer", "norm of the gradient", dress, explain=False
    )


def draw_conformal(part: Part[Conformal], notes: Notes) -> Figure:
    """Mean size of the prediction sets against their coverage, a point for each level."""
    rule = part.show.rule

    def read(run: RunFiles) -> pd.DataFrame:
        table = read_columns(run, "conformal.csv", "method", "level", "coverage", "size")
        return table[table["method"] == rule].set_index("level")

    def combine(tables: list[pd.DataFrame], band: str) -> Curve | None:
        sizes = at_common_rounds([table["size"] for table in tables], band)
        coverage = at_common_rounds([100 * table["coverage"] for table in tables], "none")
        if sizes is None or coverage is None:
            return None
        return Curve(coverage.mean, sizes.mean, sizes.low, sizes.high)

    return _figure(
        part, notes, read, combine, "empirical coverage (%)", "average set size (classes)", None
    )


def _figure(
    part: Part[Any],
    notes: Notes,
    read: Callable[[RunFiles], Any],
    combine: Callable[[list[Any], str], Curve | None],
    x: str,
    y: str,
    dress: Callable[[Axes, list[list[Any]]], None] | None,
    explain: bool = True,
) -> Figure:
    """Panels of lines: `read` a run, `combine` the runs of a cell, `dress` the axes of a panel."""
    show: Lines = part.show
    band, panel_axes = show.band, show.panels
    panels = part.panels(panel_axes, [*show.lines, *part.rest(*panel_axes, *show.lines)])
    sheet = Sheet(len(panels), part.columns(panels, panel_axes))
    for place, panel in enumerate(panels):
        axes, found = sheet.panels[place], []
        sheet.label(place, panel.title, x, y)
        for line in panel.lines:
            runs = notes.see(line.runs, line.name, panel.title)
            parts = list(read_all(runs, read, notes, line.name, panel.title).values())
            curve = combine(parts, band) if parts else None
            if curve is not None:
                found.append(parts)
                plot(axes, curve, line)
                if explain and len(parts) > 1 and band in BANDS:
                    notes.remark(f"Lines: mean over seeds; shaded: {BANDS[band]}")
            elif parts:
                notes.lacks("Nothing that all seeds have in common", line.name, panel.title)
            if curve is not None or line.name in notes.starred:
                add_to_legend(sheet, line)
        if found and dress is not None:
            dress(axes, found)
        elif not found:
            empty(axes, panel.why_empty)
    if not panels:
        empty(sheet.panels[0])
    return sheet.finish(notes)


def plot(axes: Axes, curve: Curve, line: Line) -> None:
    axes.plot(curve.x, curve.mean, label=literal(line.name) or "_", **line.style.line(len(curve.x)))
    if not np.array_equal(curve.low, curve.high):
        shade: dict[str, Any] = {
            "color": line.style.colour,
            "linewidth": 0,
            "zorder": line.style.order - 0.9,
        }
        axes.fill_between(curve.x, curve.low, curve.high, alpha=0.15, **shade)


def add_to_legend(sheet: Sheet, line: Line) -> None:
    if line.name:
        sheet.handles.setdefault(line.name, Line2D([], [], **line.style.line(2)))

"""Forms made of measures, one number a seed: points along an axis, and bars."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedbench.report.experiments.spec import Bars, Measure, Points
from fedbench.report.numbers.runs import DIVERGED
from fedbench.report.numbers.value import numbers_of
from fedbench.report.output.figures.groups import Line, Notes, Panel, Part
from fedbench.report.output.figures.lines import add_to_legend
from fedbench.report.output.figures.sheet import Sheet, empty, named_ticks
from fedbench.report.output.figures.style import literal, measure_words, name_of, number

NUMBERED_BARS = 24  # bars of a panel that have their number above them
NARROW = 0.2  # bars whose numbers stand upright; the distance between groups is 1
LOGARITHMIC = 20  # from this ratio of the largest to the smallest label on


def draw_points(part: Part[Points], notes: Notes) -> Figure:
    """A measure along an axis of the study; a row of panels for each measure."""
    along = part.show.x
    known_labels = set(part.runs[along])
    labels = [label for label in part.study.experiment.axes[along] if label in known_labels]
    known = [one for one in map(number, labels) if one is not None]
    numeric = bool(labels) and len(known) == len(labels)
    places: dict[str, float] = dict(
        zip(labels, known if numeric else range(len(labels)), strict=True)
    )

    def draw(axes: Axes, lines: list[Line], numbers: pd.DataFrame, style: Any) -> None:
        where = np.array([places[line.labels[along]] for line in lines], dtype=float)
        order = np.argsort(where, kind="stable")
        means, stds = (numbers[key].to_numpy() for key in ("mean", "std"))
        shown = style.line(1) | {"markevery": None, "marker": style.marker or "."}
        bars: dict[str, Any] = {}
        if stds.any():
            bars = {"yerr": stds[order], "elinewidth": 0.9, "capsize": 2}
        axes.errorbar(
            where[order], means[order], label=literal(lines[0].name) or "_", **bars, **shown
        )

    def dress(axes: Axes) -> None:
        if numeric and min(known) > 0 and max(known) >= LOGARITHMIC * min(known):
            axes.set_xscale("log")
            axes.minorticks_off()
        named_ticks(axes, list(places.values()), labels)
        axes.margins(x=0.06)

    return _figure(part, notes, (part.show.lines, [along]), draw, dress, add_to_legend)


def draw_bars(part: Part[Bars], notes: Notes) -> Figure:
    """A measure as bars side by side, in groups."""
    along = part.show.groups
    lines = [line for panel in _panels(part, part.show.bars, along) for line in panel.lines]
    groups = list(dict.fromkeys(_group(part, line) for line in _by_group(part, lines)))
    kinds = list(dict.fromkeys(line.name for line in lines))
    width = 0.84 / max(len(kinds), 1)

    def draw(axes: Axes, lines: list[Line], numbers: pd.DataFrame, style: Any) -> None:
        shift = (kinds.index(lines[0].name) - (len(kinds) - 1) / 2) * width
        where = np.array([groups.index(_group(part, line)) for line in lines]) + shift
        means, stds = (numbers[key].to_numpy() for key in ("mean", "std"))
        axes.bar(where, means, width, label=literal(lines[0].name) or "_", **style.bar())
        numbered = len(groups) * len(kinds) <= NUMBERED_BARS
        for place, row in zip(where, numbers.to_dict("records"), strict=True):
            _write_value(axes, place, row, numbered, width)
        if stds.any():
            axes.errorbar(
                where,
                means,
                yerr=stds,
                fmt="none",
                ecolor="#30343a",
                elinewidth=0.9,
                capsize=2,
                label="_",
            )

    def dress(axes: Axes) -> None:
        named_ticks(axes, range(len(groups)), groups)
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.16)

    return _figure(part, notes, (part.show.bars, along), draw, dress, _bar_in_legend)


def _write_value(
    axes: Axes, place: float, row: dict[Any, Any], numbered: bool, width: float
) -> None:
    """The number above a bar; where there is no bar, why."""
    mean = row["mean"]
    if np.isnan(mean):
        text, height = "*" if row["diverged"] else "none", 0.0
    elif numbered:
        text = f"{mean:.1f}" if 10 <= abs(mean) < 1000 else f"{mean:.3g}"
        height = mean + row["std"]
    else:
        return
    looks: dict[str, Any] = {"rotation": 90, "fontsize": 7} if width < NARROW else {"fontsize": 8}
    axes.annotate(
        text, (place, height), (0, 2), textcoords="offset points", ha="center", va="bottom", **looks
    )


def _group(part: Part[Bars], line: Line) -> str:
    return ", ".join(line.labels[axis] for axis in part.show.groups)


def _by_group(part: Part[Bars], lines: list[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: part.order(line.labels, part.show.groups))


def _panels(part: Part[Any], told_apart: list[str], along: list[str]) -> list[Panel]:
    panels = part.show.panels
    return part.panels(panels, [*told_apart, *part.rest(*panels, *told_apart, *along)])


def _figure(
    part: Part[Any],
    notes: Notes,
    axes_of: tuple[list[str], list[str]],
    draw: Callable[[Axes, list[Line], pd.DataFrame, Any], None],
    dress: Callable[[Axes], None],
    name_in_legend: Callable[[Sheet, Line], None],
) -> Figure:
    """Panels by measure and by the axes of `panels`; in each, what `draw` makes of the cells of one
    name.

    `axes_of`: what is told apart by looks, and what by place.
    """
    panels, measures, along = _panels(part, *axes_of), part.show.measures.values(), axes_of[1]
    columns = len(panels) if len(measures) > 1 else part.columns(panels, part.show.panels)
    sheet = Sheet(len(panels) * len(measures), columns or None)
    for place, (shown, panel) in enumerate(itertools.product(measures, panels)):
        axes = sheet.panels[place]
        sheet.label(place, panel.title, ", ".join(along), measure_words(shown))
        rows = [
            {"line": line, "name": line.name, **_numbers(part, line, panel, along, notes, shown)}
            for line in panel.lines
        ]
        table = pd.DataFrame(rows)
        some = table["mean"].notna().groupby(table["name"]).any()  # by name, whether there are any
        for name, own in table.groupby("name", sort=False):
            lines = list(own["line"])
            if some[name] or name in notes.starred:
                name_in_legend(sheet, lines[0])
                if some.any():
                    draw(axes, lines, own, lines[0].style)
        dress(axes) if some.any() else empty(axes, panel.why_empty)
    if not panels:
        empty(sheet.panels[0])
    return sheet.finish(notes)


def _numbers(
    part: Part[Any], line: Line, panel: Panel, along: list[str], notes: Notes, shown: Measure
) -> dict[str, Any]:
    """The mean of a cell over its seeds, NaN when no seed has a number, and its deviation."""
    where = ", ".join(filter(None, (panel.title, name_of(line.labels, along))))
    finished = notes.see(line.runs, line.name, where)
    given = numbers_of(part.study, line.runs, shown)
    lacking = not given or (shown.label in finished and finished[shown.label].isna().any())
    if lacking and len(finished):
        words = "reached by" if shown.is_cost else "known of"
        notes.lacks(f"{shown.label} not {words} every seed", line.name, where)
    if not given:
        diverged = bool((line.runs["status"] == DIVERGED).any())
        return {"mean": np.nan, "std": 0.0, "diverged": diverged}
    if len(given) > 1:
        notes.remark("Means over seeds, with one standard deviation")
    std = float(np.std(given, ddof=1)) if len(given) > 1 else 0.0
    return {"mean": float(np.mean(given)), "std": std, "diverged": False}


def _bar_in_legend(sheet: Sheet, line: Line) -> None:
    if line.name:
        sheet.handles.setdefault(line.name, Patch(**line.style.bar()))

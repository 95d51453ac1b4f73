"""Forms made of boxes over rounds: a column by client, and the gap between two methods."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedbench.report.experiments.spec import METHOD, ClientBoxes, Gaps
from fedbench.report.numbers.runs import RunFiles, groups
from fedbench.report.output.figures.groups import Notes, Panel, Part
from fedbench.report.output.figures.sheet import Sheet, empty, named_ticks
from fedbench.report.output.figures.style import COLOURS, HATCHES, column_words, is_share
from fedbench.report.output.figures.tables import read_all, read_columns

NAMED_CLIENTS = 20  # ticks along the clients
HOW_TO_READ = "boxes: quartiles, whiskers: 1.5 times their distance"


def draw_client_boxes(part: Part[ClientBoxes], notes: Notes) -> Figure:
    """A column of clients.csv over the rounds of the first seed, one box for each client."""
    column = part.show.column

    def read(run: RunFiles) -> tuple[dict[int, np.ndarray], int]:
        """Values by client, and how many are infinite: the GSNR of a client whose gradient is the
        global one.
        """
        table = read_columns(run, "clients.csv", "client", column).dropna(subset=[column])
        finite = np.isfinite(table[column].to_numpy(dtype=float))
        groups = table[finite].groupby("client")[column]
        return {int(client): rows.to_numpy(dtype=float) for client, rows in groups}, int(
            (~finite).sum()
        )

    panel_axes = [*part.show.panels, *part.rest(*part.show.panels)]
    panels = part.panels(panel_axes, [])
    sheet = Sheet(len(panels), part.columns(panels, panel_axes))
    for place, panel in enumerate(panels):
        sheet.label(place, panel.title, "client", column_words(column))
        runs = first_run(panel.lines[0].runs, notes, panel.title)
        found = read_all(runs, read, notes, "", panel.title)
        boxes, infinite = next(iter(found.values()), ({}, 0))
        if infinite:
            notes.lacks(f"{infinite} values that are not finite are left out", "", panel.title)
        if boxes:
            _clients(sheet.panels[place], boxes)
            notes.remark(f"Over rounds; {HOW_TO_READ}")
        else:
            empty(sheet.panels[place], panel.why_empty)
    if not panels:
        empty(sheet.panels[0])
    return sheet.finish(notes)


def first_run(cell: pd.DataFrame, notes: Notes, panel: str) -> pd.DataFrame:
    """The finished run with the first seed: clients of different seeds have different data and are
    not pooled.
    """
    runs = notes.see(cell, "", panel)[:1]
    if len(runs) and len(cell) > 1:
        notes.remark(f"Seed {runs['seed'].iloc[0]} is shown")
    return runs


def _clients(axes: Axes, boxes: dict[int, np.ndarray]) -> None:
    _boxes(axes, list(boxes.values()), np.array(list(boxes)), 0.65, COLOURS[1], "")
    every = -(-len(boxes) // NAMED_CLIENTS)
    axes.set_xticks(list(boxes)[::every], [str(client) for client in list(boxes)[::every]])
    axes.grid(axis="x", visible=False)


def draw_gaps(part: Part[Gaps], notes: Notes) -> Figure:
    """Differences of a column of metrics.csv between two methods, over the rounds and seeds that
    both have.
    """
    column, group_axes, panel_axes = part.show.y, part.show.groups, part.show.panels
    panels = part.panels(
        panel_axes, [axis for axis in part.study.experiment.axes if axis not in panel_axes]
    )
    sheet = Sheet(len(panels), part.columns(panels, panel_axes))
    for place, panel in enumerate(panels):
        sheet.label(place, panel.title, ", ".join(group_axes), f"gap of {column_words(column)}")
        if not _pairs(part, panel, notes, sheet.panels[place], column, sheet.handles):
            empty(sheet.panels[place], panel.why_empty)
    notes.remark(f"Over rounds and seeds, first method minus second; {HOW_TO_READ}")
    if not panels:
        empty(sheet.panels[0])
    return sheet.finish(notes)


def _pairs(
    part: Part[Gaps], panel: Panel, notes: Notes, axes: Axes, column: str, handles: dict
) -> bool:
    """Boxes of all pairs, side by side in each group; whether there are any."""
    pairs, drawn = part.show.pairs, False
    cells = pd.concat([line.runs for line in panel.lines])
    named = {", ".join(labels): runs for labels, runs in groups(cells, part.show.groups)}
    width = 0.8 / len(pairs)
    for number, (name, methods) in enumerate(pairs.items()):
        shift = (number - (len(pairs) - 1) / 2) * width
        gaps = [
            _gaps(part, runs, methods, column, notes, ", ".join(filter(None, (panel.title, group))))
            for group, runs in named.items()
        ]
        places = np.array([place + shift for place, gap in enumerate(gaps) if len(gap)])
        if len(places):
            colour, hatch = (
                COLOURS[number % len(COLOURS)],
                HATCHES[number // len(COLOURS) % len(HATCHES)],
            )
            _boxes(axes, [gap for gap in gaps if len(gap)], places, 0.8 * width, colour, hatch)
            handles.setdefault(
                name, Patch(facecolor=colour, alpha=0.55, edgecolor=colour, hatch=hatch)
            )
            drawn = True
        else:
            notes.lacks("No runs to compare", name, panel.title)
    if drawn:
        axes.axhline(0, color="black", linewidth=0.8, zorder=1)
        named_ticks(axes, range(len(named)), list(named))
        axes.set_xlim(-0.6, len(named) - 0.4)
        axes.grid(axis="x", visible=False)
    return drawn


def _gaps(
    part: Part[Gaps],
    runs: pd.DataFrame,
    methods: list[str],
    column: str,
    notes: Notes,
    panel: str,
) -> np.ndarray:
    """First minus second method, matched by all other labels, seed and round."""
    study, factor, gaps = part.study, 100.0 if is_share(column) else 1.0, []

    def read(run: RunFiles) -> pd.Series:
        return read_columns(run, "metrics.csv", "round", column).set_index("round")[column]

    for _, own in groups(runs[runs[METHOD] == methods[0]], study.axes):
        other = study.cell({**study.labels(own), METHOD: methods[1]})
        if other is None:
            continue
        first, second = (
            read_all(notes.see(cell, name, panel), read, notes, name, panel)
            for cell, name in zip((own, other), methods, strict=True)
        )
        for seed in sorted(first.keys() & second.keys()):
            gaps.append(factor * (first[seed] - second[seed]).dropna().to_numpy(dtype=float))
    joined = np.concatenate(gaps) if gaps else np.empty(0)
    return joined[np.isfinite(joined)]


def _boxes(
    axes: Axes, values: list[np.ndarray], places: np.ndarray, width: float, colour: str, hatch: str
) -> None:
    axes.boxplot(
        values,
        positions=places,
        widths=width,
        manage_ticks=False,
        patch_artist=True,
        boxprops={
            "facecolor": (*_rgb(colour), 0.55),
            "edgecolor": colour,
            "hatch": hatch,
            "linewidth": 0.9,
        },
        whiskerprops={"color": colour, "linewidth": 0.9},
        capprops={"color": colour, "linewidth": 0.9},
        medianprops={"color": "black", "linewidth": 1.2},
        flierprops={
            "marker": ".",
            "markersize": 2.5,
            "markerfacecolor": colour,
            "markeredgecolor": "none",
        },
    )


def _rgb(colour: str) -> tuple[float, float, float]:
    return to_rgb(colour)

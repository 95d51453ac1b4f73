"""Forms made of maps: what a client has of which class, and which local steps ECGR chose."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.patches import Patch

from fedbench.partitions.picture import draw_counts
from fedbench.report.experiments.spec import Panels, Selection
from fedbench.report.numbers.runs import DONE, RunFiles
from fedbench.report.output.figures.boxes import first_run
from fedbench.report.output.figures.groups import NO_RUNS, Notes, Part
from fedbench.report.output.figures.sheet import Sheet, empty, finish, new_figure, whole_numbers
from fedbench.report.output.figures.style import COLOURS, PALE, literal
from fedbench.report.output.figures.tables import Lacking, read_all, read_columns

SMALL_MULTIPLES = 10  # clients up to which each has its own small raster, in two rows
CHOSEN = "ecgr_selected"


def draw_partition(part: Part[Panels], notes: Notes) -> Figure:
    """Samples of each class that each client has, first seed."""

    def read(run: RunFiles) -> np.ndarray:
        table = read_columns(run, "partition.csv", "client").sort_values("client")
        classes = sorted(
            (int(name.removeprefix("class_")), name) for name in table if name.startswith("class_")
        )
        return table[[name for _, name in classes]].to_numpy(dtype=int)

    panel_axes = [*part.show.panels, *part.rest(*part.show.panels)]
    panels = part.panels(panel_axes, [])
    columns = part.columns(panels, panel_axes) or min(len(panels), 3)
    sheet = Sheet(len(panels), columns, {1: (6.0, 4.2), 2: (4.8, 3.7)}.get(columns, (4.4, 3.4)))
    for place, panel in enumerate(panels):
        axes = sheet.panels[place]
        runs = panel.lines[0].runs
        notes.see(runs, "", panel.title)
        done = runs[runs["status"].isin(DONE)][:1]  # a split is one before training goes wrong
        read_off = read_all(done, read, notes, "", panel.title)
        found = [counts for counts in read_off.values() if counts.size]
        if found:
            axes.grid(False)
            image = draw_counts(axes, found[0], fontsize=6)
            axes.spines[["top", "right"]].set_visible(True)
            sheet.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05, aspect=30).set_label(
                "samples", fontsize=8
            )
            if len(runs) > 1:
                notes.remark(f"Seed {next(iter(read_off))} is shown")
        else:
            empty(axes, panel.why_empty)
        axes.set(xlabel="", ylabel="")
        sheet.label(place, panel.title, "client", "class")
    if not panels:
        empty(sheet.panels[0])
    notes.starred.clear()  # nothing is left out of this figure when training diverged
    notes.diverged.clear()
    return sheet.finish(notes)


def draw_selection(part: Part[Selection], notes: Notes) -> Figure:
    """Which local steps were chosen in which round: by single clients, or the share of all
    clients.
    """
    everybody = part.show.clients == "all"
    panel_axes = [*part.show.panels, *part.rest(*part.show.panels)]
    panels, found = part.panels(panel_axes, []), {}
    for panel in panels:
        runs = first_run(panel.lines[0].runs, notes, panel.title)
        for rasters in read_all(runs, read_rasters, notes, "", panel.title).values():
            found[panel.title] = rasters
    titles = [panel.title for panel in panels] or [""]
    return (_overviews if everybody else _single_clients)(part, notes, titles, found)


def read_rasters(run: RunFiles) -> dict[int, np.ndarray]:
    """For every client a map [round, step]: 1 = chosen, 0 = not chosen, not a number = there was no
    such step.
    """
    table = read_columns(run, "clients.csv", "round", "client", "steps", CHOSEN)
    table = table[table["steps"] > 0]
    if table.empty:
        raise Lacking("No steps in clients.csv")
    shape = int(table["round"].max()), int(table["steps"].max())
    rasters = {}
    for client, rows in table.groupby("client"):
        raster = np.full(shape, np.nan)
        for number, steps, chosen in zip(rows["round"], rows["steps"], rows[CHOSEN], strict=True):
            raster[number - 1, :steps] = 0.0
            if not pd.isna(chosen):
                raster[number - 1, [int(float(step)) for step in str(chosen).split()]] = 1.0
        rasters[int(client)] = raster
    return rasters


def _single_clients(
    part: Part[Selection], notes: Notes, titles: list[str], found: dict[str, dict[int, np.ndarray]]
) -> Figure:
    clients = part.show.clients
    sheet = Sheet(
        len(titles) * len(clients), len(clients) if len(titles) > 1 and len(clients) > 1 else None
    )
    for place, (title, client) in enumerate(
        (title, client) for title in titles for client in clients
    ):
        raster = found.get(title, {}).get(client)
        name = ", ".join(filter(None, (title, f"client {client}")))
        sheet.label(place, name, "local step", "round")
        if raster is None:
            empty(
                sheet.panels[place], f"no rounds of client {client}" if title in found else NO_RUNS
            )
        else:
            _raster(sheet.panels[place], raster[:, ~np.isnan(raster).all(axis=0)])
            sheet.handles = sheet.handles or _raster_legend()
    return sheet.finish(notes)


def _overviews(
    part: Part[Selection], notes: Notes, titles: list[str], found: dict[str, dict[int, np.ndarray]]
) -> Figure:
    """A row for each panel: the share of all clients, and beside it, when they are few, each
    client's own raster.
    """
    most = max(map(len, found.values()), default=0)
    if not 0 < most <= SMALL_MULTIPLES:
        sheet = Sheet(len(titles))
        for place, title in enumerate(titles):
            sheet.label(place, title, "local step", "round")
            _share(sheet.panels[place], found.get(title))
        return sheet.finish(notes)
    columns = -(-most // 2)
    figure = new_figure(4.2 + 1.25 * columns, 2.9 * len(titles))
    grid = figure.add_gridspec(2 * len(titles), 1 + columns, width_ratios=(3.2, *(1,) * columns))
    for place, title in enumerate(titles):
        axes = figure.add_subplot(grid[2 * place : 2 * place + 2, 0])
        axes.set(title=literal(title), xlabel="local step", ylabel="round")
        _share(axes, found.get(title))
        _small_multiples(figure, grid, 2 * place, found.get(title, {}))
    finish(figure, _raster_legend(), notes, beside=False)
    return figure


def _share(axes: Axes, rasters: dict[int, np.ndarray] | None) -> None:
    """Of the clients that took a step, the share that chose it."""
    if rasters is None:
        empty(axes)
        return
    stacked = np.stack(list(rasters.values()))
    taken = (~np.isnan(stacked)).sum(axis=0)
    share = np.divide(
        100 * np.nansum(stacked, axis=0), taken, out=np.full(taken.shape, np.nan), where=taken > 0
    )
    image = axes.imshow(share, cmap="viridis_r", vmin=0, vmax=100, **_extent(share))
    axes.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.06, aspect=25).set_label(
        "clients (%)", fontsize=8
    )
    axes.grid(False)
    whole_numbers(axes)


def _small_multiples(
    figure: Figure, grid: GridSpec, row: int, rasters: dict[int, np.ndarray]
) -> None:
    for place, (client, raster) in enumerate(rasters.items()):
        down, across = divmod(place, grid.ncols - 1)
        axes = figure.add_subplot(grid[row + down, 1 + across])
        axes.set_title(f"client {client}", fontsize=7, pad=2)
        _raster(axes, raster)
        axes.tick_params(labelsize=6, length=2, labelleft=across == 0)


def _raster(axes: Axes, raster: np.ndarray) -> None:
    axes.imshow(raster, cmap=ListedColormap([PALE, COLOURS[1]]), vmin=0, vmax=1, **_extent(raster))
    axes.grid(False)
    whole_numbers(axes, ticks=4)


def _extent(raster: np.ndarray) -> dict:
    """Rounds and steps are counted from 1."""
    rounds, steps = raster.shape
    extent = (0.5, steps + 0.5, 0.5, rounds + 0.5)
    return {"aspect": "auto", "origin": "lower", "interpolation": "nearest", "extent": extent}


def _raster_legend() -> dict:
    return {"chosen": Patch(color=COLOURS[1]), "not chosen": Patch(color=PALE)}

"""FedPMVR figure 1: FedAvg on one-dimensional quadratics, whose clients have different optima."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedbench.report.experiments.spec import Drift
from fedbench.report.output.figures.groups import Line, Notes, Part
from fedbench.report.output.figures.lines import add_to_legend, plot
from fedbench.report.output.figures.sheet import Sheet, whole_numbers
from fedbench.report.output.figures.style import COLOURS, DASHES, MARKERS, Style
from fedbench.report.output.figures.tables import Curve


def simulate(
    optima: Sequence[float], start: float, rate: float, rounds: int, steps: int = 1
) -> np.ndarray:
    """Weights of the server after 0, 1 ... rounds. Client k has the loss (w - a_k)^2 and takes
    gradient steps

    w <- w - rate * 2 (w - a_k) (FedPMVR, equation 1); the server takes the plain mean (equation 2).
    """
    weights, goals = [float(start)], np.asarray(optima, dtype=float)
    for _ in range(rounds):
        local = np.full(len(goals), weights[-1])
        for _ in range(steps):
            local = local - rate * 2.0 * (local - goals)
        weights.append(float(local.mean()))
    return np.array(weights)


def draw_drift(part: Part[Drift], notes: Notes) -> Figure:
    """The weight by round with the optimum, and the distance to it."""
    show = part.show
    optimum, rounds = show.optimum, show.rounds
    sheet = Sheet(2)
    optimum_style: dict[str, Any] = {"color": "black", "linestyle": (0, (5, 2)), "linewidth": 1.1}
    sheet.panels[0].axhline(optimum, label="_optimum", **optimum_style)
    for place, (name, optima) in enumerate(show.cases.items()):
        weights = simulate(optima, show.start, show.rate, rounds, show.steps)
        dash = DASHES[place // len(COLOURS) % len(DASHES)]
        style = Style(
            COLOURS[place % len(COLOURS)],
            dash,
            MARKERS[place % len(MARKERS)],
            width=1.8,
            place=place,
        )
        goals = ", ".join(f"{goal:g}" for goal in optima)
        # Computed here, not run.
        line = Line(f"{name} (client optima {goals})", {}, pd.DataFrame(), style)
        for axes, values in zip(sheet.panels, (weights, np.abs(weights - optimum)), strict=True):
            plot(axes, Curve(np.arange(rounds + 1), values, values, values), line)
        add_to_legend(sheet, line)
    sheet.handles[f"optimum {optimum:g}"] = Line2D([], [], **optimum_style)
    sheet.label(0, "(a) global weight", "round", "weight", every=True)
    sheet.label(1, "(b) distance to the optimum", "round", "distance", every=True)
    sheet.panels[1].set_ylim(bottom=0)
    for axes in sheet.panels:
        whole_numbers(axes)
    return sheet.finish(notes)

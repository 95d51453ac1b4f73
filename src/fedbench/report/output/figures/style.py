"""Looks: colours, dashes and markers that tell methods apart, fonts, and the words of labels."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib

from fedbench.report.experiments.experiment import REFERENCE, Experiment
from fedbench.report.experiments.spec import COST_OF, COSTS, Measure
from fedbench.runs.curves import COLOURS, DASHES, PALE

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
HATCHES = ("", "///", "...", "xxx")
GREY, NOTE = "#7a7f87", "#6b7078"
REFERENCE_DASHES = dict(zip(REFERENCE, ((0, (5, 2)), (0, (2, 2))), strict=True))
OWN_COLOURS = 3  # proposed methods up to which no other one has their colours
MARKED_POINTS = 8  # markers along a curve

SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.handlelength": 3.0,  # long enough to tell dashes apart
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#50555e",
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "fedbench",  # otherwise names of clip paths differ from one writing to the next
    "svg.fonttype": (
        "none"
    ),  # text stays text: small, searchable, and any sans-serif font of the browser will do
}


@contextmanager
def looks() -> Iterator[None]:
    """matplotlib's own defaults with the settings above, whatever the user's matplotlibrc says."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(dict[Any, Any](SETTINGS))
        yield


@dataclass(frozen=True)
class Style:
    colour: str
    dash: Any = "solid"
    marker: str = ""
    hatch: str = ""
    width: float = 1.3
    order: float = 2.0  # what is higher is drawn over what is lower
    place: int = 0  # among its like; staggers markers

    def line(self, points: int) -> dict[str, Any]:
        """The arguments of `Axes.plot` for a line of so many points."""
        every = max(1, -(-points // MARKED_POINTS))
        return {
            "color": self.colour,
            "linestyle": self.dash,
            "linewidth": self.width,
            "marker": self.marker or ("." if points == 1 else ""),
            "markersize": 2.6 + self.width,
            "markeredgewidth": 0,
            "markevery": (self.place % every if points > every else 0, every),
            "zorder": self.order,
        }

    def bar(self) -> dict[str, Any]:
        strong = self.width > 2
        return {
            "facecolor": self.colour,
            "hatch": self.hatch,
            "edgecolor": "black" if strong else "white",
            "linewidth": 1.1 if strong else 0.4,
            "zorder": 2,
        }


def style_of(experiment: Experiment, labels: dict[str, str], axes: list[str]) -> Style:
    """How the line with these labels looks; the same at all scales and in all parts of an
    experiment.
    """
    if not axes:
        return Style(COLOURS[1], marker=MARKERS[0])
    first = "method" if "method" in axes else axes[0]
    label = labels[first]
    words = set(shlex.split(experiment.axes[first].get(label, "")))
    for reference, dash in REFERENCE_DASHES.items():
        if first == "method" and reference in words:
            return Style(GREY, dash, hatch="///" if "central" in reference else "", order=1.5)
    proposed = first == "method" and label in experiment.proposed
    place, colour, cycle = _places(experiment, first)[label]
    rest = 0
    for axis in axes:
        if axis != first:
            rest = rest * len(experiment.axes[axis]) + list(experiment.axes[axis]).index(
                labels[axis]
            )
    return Style(
        colour,
        DASHES[(rest + cycle) % len(DASHES)],
        MARKERS[(place + rest) % len(MARKERS)],
        HATCHES[(rest + cycle) % len(HATCHES)],
        2.4 if proposed else 1.3,
        3.0 if proposed else 2.0,
        place + rest,
    )


def _places(experiment: Experiment, axis: str) -> dict[str, tuple[int, str, int]]:
    """For every label its place, its colour, and how often the colours have been used up before it.

    Up to three proposed methods have colours of their own. Where each proposed method builds on
    another one of the study (FedAvg-ECGR on FedAvg), both have one colour.
    """
    labels = list(experiment.axes[axis])
    proposed = [label for label in labels if axis == "method" and label in experiment.proposed]
    others = [label for label in labels if label not in proposed]
    bases = {label: _base(label, others) for label in proposed}
    paired = len(bases) > 1 and all(bases.values()) and len(set(bases.values())) == len(bases)
    places = {}
    for number, label in enumerate(proposed):
        places[label] = (number, COLOURS[number % len(COLOURS)], number // len(COLOURS))
    if paired:
        for label, base in bases.items():
            number, colour, cycle = places[label]
            places[base] = (number + len(proposed), colour, cycle + 1)
    free = COLOURS[len(proposed) :] if len(proposed) <= OWN_COLOURS else COLOURS
    start = 0 if len(proposed) <= OWN_COLOURS else len(proposed)
    for number, label in enumerate((label for label in others if label not in places), start):
        places[label] = (len(places), free[number % len(free)], number // len(free))
    return places


def _base(label: str, others: list[str]) -> str:
    """The longest other label that stands as words of its own within this one."""
    inside = [
        other for other in others if re.search(rf"(?<![\w]){re.escape(other)}(?![\w])", label)
    ]
    return max(inside, key=len, default="")


def literal(text: str) -> str:
    """Text that is drawn as it stands: between two dollar signs matplotlib would read
    mathematics.
    """
    return text.replace("$", r"\$")


def name_of(labels: dict[str, str], axes: list[str]) -> str:
    """The labels of some axes in one name; a bare number says of what."""
    return ", ".join(
        f"{axis} = {labels[axis]}" if number(labels[axis]) is not None else labels[axis]
        for axis in axes
    )


def number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


COLUMN_WORDS = {
    "train_loss": "training loss",
    "round_seconds": "time of a round (s)",
    "gsnr": "GSNR",
    "gsnr_ratio": "optimal local updates",
    "local_before_accuracy": "own test accuracy before local training",
    "local_after_accuracy": "own test accuracy after local training",
}
UNITS = {name: COSTS[kind].unit for name, kind in COST_OF.items()} | {
    "seconds": "s",
    "round_seconds": "s",
}


def is_share(column: str) -> bool:
    """Whether a column of the metrics is a share of examples, shown in percent."""
    return "accuracy" in column


def column_words(column: str) -> str:
    words = COLUMN_WORDS.get(column, column.replace("_", " ").replace("/", " of "))
    return f"{words} (%)" if is_share(column) else words


def measure_words(measure: Measure) -> str:
    """The label of a measure with its unit, unless it names one."""
    label, percent = measure.label, measure.is_accuracy or measure.percent
    unit = "%" if percent else UNITS.get(measure.name, "")
    return f"{label} ({unit})" if unit and unit not in label and "(" not in label else label

"""From a study to its figures: one function for each form of `study.show`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from fedbench.report.experiments.spec import Several
from fedbench.report.numbers.runs import Study
from fedbench.report.output.figures.boxes import draw_client_boxes, draw_gaps
from fedbench.report.output.figures.drift import draw_drift
from fedbench.report.output.figures.groups import Notes, Part
from fedbench.report.output.figures.lines import (
    draw_conformal,
    draw_curves,
    draw_entropy,
    draw_layers,
)
from fedbench.report.output.figures.maps import draw_partition, draw_selection
from fedbench.report.output.figures.measured import draw_bars, draw_points
from fedbench.report.output.figures.style import looks

FORMS: dict[str, Callable[..., Any]] = {
    "curves": draw_curves,
    "points": draw_points,
    "bars": draw_bars,
    "layers": draw_layers,
    "partition": draw_partition,
    "selection": draw_selection,
    "client_boxes": draw_client_boxes,
    "entropy": draw_entropy,
    "gaps": draw_gaps,
    "conformal": draw_conformal,
    "drift": draw_drift,
}
TABLES = ("table", "datasets")  # forms that are no figures


def draw(study: Study) -> list[tuple[str, Figure]]:
    """(title, figure) for each part of the study that is a figure."""
    show = study.experiment.show
    figures = []
    for part in show.parts if isinstance(show, Several) else [show]:
        if part.form in TABLES:
            continue
        with looks():
            figure = FORMS[part.form](Part(study, part), Notes(study))
        title = study.experiment.title if part.title is None else part.title
        figures.append((title, figure))
    return figures

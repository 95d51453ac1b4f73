"""From a study to its figures: one function for each form of `study.show`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from matplotlib.figure import Figure

from fedbench.core.errors import nearest, require
from fedbench.report.figures.boxes import draw_client_boxes, draw_gaps
from fedbench.report.figures.drift import draw_drift
from fedbench.report.figures.groups import Notes, Part
from fedbench.report.figures.lines import draw_conformal, draw_curves, draw_entropy, draw_layers
from fedbench.report.figures.maps import draw_partition, draw_selection
from fedbench.report.figures.measured import Measure, draw_bars, draw_points
from fedbench.report.figures.style import looks
from fedbench.report.runs import Study

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
WITH_MEASURES = ("points", "bars")


def draw(study: Study, measure: Measure) -> list[tuple[str, Figure]]:
    """(title, figure) for each part of the study that is a figure.

    `measure(cell, spec)` gives the values of a measure, one a seed; None = missing, diverged or not
    reached.
    """
    show = study.experiment.show
    parts = show["parts"] if show["form"] == "several" else [show]
    figures = []
    for fields in parts:
        form, known = fields["form"], (*FORMS, *TABLES)
        require(
            form in known,
            f"{study.experiment.name}: study.show.form",
            form,
            nearest(str(form), known),
        )
        if form in TABLES:
            continue
        function = partial(FORMS[form], measure=measure) if form in WITH_MEASURES else FORMS[form]
        with looks():
            figure = function(Part(study, fields), Notes(study))
        figures.append((str(fields.get("title", study.experiment.title)), figure))
    return figures

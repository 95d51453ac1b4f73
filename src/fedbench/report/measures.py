"""What is read off a run: for every cell and seed one reading, which says what happened when there
is no number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedbench.core.errors import BadInput, nearest
from fedbench.report.experiment import REFERENCE
from fedbench.report.readers import ACCURACIES, READERS, UNREACHED, UNREADABLE, Reading
from fedbench.report.runs import DIVERGED, Study, StudyCell, StudyRun

OF_ANOTHER = ("speed_up", "ratio_to", "difference_to", "place")  # `of` names the measure
DERIVED = (*OF_ANOTHER, "mcnemar")  # not read off a run, but from several cells


@dataclass(frozen=True)
class Measure:
    """A measure of a study: its label, its name and its parameters."""

    label: str
    name: str
    parameters: dict[str, Any]

    @property
    def is_accuracy(self) -> bool:
        percent = self.name == "metric" and bool(self.parameters.get("percent"))
        return percent or self.name in ACCURACIES

    @property
    def is_cost(self) -> bool:
        """Something that may stay unreached, and of which less is better."""
        return self.name in UNREACHED

    @property
    def higher_is_better(self) -> bool:
        """As the file says with `higher`; else true of accuracies and speed-ups."""
        return bool(self.parameters.get("higher", self.is_accuracy or self.name == "speed_up"))


def measures_of(show: dict[str, Any]) -> list[Measure]:
    """Those of a form; one that is null was inherited and is not wanted."""
    return [
        as_measure(label, spec)
        for label, spec in (show.get("measures") or {}).items()
        if spec is not None
    ]


def as_measure(label: str, spec: str | dict[str, Any]) -> Measure:
    if isinstance(spec, str):
        return Measure(label, spec, {})
    parameters = dict(spec)
    return Measure(label, parameters.pop("name"), parameters)


def readings(study: Study, cell: StudyCell, measure: Measure) -> list[Reading]:
    """One reading for each seed of the cell."""
    if measure.name not in READERS:
        raise BadInput(
            f"{study.experiment.name}: measure {measure.name}: {nearest(measure.name, READERS)}"
        )
    reader = READERS[measure.name]
    found = []
    for run in cell.runs:
        if run.status == DIVERGED:
            found.append(Reading(None, "diverged"))
        elif not run.finished:
            found.append(Reading(None, "missing"))
        else:
            found.append(_read(reader, study, cell, run, measure.parameters))
    return found


def _read(reader: Callable[..., Reading], *arguments: Any) -> Reading:
    """A file that is damaged costs the cell this seed, and says so; it costs the others nothing.

    So does a file that the archive leaves out, which is no damage.
    """
    try:
        return reader(*arguments)
    except UNREADABLE as error:
        run: StudyRun = arguments[2]
        left_out = isinstance(error, FileNotFoundError) and "not_archived" in run.summary
        return Reading(None, "not archived" if left_out else "damaged")


def is_reference(cell: StudyCell) -> bool:
    """Local and centralized training are no federated methods: nothing is sent, or everything is in
    one place.
    """
    return any(word in REFERENCE for word in cell.cell.overrides)

"""What is read off a run: for every cell and seed one reading, which says what happened when there
is no number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedbench.report.experiment import REFERENCE
from fedbench.report.readers import READERS, UNREADABLE, Reading
from fedbench.report.runs import DIVERGED, Study, StudyCell, StudyRun
from fedbench.report.spec import Measure

# Not read off a run, but from several cells.
DERIVED = ("speed_up", "ratio_to", "difference_to", "place", "mcnemar")


def readings(study: Study, cell: StudyCell, measure: Measure) -> list[Reading]:
    """One reading for each seed of the cell."""
    reader = READERS[measure.name]
    found = []
    for run in cell.runs:
        if run.status == DIVERGED:
            found.append(Reading(None, "diverged"))
        elif not run.finished:
            found.append(Reading(None, "missing"))
        else:
            found.append(_read(reader, study, cell, run, measure))
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

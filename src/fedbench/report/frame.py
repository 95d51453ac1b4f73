"""The runs of a study as one tidy table: a row a run.

Its columns are the axes, then `seed`, `status`, `folder`, `problem` (of a run that failed or was
refused) and `excluded` (why it decides nothing about a paper), then one for each measure. A cost
that was not reached is infinite, and the column `<measure> tried` says how much was spent in vain;
a number that is not there is NaN.
"""

from __future__ import annotations

import math

import pandas as pd

from fedbench.report.readers import Reading
from fedbench.report.runs import Study, StudyCell, StudyRun
from fedbench.report.spec import ComparedTo, SpeedUp
from fedbench.report.table import Values

FACTS = ("seed", "status", "folder", "problem", "excluded")
OF_PAIRS = ("speed_up", "ratio_to")  # quotients of two cells: of the same seed, in this table


def tried(label: str) -> str:
    """The column with what a run spent on a target, whether it reached it or not."""
    return f"{label} tried"


def run_frame(values: Values) -> pd.DataFrame:
    """All runs of a study with all of its measures that a single run has."""
    study = values.study
    rows = [
        {
            **cell.labels,
            "seed": run.seed,
            "status": run.status,
            "folder": str(run.folder or ""),
            "problem": run.problem,
            "excluded": excluded(study, cell, run),
        }
        for cell in study.cells
        for run in cell.runs
    ]
    frame = pd.DataFrame(rows, columns=[*study.experiment.axes, *FACTS])
    for label, measure in values.measures.items():
        if measure.name in (*OF_PAIRS, "mcnemar"):
            continue
        found = [reading for cell in study.cells for reading in values.of(cell, measure).readings]
        frame[label] = [_number(reading) for reading in found]
        if measure.is_cost:
            frame[tried(label)] = [
                math.nan if reading.limit is None else reading.limit for reading in found
            ]
    for label, measure in values.measures.items():
        if isinstance(measure, SpeedUp | ComparedTo) and measure.name in OF_PAIRS:
            frame[label] = _quotients(frame, list(study.experiment.axes), measure)
    return frame


def excluded(study: Study, cell: StudyCell, run: StudyRun) -> str:
    """Why a run decides nothing about a paper's claim, or nothing."""
    words = study.experiment.replaced(cell.labels, study.scale)
    if words:
        return f"this scale runs {' '.join(words)} instead"
    if run.done and run.summary["data"]["source"] == "synthetic":
        return f"stand-in data instead of {run.summary['data']['name']}"
    return ""


def _number(reading: Reading) -> float:
    if reading.state == "unreached":
        return math.inf
    return math.nan if reading.value is None else float(reading.value)


def _quotients(frame: pd.DataFrame, axes: list[str], measure: SpeedUp | ComparedTo) -> pd.Series:
    """Seed by seed: the baseline's cost over the own one, or the own number over another cell's."""
    of = measure.of
    if of not in frame:
        return pd.Series(math.nan, index=frame.index)
    changed = measure.baseline if isinstance(measure, SpeedUp) else measure.cell
    others = frame[axes].copy()
    for axis, label in changed.items():
        if isinstance(label, dict):  # every method has its own; without one, a speed-up itself
            itself = measure.name == "speed_up"
            others[axis] = [label.get(own, own if itself else None) for own in frame[axis]]
        else:
            others[axis] = str(label)
    keys = [*axes, "seed"]
    known = frame.set_index(keys)[of]
    wanted = pd.MultiIndex.from_frame(others.assign(seed=frame["seed"])[keys])
    theirs = pd.Series(known.reindex(wanted).to_numpy(), index=frame.index)
    own = frame[of]
    quotient = theirs / own if measure.name == "speed_up" else own / theirs
    return quotient.where((own < math.inf) & (theirs < math.inf))

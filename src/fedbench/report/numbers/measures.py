"""The measures of a study as columns of its table, a number a run.

The measure `Best` has three columns: `Best`, the number, which is NaN when there is none;
`Best state`, which says why: ok, missing, damaged, not archived, diverged, unreached, no target;
and `Best limit`, what a run spent on a target, whether it reached it or not. Measures that compare
cells (a speed-up, say) compare runs with the same seed here; what a table shows of a cell over its
seeds is in value.py. McNemar's test is about pairs of models and has no column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from fedbench.report.experiments.spec import (
    PARTS,
    ComparedTo,
    McNemar,
    Measure,
    OfAnother,
    Place,
    SpeedUp,
    column,
)
from fedbench.report.numbers.readers import UNREADABLE, Reading, Row, read
from fedbench.report.numbers.runs import DIVERGED, FACTS, FINISHED, Study, groups


def measured(study: Study, measures: Sequence[Measure]) -> Study:
    """The study with the columns of these measures in its table, and of no others."""
    known = {measure.label: measure for measure in measures}
    study = replace(study, measures=known, runs=study.runs[[*study.axes, *FACTS]])
    for measure in sorted(measures, key=lambda one: _depth(one, known)):
        if not isinstance(measure, McNemar):
            found = _column(study, measure)
            named = {column(measure.label, part): found[part] for part in PARTS}
            study = replace(study, runs=pd.concat([study.runs, pd.DataFrame(named)], axis=1))
    return study


def _depth(measure: Measure, known: Mapping[str, Measure]) -> int:
    """How many measures this one is made of, so that they are taken before it."""
    return 1 + _depth(known[measure.of], known) if isinstance(measure, OfAnother) else 0


def readings(study: Study, runs: pd.DataFrame, measure: Measure) -> list[Reading]:
    """What is read off these runs, one after the other."""
    return [_reading(study, row, measure) for row in runs.to_dict("records")]


def readings_in(runs: pd.DataFrame, label: str) -> list[Reading]:
    """What the columns of a measure say of these runs."""
    columns = (runs[column(label, part)] for part in PARTS)
    return [
        Reading(_known(value), state, _known(limit))
        for value, state, limit in zip(*columns, strict=True)
    ]


def _known(number: float) -> float | None:
    return None if math.isnan(number) else float(number)


def _column(study: Study, measure: Measure) -> pd.DataFrame:
    """The value, the state and the limit of every run."""
    if isinstance(measure, Place):
        found = _places(study, measure)
    elif isinstance(measure, SpeedUp):
        return _compared(study, measure, measure.baseline)
    elif isinstance(measure, ComparedTo):
        return _compared(study, measure, measure.cell)
    else:
        found = readings(study, study.runs, measure)
    table = pd.DataFrame(found, columns=list(PARTS), index=study.runs.index)
    return table.astype({"value": float, "limit": float})


def _reading(study: Study, row: Row, measure: Measure) -> Reading:
    """A file that is damaged costs the cell this seed, and says so; it costs the others nothing.

    So does a file that the archive leaves out, or that the run had no reason to write, which is no
    damage.
    """
    if row["status"] == DIVERGED:
        return Reading(None, "diverged")
    if row["status"] != FINISHED:
        return Reading(None, "missing")
    try:
        return read(study, row, measure)
    except FileNotFoundError as error:
        summary = study.files(row["folder"]).summary
        told = str(error.filename or error)  # safetensors says it in words alone
        if told.endswith(tuple(summary.get("not_archived", ()))):
            return Reading(None, "not archived")
        was_there = told.endswith(tuple(summary.get("files", ())))
        return Reading(None, "damaged" if was_there else "missing")
    except UNREADABLE:
        return Reading(None, "damaged")


def _compared(
    study: Study, measure: SpeedUp | ComparedTo, changed: Mapping[str, Any]
) -> pd.DataFrame:
    """Seed by seed: the baseline's cost over the own one, or the own number over another cell's, or
    minus it. A number that is missing on one side is missing for the reason that it has there.
    """
    keys = [*study.axes, "seed"]
    known = study.runs.set_index(keys)[[column(measure.of, part) for part in PARTS]]
    known = known.set_axis(list(PARTS), axis=1)
    others = study.runs[keys].copy()
    for axis, label in changed.items():
        if isinstance(label, dict):  # every method has its own; without one, a speed-up itself
            itself = measure.name == "speed_up"
            others[axis] = [label.get(own, own if itself else None) for own in others[axis]]
        else:
            others[axis] = str(label)
    own = known.reset_index(drop=True)
    theirs = known.reindex(pd.MultiIndex.from_frame(others)).reset_index(drop=True)
    if measure.name == "speed_up":
        value = theirs["value"] / own["value"]
    elif measure.name == "ratio_to":
        value = own["value"] / theirs["value"]
    else:
        sign = -1.0 if isinstance(measure, ComparedTo) and measure.reverse else 1.0
        value = sign * (own["value"] - theirs["value"])
    table = own.where(own["value"].isna(), theirs).assign(value=value.where(np.isfinite(value)))
    undefined = table["value"].isna() & (table["state"] == "ok")  # divided by zero
    table["state"] = table["state"].mask(undefined, "missing")
    table["limit"] = table["limit"].where(table["state"] != "ok")
    return table.fillna({"state": "missing"}).set_index(study.runs.index)


def _places(study: Study, measure: Place) -> list[Reading]:
    """Seed by seed, one more than the number of cells that are ahead. References and further
    readings of a method take no place.
    """
    of, axis = measure.of, measure.axis
    sign = 1.0 if study.measures[of].higher_is_better else -1.0
    found: dict[Any, Reading] = {}
    for _, panel in groups(study.runs, [name for name in study.axes if name != axis]):
        ranked = panel[~panel["reference"] & ~panel[axis].isin(study.experiment.readings)]
        rivals = ranked.set_index([axis, "seed"])[column(of, "state")].unstack()
        numbers = ranked.set_index([axis, "seed"])[of].unstack()
        for (index, row), own in zip(panel.iterrows(), readings_in(panel, of), strict=True):
            others = [label for label in rivals.index if label != row[axis]]
            states = rivals.reindex(index=others, columns=[row["seed"]]).iloc[:, 0]
            theirs = numbers.reindex(index=others, columns=[row["seed"]]).iloc[:, 0]
            if own.value is None:
                found[index] = own
            elif (theirs.isna() & (states != "diverged")).any():
                found[index] = Reading(None, "missing")
            else:
                found[index] = Reading(1.0 + int((sign * (theirs - own.value) > 0).sum()))
    return [found[index] for index in study.runs.index]

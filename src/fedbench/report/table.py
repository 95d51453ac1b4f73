"""The cells of a table: measured over seeds, beside the published number, with a verdict and
footnotes.
"""

from __future__ import annotations

import itertools
from typing import Any

from fedbench.report.experiment import Published
from fedbench.report.measures import is_reference, readings
from fedbench.report.model import Grid, GridCell, GridRow
from fedbench.report.notes import Footnotes
from fedbench.report.readers import UNREADABLE, Reading, sibling
from fedbench.report.runs import Study, StudyCell
from fedbench.report.significance import mcnemar_pooled
from fedbench.report.spec import SMOKE, ComparedTo, McNemar, Measure, Place, SpeedUp
from fedbench.report.statistics import plain, speed_up
from fedbench.report.value import (
    Value,
    as_censored,
    cost_value,
    maximum_value,
    plain_value,
    seeds_part,
    seeds_text,
)
from fedbench.report.verdict import SIGNIFICANT, compare, tolerance_for


class Values:
    """Every measure of every cell of a study, computed once."""

    def __init__(self, study: Study, measures: list[Measure]):
        self.study, self.measures = study, {measure.label: measure for measure in measures}
        self._known: dict[tuple[Any, str], Value] = {}

    def of(self, cell: StudyCell, measure: Measure) -> Value:
        key = (cell.cell.key, measure.label)
        if key not in self._known:
            self._known[key] = self._compute(cell, measure)
        return self._known[key]

    def by_labels(self, measure: Measure) -> dict[tuple[tuple[str, str], ...], float | None]:
        higher = measure.higher_is_better
        return {
            cell.cell.key: self.of(cell, measure).for_claim(higher) for cell in self.study.cells
        }

    def _compute(self, cell: StudyCell, measure: Measure) -> Value:
        if isinstance(measure, SpeedUp):
            return self._speed_up(cell, measure)
        if isinstance(measure, McNemar):
            return self._mcnemar(cell, measure)
        if isinstance(measure, ComparedTo):
            if measure.name == "ratio_to":
                return self._ratio_to(cell, measure)
            return plain_value(self._differences(cell, measure), 2 if measure.percent else None)
        if isinstance(measure, Place):
            return plain_value(self._places(cell, measure), None)
        found = readings(self.study, cell, measure)
        if measure.over_seeds == "maximum":
            return maximum_value(found, 2)
        return (
            cost_value(found)
            if measure.is_cost
            else plain_value(found, 2 if measure.is_accuracy else None)
        )

    def _speed_up(self, cell: StudyCell, measure: SpeedUp) -> Value:
        """Of the measure that `of` names, against the cell of the baseline, all other labels being
        the same.
        """
        if is_reference(cell):
            return Value("-", detail="it is no federated method")
        axis, baseline = next(iter(measure.baseline.items()))
        if isinstance(baseline, dict):  # every method has its own
            baseline = baseline.get(cell.labels[axis], cell.labels[axis])
        other = sibling(self.study, cell, {axis: baseline})
        of = self.measures[measure.of]
        if other is None:
            return Value("-")
        theirs, own = (self.of(one, of).readings for one in (other, cell))
        ratio = speed_up(as_censored(theirs), as_censored(own))
        part = seeds_part(theirs, own) if ratio.value is not None else ""
        return Value(
            ratio.text + part, ratio.value, ratio.sign, ratio.failed, detail=f"against {baseline}"
        )

    def _mcnemar(self, cell: StudyCell, measure: McNemar) -> Value:
        other = sibling(self.study, cell, measure.against)
        tested = (
            mcnemar_between(cell, other, measure.predictions)
            if other is not None and other is not cell
            else None
        )
        if tested is None:
            return Value(
                "-", detail="" if other is not cell else "it is what the others are tested against"
            )
        counts = ", ".join(f"{test.n10} against {test.n01}" for test in tested.seeds)
        name = next(iter(measure.against.values()))
        detail = (
            f"{len(tested.seeds)} seeds; images that only this method, or only {name}, gets right:"
            f" {counts}"
        )
        ahead = sum(test.n01 - test.n10 for test in tested.seeds)
        behind = tested.p < SIGNIFICANT and ahead < 0
        text = f"{tested.p:.2g}" + (f" ({name} is behind)" if behind else "")
        text += seeds_text(len(tested.seeds), len(cell.runs))
        return Value(text, tested.p, behind=behind, detail=detail)

    def _ratio_to(self, cell: StudyCell, measure: ComparedTo) -> Value:
        """Of the means over seeds of the measure that `of` names, to that of another cell."""
        other, of = (
            sibling(self.study, cell, measure.cell),
            self.measures[measure.of],
        )
        own, base = (self.of(one, of).number if one is not None else None for one in (cell, other))
        if own is None or not base:
            return Value("-")
        both = [one for one in (cell, other) if one is not None]
        part = seeds_part(*(self.of(one, of).readings for one in both))
        return Value(
            f"{plain(own / base, 3)}x{part}", own / base, detail=f"{plain(own)} to {plain(base)}"
        )

    def _differences(self, cell: StudyCell, measure: ComparedTo) -> list[Reading]:
        """Seed by seed, the measure that `of` names minus that of another cell; the other way round
        if `reverse`. A cell has none to itself.
        """
        other, of = (
            sibling(self.study, cell, measure.cell),
            self.measures[measure.of],
        )
        if other is cell:
            return [Reading(None, "missing")] * len(cell.runs)
        base = self.of(other, of).readings if other is not None else []
        theirs = {
            run.seed: reading
            for run, reading in zip(other.runs if other else [], base, strict=True)
        }
        sign = -1.0 if measure.reverse else 1.0
        found = []
        for run, own in zip(cell.runs, self.of(cell, of).readings, strict=True):
            their = theirs.get(run.seed, Reading(None, "missing"))
            if own.value is None or their.value is None:
                found.append(own if own.value is None else their)
            else:
                found.append(Reading(sign * (own.value - their.value)))
        return found

    def _places(self, cell: StudyCell, measure: Place) -> list[Reading]:
        """Seed by seed, one more than the number of cells that are ahead. References and further
        readings of a method take no place.
        """
        of, axis = self.measures[measure.of], measure.axis
        sign = 1.0 if of.higher_is_better else -1.0
        rivals = [
            {run.seed: own for run, own in zip(one.runs, self.of(one, of).readings, strict=True)}
            for one in self.study.cells
            if {**one.labels, axis: ""} == {**cell.labels, axis: ""}
            and one.labels[axis] not in (cell.labels[axis], *self.study.experiment.readings)
            and not is_reference(one)
        ]
        found = []
        for run, own in zip(cell.runs, self.of(cell, of).readings, strict=True):
            theirs = [rival.get(run.seed, Reading(None, "missing")) for rival in rivals]
            known = [one.value for one in theirs if one.value is not None]
            if own.value is None:
                found.append(own)
            elif any(one.value is None and one.state != "diverged" for one in theirs):
                found.append(Reading(None, "missing"))
            else:
                found.append(Reading(1.0 + sum(sign * (one - own.value) > 0 for one in known)))
        return found


def mcnemar_between(own: StudyCell, other: StudyCell, which: str) -> Any:
    """Seed by seed, on the same images: both runs must hold the same labels of the same dataset."""
    pairs = []
    for run in own.finished:
        same = next((one for one in other.finished if one.seed == run.seed), None)
        if (
            same is None
            or run.summary["data"]["fingerprint"] != same.summary["data"]["fingerprint"]
        ):
            continue
        try:
            ours, theirs = run.predictions, same.predictions
        except UNREADABLE:
            continue
        shapes = {
            (one[key].shape if key in one else None)
            for one in (ours, theirs)
            for key in ("labels", which)
        }
        # Personal models have a row of predictions for each client: there are no two classifiers to
        # compare.
        if len(shapes) == 1 and (ours["labels"] == theirs["labels"]).all():
            pairs.append((ours["labels"], ours[which], theirs[which]))
    return mcnemar_pooled(pairs)


def build_grid(
    values: Values,
    rows: list[str],
    columns: list[str],
    notes: Footnotes,
    published: list[Published],
    title: str,
) -> Grid:
    """Rows and columns as the file asks for; with several measures, the measure is the innermost
    column.

    An axis that is neither has one label only.
    """
    study, measures = values.study, list(values.measures.values())
    row_keys = combinations(study, rows)
    column_keys = list(itertools.product(combinations(study, columns), measures))
    printed = {(frozenset(number.labels.items()), number.measure): number for number in published}
    constant = {
        axis: label for axis in study.experiment.axes for (label,) in combinations(study, [axis])
    }
    lines = []
    for row in row_keys:
        cells = []
        for column, measure in column_keys:
            cell = study.find(constant | dict(zip([*rows, *columns], [*row, *column], strict=True)))
            cells.append(_grid_cell(values, cell, measure, printed, notes))
        if any(one.measured for one in cells):
            lines.append(GridRow(list(row), cells))
    if len(measures) > 1 or not columns:
        heads = [[*column, measure.label] for column, measure in column_keys]
        return Grid(title, rows, heads, lines, column_names=[*columns, "measure"])
    heads = [list(column) for column, _ in column_keys]
    return Grid(title, rows, heads, lines, column_names=columns, measure=measures[0].label)


def combinations(study: Study, axes: list[str]) -> list[tuple[str, ...]]:
    """Of labels that occur, in the file's order."""
    found = {tuple(cell.labels[axis] for axis in axes) for cell in study.cells}
    order = [study.experiment.labels(axis, study.scale) for axis in axes]
    return [labels for labels in itertools.product(*order) if labels in found]


def _verdict(
    study: Study, cell: StudyCell, measure: Measure, value: Value, number: Published | None
) -> tuple[str, str]:
    """None where a scale ran something else, or proves the plumbing alone; and what fewer rounds
    than the paper's did not reach decides nothing.
    """
    if study.scale == SMOKE:
        return "unpublished", ""
    if number is not None and study.experiment.replaced(cell.labels, study.scale):
        return "unmeasured", ""
    tolerance = tolerance_for(measure, number.std if number else None)
    reduced = bool(study.experiment.reduction(study.scale))
    undefined = measure.name == "speed_up" and value.number is None
    undecided = (reduced and (value.sign == ">" or undefined)) or (undefined and not value.failed)
    verdict, difference = compare(
        value.number, number, tolerance, value.sign, value.failed, undecided
    )
    if value.behind and verdict == "match":
        return "miss", "significant, but the other way round"
    return verdict, difference


def _grid_cell(
    values: Values,
    cell: StudyCell | None,
    measure: Measure,
    printed: dict[Any, Published],
    notes: Footnotes,
) -> GridCell:
    if cell is None:
        return GridCell("")
    value = values.of(cell, measure)
    number = printed.get((frozenset(cell.labels.items()), measure.label))
    verdict, difference = _verdict(values.study, cell, measure, value, number)
    return GridCell(
        measured=value.text,
        published=number.printed if number else "",
        difference=difference,
        verdict=verdict,
        marks=notes.marks(cell),
        value=value.number,
        detail=value.detail,
    )

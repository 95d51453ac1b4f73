"""The cells of a table: measured over seeds, beside the published number, with a verdict and
footnotes.
"""

from __future__ import annotations

import itertools

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import SMOKE, Measure
from fedbench.report.judgement.verdict import compare, tolerance_for
from fedbench.report.numbers.runs import Study
from fedbench.report.numbers.value import Value, value_of
from fedbench.report.output.model import Grid, GridCell, GridRow
from fedbench.report.output.notes import Footnotes


def build_grid(
    study: Study,
    rows: list[str],
    columns: list[str],
    notes: Footnotes,
    published: list[Published],
    title: str,
) -> Grid:
    """Rows and columns as the file asks for, of the measures that the study's table has; with
    several of them, the measure is the innermost column.

    An axis that is neither has one label only.
    """
    measures = list(study.measures.values())
    column_keys = list(itertools.product(study.combinations(columns), measures))
    printed = {(frozenset(number.labels.items()), number.measure): number for number in published}
    constant = {axis: label for axis in study.axes for (label,) in study.combinations([axis])}
    lines = []
    for row in study.combinations(rows):
        cells = []
        for column, measure in column_keys:
            labels = constant | dict(zip([*rows, *columns], [*row, *column], strict=True))
            number = printed.get((frozenset(labels.items()), measure.label))
            cells.append(_grid_cell(study, labels, measure, number, notes))
        if any(one.measured for one in cells):
            lines.append(GridRow(list(row), cells))
    if len(measures) > 1 or not columns:
        heads = [[*column, measure.label] for column, measure in column_keys]
        return Grid(title, rows, heads, lines, column_names=[*columns, "measure"])
    heads = [list(column) for column, _ in column_keys]
    return Grid(title, rows, heads, lines, column_names=columns, measure=measures[0].label)


def _grid_cell(
    study: Study,
    labels: dict[str, str],
    measure: Measure,
    number: Published | None,
    notes: Footnotes,
) -> GridCell:
    runs = study.cell(labels)
    if runs is None:
        return GridCell("")
    value = value_of(study, runs, measure)
    verdict, difference = _verdict(study, labels, measure, value, number)
    return GridCell(
        measured=value.text,
        published=number.printed if number else "",
        difference=difference,
        verdict=verdict,
        marks=notes.marks(runs),
        value=value.number,
        detail=value.detail,
    )


def _verdict(
    study: Study, labels: dict[str, str], measure: Measure, value: Value, number: Published | None
) -> tuple[str, str]:
    """None where a scale ran something else, or proves the plumbing alone; and what fewer rounds
    than the paper's did not reach decides nothing.
    """
    if study.scale == SMOKE:
        return "unpublished", ""
    if number is not None and study.experiment.replaced(labels, study.scale):
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

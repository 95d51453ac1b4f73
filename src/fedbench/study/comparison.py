"""What a table of methods cannot say by itself: equal cost, significance, and whether the order is as published."""

from __future__ import annotations

from statistics import mean
from typing import Any

from fedbench.study.experiment import Published
from fedbench.study.measures import Measure, is_reference
from fedbench.study.model import Claim, Grid, GridCell, GridRow
from fedbench.study.notes import Notes
from fedbench.study.readers import Reading, cost_series
from fedbench.study.runs import Study, StudyCell
from fedbench.study.significance import holm, order_agreement, paired
from fedbench.study.statistics import NOISE, accuracy_at, equal_budget, plain
from fedbench.study.table import Values, combinations, mcnemar_between
from fedbench.study.value import plain_value

METHOD = "method"
COSTS = {"bytes": "megabytes sent and received", "gradients": "gradients of single examples"}
REVERSED_TOLD = 3
PARTLY = 0.5  # Kendall's tau from which an order is partly the published one


def columns_of(study: Study) -> dict[tuple[tuple[str, str], ...], list[StudyCell]]:
    """The cells that differ in the method alone, by their other labels."""
    columns: dict[tuple[tuple[str, str], ...], list[StudyCell]] = {}
    for cell in study.cells:
        others = tuple((axis, label) for axis, label in cell.labels.items() if axis != METHOD)
        columns.setdefault(others, []).append(cell)
    return columns


def equal_cost(study: Study, measure: Measure | None, kind: str, notes: Notes) -> Grid | None:
    """The best accuracy for what the cheapest run of a column has spent in all."""
    accuracy = measure.parameters["column"] if measure is not None and measure.name == "metric" else "test_accuracy"
    columns = columns_of(study)
    budgets, cells = {}, {}
    for others, column in columns.items():
        methods = [cell for cell in column if not is_reference(cell)]
        spent = [list(cost_series(run, kind)) for cell in methods for run in cell.finished]
        budgets[others] = equal_budget(spent)
        for cell in methods:
            cells[cell.cell.key] = _at_budget(cell, accuracy, kind, budgets[others])
    if not any(budgets.values()):
        return None
    told = "; ".join(f"{_title(others)}{plain(budget)}" for others, budget in budgets.items() if budget)
    grid = _grid(study, f"At equal {kind}", lambda cell: cells.get(cell.cell.key), notes)
    grid.caption = f"Best {accuracy} (%) for at most as many {COSTS[kind]} as the cheapest method spent: {told}."
    return grid


def _at_budget(cell: StudyCell, accuracy: str, kind: str, budget: float | None) -> GridCell:
    found = []
    for run in cell.runs:
        if not run.finished:
            found.append(Reading(None, "diverged" if run.done else "missing"))
            continue
        best = accuracy_at(list(cost_series(run, kind)), list(run.metrics.get(accuracy, [])), budget or 0.0)
        found.append(Reading(None if best is None else 100 * best, "unreached" if best is None else "ok", budget))
    value = plain_value(found, 2)
    too_dear = value.number is None and any(reading.state == "unreached" for reading in found)
    detail = "its first evaluation had cost more than that" if too_dear else value.detail
    return GridCell("over budget" if too_dear else value.text, value=value.number, detail=detail)


def significance(values: Values, measure: Measure, notes: Notes) -> Grid | None:
    """Every method against the proposed one: McNemar on the test images, and a paired test over seeds."""
    study = values.study
    proposed = [label for label in study.experiment.proposed if label in study.experiment.labels(METHOD, study.scale)]
    if not proposed:
        return None
    which = "final" if measure.name == "final_accuracy" else "best"
    cells: dict[Any, GridCell] = {}
    for column in columns_of(study).values():
        own = next((cell for cell in column if cell.labels[METHOD] == proposed[0]), None)
        others = [cell for cell in column if own is not None and cell is not own and not is_reference(cell)]
        tests = [(cell, mcnemar_between(own, cell, which)) for cell in others]
        tested = [(cell, test) for cell, test in tests if test is not None]
        for (cell, test), corrected in zip(tested, holm([test.p for _, test in tested]), strict=True):
            cells[cell.cell.key] = _test_cell(values, measure, own, cell, test, corrected)
    if not cells:
        return None
    grid = _grid(study, f"Significance against {proposed[0]}", lambda cell: cells.get(cell.cell.key), notes)
    grid.caption = (
        "p of McNemar's test on the same test images (exact below 25 discordant pairs, the largest over seeds), "
        "corrected by Holm for the methods of a column; then the mean difference over seeds with its 95 % interval, "
        "Hedges' g and the p of a paired t-test, where there are enough seeds."
    )
    return grid


def _test_cell(
    values: Values, measure: Measure, own: StudyCell, cell: StudyCell, test: Any, corrected: float
) -> GridCell:
    ours, theirs = (
        {run.seed: reading.value for run, reading in zip(one.runs, values.of(one, measure).readings, strict=False)}
        for one in (own, cell)
    )
    seeds = [seed for seed in ours if seed in theirs]
    over = paired([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    words = f"p {corrected:.2g}"
    if over is not None:
        words += f"; {over.difference:+.2f}"
        words += f" [{over.low:+.2f}, {over.high:+.2f}]" if over.low is not None else ""
        words += f", g {over.effect:.2f}" if over.effect is not None else ""
        words += f", p {over.t_p:.2g}" if over.t_p is not None else ""
    counts = ", ".join(f"{one.n10}:{one.n01}" for one in test.seeds)
    return GridCell(words, value=corrected, detail=f"uncorrected p {test.p:.2g}; discordant images by seed {counts}")


def _grid(study: Study, title: str, cell_of: Any, notes: Notes) -> Grid:
    """Methods down, all other axes across."""
    axes = [axis for axis in study.experiment.axes if axis != METHOD]
    heads = combinations(study, axes)
    rows = []
    for (method,) in combinations(study, [METHOD]):
        line = []
        for head in heads:
            cell = study.find({**dict(zip(axes, head, strict=True)), METHOD: method})
            found = cell_of(cell) if cell is not None else None
            if found is not None:
                found.marks = notes.marks(cell)
            line.append(found or GridCell(""))
        if any(one.measured for one in line):
            rows.append(GridRow([method], line))
    names = axes or ["measure"]
    return Grid(title, [METHOD], [list(head) or [title] for head in heads], rows, column_names=names, measure=title)


def order_claim(values: Values, measure: Measure, published: list[Published]) -> Claim | None:
    """Whether the methods stand in the published order, column by column (Kendall's tau-b).

    A tie where the paper has none is no agreement, and what diverged or was never reached comes last. A paper has one
    number for its method: further readings of it, which the experiment file names, are not ranked.
    """
    experiment = values.study.experiment
    numbers = {frozenset(one.labels.items()): one.value for one in published if one.measure == measure.label}
    taus, reversed_pairs = [], []
    for others, column in columns_of(values.study).items():
        ranked = [cell for cell in column if cell.labels[METHOD] not in experiment.readings]
        ranked = [cell for cell in ranked if not experiment.replaced(cell.labels, values.study.scale)]
        measured = {
            cell.labels[METHOD]: values.of(cell, measure).for_claim(measure.higher_is_better) for cell in ranked
        }
        printed = {cell.labels[METHOD]: numbers.get(frozenset(cell.labels.items())) for cell in ranked}
        agreement = order_agreement(measured, printed)
        if agreement is not None:
            taus.append(agreement.tau or 0.0)  # no differences at all: no order
            better_first = 1 if measure.higher_is_better else -1
            pairs = [" before ".join(pair[::better_first]) for pair in agreement.reversed]
            reversed_pairs += [f"{_title(others)}{pair}" for pair in pairs]
    text = f"The methods' order in {measure.label} is the published one"
    if not taus:
        return Claim(text, "untested", "fewer than two methods to compare") if numbers else None
    whole, average = sum(tau > 1 - NOISE for tau in taus), mean(taus)
    verdict = "holds" if whole == len(taus) else "partly" if whole or average >= PARTLY else "fails"
    detail = f"Kendall's tau {average:.2f} on average, {whole} of {len(taus)} columns in full agreement"
    if reversed_pairs:
        more = f" and {len(reversed_pairs) - REVERSED_TOLD} more" if len(reversed_pairs) > REVERSED_TOLD else ""
        detail += f"; published but not measured: {'; '.join(reversed_pairs[:REVERSED_TOLD])}{more}"
    return Claim(text, verdict, detail)


def _title(others: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"{label}, " for _, label in others).removesuffix(", ") + (": " if others else "")

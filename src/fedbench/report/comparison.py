"""What a table of methods cannot say by itself: the comparison at equal cost, and significance."""

from __future__ import annotations

from typing import Any

from fedbench.report.measures import is_reference
from fedbench.report.model import Grid, GridCell, GridRow
from fedbench.report.notes import Footnotes
from fedbench.report.readers import UNREADABLE, Reading, cost_series
from fedbench.report.runs import Study, StudyCell, StudyRun
from fedbench.report.significance import Paired, holm, paired
from fedbench.report.spec import METHOD, Measure, Metric
from fedbench.report.statistics import accuracy_at, equal_budget, plain
from fedbench.report.table import Values, combinations, mcnemar_between
from fedbench.report.value import plain_value, seeds_text

COSTS = {"bytes": "megabytes sent and received", "gradients": "gradients of single examples"}


def columns_of(study: Study) -> dict[tuple[tuple[str, str], ...], list[StudyCell]]:
    """The cells that differ in the method alone, by their other labels."""
    columns: dict[tuple[tuple[str, str], ...], list[StudyCell]] = {}
    for cell in study.cells:
        others = tuple((axis, label) for axis, label in cell.labels.items() if axis != METHOD)
        columns.setdefault(others, []).append(cell)
    return columns


def accuracy_columns(measures: list[Measure]) -> list[str]:
    """The columns of metrics.csv that a table's accuracies come from; the global test set's when it
    has none.
    """
    accuracies = [measure for measure in measures if measure.is_accuracy]
    columns = [one.column if isinstance(one, Metric) else "test_accuracy" for one in accuracies]
    return list(dict.fromkeys(columns)) or ["test_accuracy"]


def equal_cost(study: Study, accuracy: str, kind: str, notes: Footnotes) -> Grid | None:
    """The best accuracy, a column of metrics.csv, for what the cheapest run of a table's column has
    spent in all.
    """
    columns = columns_of(study)
    budgets, cells = {}, {}
    for others, column in columns.items():
        methods = [cell for cell in column if not is_reference(cell)]
        spent = [_spent(run, kind) for cell in methods for run in cell.finished]
        budgets[others] = equal_budget([costs for costs in spent if costs is not None])
        for cell in methods:
            cells[cell.cell.key] = _at_budget(cell, accuracy, kind, budgets[others])
    if not any(budgets.values()):
        return None
    told = "; ".join(
        f"{column_title(others)}{plain(budget)}" for others, budget in budgets.items() if budget
    )
    title = f"At equal {kind}" + (
        "" if accuracy == "test_accuracy" else f": {accuracy.replace('_', ' ')}"
    )
    grid = _grid(study, title, lambda cell: cells.get(cell.cell.key), notes)
    grid.caption = (
        f"Best {accuracy} (%) for at most as many {COSTS[kind]} as the cheapest method spent:"
        f" {told}."
    )
    return grid


def _spent(run: StudyRun, kind: str) -> list[float] | None:
    try:
        return list(cost_series(run, kind))
    except UNREADABLE:
        return None


def _at_budget(cell: StudyCell, accuracy: str, kind: str, budget: float | None) -> GridCell:
    found = []
    for run in cell.runs:
        if not run.finished:
            found.append(Reading(None, "diverged" if run.done else "missing"))
            continue
        costs = _spent(run, kind)
        if costs is None or accuracy not in run.metrics:
            found.append(Reading(None, "damaged" if costs is None else "missing"))
            continue
        best = accuracy_at(costs, list(run.metrics[accuracy]), budget or 0.0)
        found.append(
            Reading(
                None if best is None else 100 * best, "unreached" if best is None else "ok", budget
            )
        )
    value = plain_value(found, 2)
    too_dear = value.number is None and any(reading.state == "unreached" for reading in found)
    detail = "its first evaluation had cost more than that" if too_dear else value.detail
    return GridCell("over budget" if too_dear else value.text, value=value.number, detail=detail)


def significance(
    values: Values, measure: Measure, notes: Footnotes, on_images: bool = True
) -> list[Grid]:
    """Every method against each proposed one: McNemar on the test images, and a paired test over
    seeds.

    `on_images`: whether the models are judged on common test images; where every client has its own
    there is no McNemar. Further readings of a proposed method are compared with it, not all others
    with them.
    """
    study = values.study
    known = study.experiment.labels(METHOD, study.scale) if METHOD in study.experiment.axes else []
    proposed = [
        name
        for name in study.experiment.proposed
        if name in known and name not in study.experiment.readings
    ]
    return [
        grid
        for name in proposed
        if (grid := _against(values, measure, notes, name, on_images)) is not None
    ]


def _against(
    values: Values, measure: Measure, notes: Footnotes, name: str, on_images: bool
) -> Grid | None:
    study, cells, silent = values.study, {}, []
    which = "final" if measure.name == "final_accuracy" else "best"
    for labels, column in columns_of(study).items():
        own = next((cell for cell in column if cell.labels[METHOD] == name), None)
        others = [
            cell
            for cell in column
            if own is not None and cell is not own and not is_reference(cell)
        ]
        if all(is_reference(cell) for cell in column):
            continue
        if own is None or not own.finished:
            silent.append(column_title(labels).removesuffix(": ") or "the table")
            continue
        tests = [mcnemar_between(own, cell, which) if on_images else None for cell in others]
        pairs = [_over_seeds(values, measure, own, cell) for cell in others]
        images_p = _corrected([test.p if test is not None else None for test in tests])
        seeds_p = _corrected([pair.t_p if pair is not None else None for pair in pairs])
        for place, cell in enumerate(others):
            words = _words(
                len(cell.runs), (tests[place], images_p[place]), (pairs[place], seeds_p[place])
            )
            if words is not None:
                cells[cell.cell.key] = words
    if not cells:
        return None
    grid = _grid(
        study, f"Significance against {name}", lambda cell: cells.get(cell.cell.key), notes
    )
    images = (
        "; then the p of McNemar's test on the same test images (exact below 25 discordant pairs,"
        " the largest over seeds)"
    )
    grid.caption = (
        f"Mean difference in {measure.label} over seeds, {name} minus the row, with its 95 %"
        " interval, Hedges' g and the p of a paired t-test, where there are enough"
        f" seeds{images if on_images else ''}. All p are corrected by Holm for the methods of a"
        " column; uncorrected ones are in the details."
    )
    if silent:
        grid.caption += f" Not tested, as {name} has no finished run: {', '.join(silent)}."
    return grid


def _corrected(p_values: list[float | None]) -> list[float | None]:
    """By Holm, over those that there are."""
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def _over_seeds(values: Values, measure: Measure, own: StudyCell, cell: StudyCell) -> Paired | None:
    ours, theirs = (
        {
            run.seed: reading.value
            for run, reading in zip(one.runs, values.of(one, measure).readings, strict=True)
        }
        for one in (own, cell)
    )
    seeds = [seed for seed in ours if seed in theirs]
    return paired([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])


def _words(
    wanted: int, images: tuple[Any, float | None], seeds: tuple[Paired | None, float | None]
) -> GridCell | None:
    """The test over seeds stands first; McNemar's is about these very models."""
    (test, images_p), (over, seeds_p) = images, seeds
    parts, detail = [], []
    if over is not None:
        words = f"{over.difference:+.2f}"
        words += f" [{over.low:+.2f}, {over.high:+.2f}]" if over.low is not None else ""
        words += f", g {over.effect:.2f}" if over.effect is not None else ""
        words += f", p {seeds_p:.2g}" if seeds_p is not None else ""
        parts.append(words + seeds_text(over.count, wanted))
        detail += [f"uncorrected p over seeds {over.t_p:.2g}"] if over.t_p is not None else []
        detail += [f"Wilcoxon's {over.wilcoxon_p:.2g}"] if over.wilcoxon_p is not None else []
    if test is not None:
        parts.append(f"McNemar p {images_p:.2g}" + seeds_text(len(test.seeds), wanted))
        counts = ", ".join(f"{one.n10}:{one.n01}" for one in test.seeds)
        detail += [f"uncorrected p {test.p:.2g}", f"discordant images by seed {counts}"]
    if not parts:
        return None
    return GridCell(
        "; ".join(parts), value=images_p if seeds_p is None else seeds_p, detail="; ".join(detail)
    )


def _grid(study: Study, title: str, cell_of: Any, notes: Footnotes) -> Grid:
    """Methods down, all other axes across; a column without any entry is left out."""
    axes = [axis for axis in study.experiment.axes if axis != METHOD]
    shown = [
        cell for cell in study.cells if (found := cell_of(cell)) is not None and found.measured
    ]
    heads = [
        head
        for head in combinations(study, axes)
        if any(tuple(cell.labels[axis] for axis in axes) == head for cell in shown)
    ]
    rows = []
    for (method,) in combinations(study, [METHOD]):
        line = []
        for head in heads:
            cell = study.find({**dict(zip(axes, head, strict=True)), METHOD: method})
            found = cell_of(cell) if cell is not None else None
            if found is not None and cell is not None:
                found.marks = notes.marks(cell)
            line.append(found or GridCell(""))
        if any(one.measured for one in line):
            rows.append(GridRow([method], line))
    names = axes or ["measure"]
    return Grid(
        title,
        [METHOD],
        [list(head) or [title] for head in heads],
        rows,
        column_names=names,
        measure=title,
    )


def column_title(others: tuple[tuple[str, str], ...]) -> str:
    return "".join(f"{label}, " for _, label in others).removesuffix(", ") + (
        ": " if others else ""
    )

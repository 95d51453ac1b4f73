"""What a table of methods cannot say by itself: the comparison at equal cost, and significance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from fedbench.report.experiments.spec import COSTS, METHOD, Measure, Metric
from fedbench.report.judgement.claims import same_seeds
from fedbench.report.numbers.measures import readings_in
from fedbench.report.numbers.readers import UNREADABLE, Reading, cost_series
from fedbench.report.numbers.runs import DONE, FINISHED, Study, groups
from fedbench.report.numbers.significance import McNemarSeeds, Paired, holm, paired
from fedbench.report.numbers.statistics import accuracy_at, equal_budget, plain
from fedbench.report.numbers.value import mcnemar_between, plain_value, seeds_text
from fedbench.report.output.model import Grid, GridCell, GridRow
from fedbench.report.output.notes import Footnotes

AT_EQUAL = ("bytes", "gradients")  # the costs at which methods are compared
Cells = Mapping[tuple[str, ...], GridCell]  # by the labels of a cell


def panels(study: Study) -> list[tuple[str, pd.DataFrame]]:
    """The federated methods under the same other labels, with these labels in one name."""
    others = [axis for axis in study.axes if axis != METHOD]
    return [(", ".join(key), runs) for key, runs in groups(study.runs, others)]


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
    cells: dict[tuple[str, ...], GridCell] = {}
    budgets: dict[str, float | None] = {}
    for name, panel in panels(study):
        methods = panel[~panel["reference"]]
        finished = methods.loc[methods["status"] == FINISHED, "folder"]
        spent = [_spent(study, folder, kind) for folder in finished]
        budgets[name] = equal_budget([costs for costs in spent if costs is not None])
        for labels, runs in groups(methods, study.axes):
            cells[labels] = _at_budget(study, runs, accuracy, kind, budgets[name])
    if not any(budgets.values()):
        return None
    title = f"At equal {kind}"
    if accuracy != "test_accuracy":
        title += f": {accuracy.replace('_', ' ')}"
    grid = _grid(study, title, cells, notes)
    told = "; ".join(
        f"{name}: {plain(budget)}" if name else plain(budget)
        for name, budget in budgets.items()
        if budget
    )
    grid.caption = (
        f"Best {accuracy} (%) for at most as many {COSTS[kind].in_full} as the cheapest method"
        f" spent: {told}."
    )
    return grid


def _spent(study: Study, folder: str, kind: str) -> list[float] | None:
    try:
        return list(cost_series(study.files(folder).metrics, kind))
    except UNREADABLE:
        return None


def _at_budget(
    study: Study, runs: pd.DataFrame, accuracy: str, kind: str, budget: float | None
) -> GridCell:
    found = [
        _reading_at_budget(study, folder, accuracy, kind, budget)
        if status == FINISHED
        else Reading(None, "diverged" if status in DONE else "missing")
        for folder, status in zip(runs["folder"], runs["status"], strict=True)
    ]
    value = plain_value(found, 2)
    too_dear = value.number is None and any(reading.state == "unreached" for reading in found)
    detail = "its first evaluation had cost more than that" if too_dear else value.detail
    return GridCell("over budget" if too_dear else value.text, value=value.number, detail=detail)


def _reading_at_budget(
    study: Study, folder: str, accuracy: str, kind: str, budget: float | None
) -> Reading:
    costs = _spent(study, folder, kind)
    if costs is None:
        return Reading(None, "damaged")
    metrics = study.files(folder).metrics
    if accuracy not in metrics:
        return Reading(None, "missing")
    best = accuracy_at(costs, list(metrics[accuracy]), budget or 0.0)
    return Reading(None, "unreached", budget) if best is None else Reading(100 * best)


def significance(
    study: Study, measure: Measure, notes: Footnotes, on_images: bool = True
) -> list[Grid]:
    """Every method against each proposed one: McNemar on the test images, and a paired test over
    seeds.

    `on_images`: whether the models are judged on common test images; where every client has its own
    there is no McNemar. Further readings of a proposed method are compared with it, not all others
    with them.
    """
    experiment = study.experiment
    known = experiment.labels(METHOD, study.scale) if METHOD in study.axes else []
    grids = [
        _against(study, measure, notes, name, on_images)
        for name in experiment.proposed
        if name in known and name not in experiment.readings
    ]
    return [grid for grid in grids if grid is not None]


def _against(
    study: Study, measure: Measure, notes: Footnotes, name: str, on_images: bool
) -> Grid | None:
    cells: dict[tuple[str, ...], GridCell] = {}
    silent = []
    which = "final" if measure.name == "final_accuracy" else "best"
    for title, panel in panels(study):
        if panel["reference"].all():
            continue
        own = panel[panel[METHOD] == name]
        if FINISHED not in set(own["status"]):
            silent.append(title or "the table")
            continue
        others = groups(panel[~panel["reference"] & (panel[METHOD] != name)], study.axes)
        tests = [
            mcnemar_between(study, own, runs, which) if on_images else None for _, runs in others
        ]
        pairs = [_over_seeds(own, runs, measure) for _, runs in others]
        images_p = _corrected([test.p if test is not None else None for test in tests])
        seeds_p = _corrected([pair.t_p if pair is not None else None for pair in pairs])
        for place, (labels, runs) in enumerate(others):
            words = _words(
                len(runs), (tests[place], images_p[place]), (pairs[place], seeds_p[place])
            )
            if words is not None:
                cells[labels] = words
    if not cells:
        return None
    grid = _grid(study, f"Significance against {name}", cells, notes)
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


def _corrected(p_values: Sequence[float | None]) -> list[float | None]:
    """By Holm, over those that there are."""
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def _over_seeds(own: pd.DataFrame, other: pd.DataFrame, measure: Measure) -> Paired | None:
    ours, theirs = (readings_in(runs, measure.label) for runs in same_seeds(own, other))
    return paired([one.value for one in ours], [one.value for one in theirs])


def _words(
    wanted: int,
    images: tuple[McNemarSeeds | None, float | None],
    seeds: tuple[Paired | None, float | None],
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


def _grid(study: Study, title: str, cells: Cells, notes: Footnotes) -> Grid:
    """Methods down, all other axes across; a column without any entry is left out."""
    others = [axis for axis in study.axes if axis != METHOD]
    shown = [
        dict(zip(study.axes, key, strict=True)) for key, cell in cells.items() if cell.measured
    ]
    some = {tuple(labels[axis] for axis in others) for labels in shown}
    heads = [head for head in study.combinations(others) if head in some]
    rows = []
    for (method,) in study.combinations([METHOD]):
        line = []
        for head in heads:
            labels = {**dict(zip(others, head, strict=True)), METHOD: method}
            key = tuple(labels[axis] for axis in study.axes)
            found = cells.get(key, GridCell(""))
            if key in cells:
                found.marks = notes.marks(study.cells[key])
            line.append(found)
        if any(one.measured for one in line):
            rows.append(GridRow([method], line))
    return Grid(
        title,
        [METHOD],
        [list(head) or [title] for head in heads],
        rows,
        column_names=others or ["measure"],
        measure=title,
    )

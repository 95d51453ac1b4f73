"""From a study and its runs to what is rendered: grids, pictures, claims, footnotes, settings and
links.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedbench.report.claims import NOT_TESTABLE, judge_claims
from fedbench.report.comparison import COSTS, accuracy_columns, equal_cost, significance
from fedbench.report.datasets import datasets_grid
from fedbench.report.figures import describe, draw, save
from fedbench.report.measures import DERIVED, readings
from fedbench.report.model import Claim, Entry, Grid, Picture, RunLink, Setting
from fedbench.report.notes import Footnotes
from fedbench.report.readers import UNREADABLE
from fedbench.report.runs import FAILED, REFUSED, Study, StudyCell, StudyRun
from fedbench.report.spec import (
    METHOD,
    SMOKE,
    Datasets,
    Measure,
    OfAnother,
    Several,
    as_measure,
)
from fedbench.report.table import Values, build_grid, combinations
from fedbench.report.value import cost_value
from fedbench.report.wording import caption

TABLES = ("table", "datasets")
MEASURED = ("table", "points", "bars")  # forms that show measures


def build_entry(study: Study, results: Path) -> Entry:
    """Everything but the files of tables; pictures are drawn and saved below <results>/figures."""
    experiment, scale = study.experiment, study.scale
    runs = [run for cell in study.cells for run in cell.runs]
    notes, published = Footnotes(study), experiment.published_numbers()
    values = Values(study, _all_measures(study))
    entry = Entry(
        name=experiment.name,
        paper=experiment.paper,
        number=experiment.number,
        title=experiment.title,
        scale=experiment.scale_name(scale),
        command=experiment.command(scale),
        reduction=experiment.reduction(scale),
        stand_in=_stand_ins(runs),
        seeds=sorted({run.seed for run in runs}),
        done=sum(run.done for run in runs),
        wanted=len(runs),
        remarks=experiment.remarks_shown(),
        settings=_settings(study),
        runs=[_link(cell, run, results) for cell in study.cells for run in cell.runs],
        problems=_problems(study),
        plumbing=scale == SMOKE,
    )
    show = experiment.show
    if isinstance(show, Datasets):
        entry.grids = [datasets_grid(experiment, show)]
    elif study.cells and values.measures:
        entry.grids = _grids(values, notes, published)
    if show.form not in TABLES:
        entry.pictures = _pictures(study, values, results)
    entry.claims = judge_claims(values, published)
    for claim in entry.claims:
        claim.rests_on = _rests_on(claim, entry, tuned=experiment.tune is not None)
    entry.footnotes = notes.footnotes()
    return entry


def claims_of(study: Study) -> list[Claim]:
    """What the runs say to the claims, when nothing else of the study is wanted."""
    values = Values(study, _all_measures(study))
    return judge_claims(values, study.experiment.published_numbers())


def _all_measures(study: Study) -> list[Measure]:
    """Of the form and of its parts. A figure that shows none is judged by those that its claims
    name.

    Such a figure may have inherited measures from a table with the same runs, which are not its
    own.
    """
    show = study.experiment.show
    parts = [show, *(show.parts if isinstance(show, Several) else [])]
    found = [measure for part in parts for measure in part.measures.values()]
    shown = {label for part in parts if part.form in MEASURED for label in part.measures}
    for claim in study.experiment.claims:
        shown |= {label for label in (claim.measure, claim.above) if label is not None}
    shown |= {number.measure for number in study.experiment.published_numbers()}
    shown |= {
        measure.of for measure in found if measure.label in shown and isinstance(measure, OfAnother)
    }
    found = [measure for measure in found if measure.label in shown]
    if not found and study.cells:
        found = [as_measure("Final accuracy", "final_accuracy")]
    return list({measure.label: measure for measure in found}.values())


def _grids(values: Values, notes: Footnotes, published: list[Any]) -> list[Grid]:
    study = values.study
    show = study.experiment.show
    axes = list(study.experiment.axes)
    rows = show.rows or ([METHOD] if METHOD in axes else axes[:1])
    named = [*rows, *show.columns]
    columns = [
        *show.columns,
        *(axis for axis in axes if axis not in named and len(combinations(study, [axis])) > 1),
    ]
    is_table = show.form == "table"
    title = study.experiment.title if is_table else "Numbers of the runs in the figure"
    grids = [build_grid(values, rows, columns, notes, published, title)]
    measures = list(values.measures.values())
    grids[0].caption = caption(measures, published)
    if is_table and METHOD in axes:
        costs = [(column, kind) for column in accuracy_columns(measures) for kind in COSTS]
        grids += [
            grid
            for column, kind in costs
            if (grid := equal_cost(study, column, kind, notes)) is not None
        ]
        accuracies = [
            measure for measure in measures if measure.is_accuracy and measure.name != "area"
        ]
        compared = next(iter(accuracies), as_measure("Accuracy", "best_accuracy"))
        grids += significance(values, compared, notes, on_images=compared.name != "metric")
    return grids


def _rests_on(claim: Claim, entry: Entry, tuned: bool) -> str:
    """How much was run for a claim: seeds, scale, and whether the methods were tuned."""
    panels = [panel for one in claim.comparisons for panel in one.judged or one.panels]
    seeds = {panel.seeds for panel in panels if panel.outcome != NOT_TESTABLE}
    parts = []
    if seeds:
        fewest, most = min(seeds), max(seeds)
        number = str(most) if fewest == most else f"{fewest} to {most}"
        parts.append(f"{number} seed{'s' if most != 1 else ''}")
    parts.append(f"{entry.scale} scale" + (f": {entry.reduction}" if entry.reduction else ""))
    parts.append("each method tuned on validation data" if tuned else "no method tuned here")
    return "; ".join(parts)


def _pictures(study: Study, values: Values, results: Path) -> list[Picture]:
    def measure(cell: StudyCell, wanted: Measure) -> list[float | None]:
        if wanted.is_cost:  # a mean over those seeds that got there would hide the others
            median = cost_value(readings(study, cell, wanted))
            return [None if median.sign or median.failed else median.number]
        if wanted.name not in DERIVED:
            return [reading.value for reading in readings(study, cell, wanted)]
        known = (own for own in values.measures.values() if own.unlabelled == wanted.unlabelled)
        value = values.of(cell, next(known))
        return [reading.value for reading in value.readings] or [value.number]

    pictures = []
    for number, (title, figure) in enumerate(draw(study, measure)):
        stem = (
            results
            / "figures"
            / study.experiment.scale_name(study.scale)
            / (study.experiment.name + (f"-{number + 1}" if number else ""))
        )
        png, svg = save(figure, stem)
        pictures.append(Picture(title, png, svg, describe(figure)))
    return pictures


def _stand_ins(runs: list[StudyRun]) -> str:
    names = {
        run.summary["data"]["name"]
        for run in runs
        if run.done and run.summary["data"]["source"] == "synthetic"
    }
    return ", ".join(sorted(names))


def _settings(study: Study) -> list[Setting]:
    """Where the values come from; where the scale changed one, the paper's value stands beside that
    of the runs.
    """
    settings, base = [], study.experiment.base
    changed = study.experiment.changed_by_scale(study.scale)
    for key, origin in study.experiment.provenance.items():
        cells = study.select(origin.only or {})
        done = [[run for run in cell.runs if run.done] for cell in cells]
        if key == "seed":
            found = [str(seed) for seed in sorted({run.seed for runs in done for run in runs})]
        else:  # seeds differ in nothing else
            known = [_look_up(runs[0].config, key) for runs in done if runs]
            found = [text for text in known if text is not None]
        used = ", ".join(dict.fromkeys(found))
        if not used:
            continue  # of methods or datasets that this experiment has not
        full = _look_up(base, key)
        if (
            key in changed or key.partition(".")[0] in changed
        ):  # `model=lenet` changes all of `model`
            used = f"{full or 'as published'} ({study.scale} scale: {used})"
        settings.append(Setting(key, used, origin.source, origin.why))
    return settings


def _look_up(tree: dict[str, Any], key: str) -> str | None:
    node: Any = tree
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return None
        node = node[part]
    if isinstance(node, dict):  # a whole group: its name is enough
        node = node.get("name") or node.get("type")
    return "none" if node is None else str(node)


def _link(cell: StudyCell, run: StudyRun, results: Path) -> RunLink:
    labels = ", ".join(cell.labels.values())
    if run.folder is None or not run.done:
        path = "" if run.folder is None else os.path.relpath(run.folder, results)
        return RunLink(labels, run.seed, run.status, run.id, path, "", "", run.problem)
    facts = run.summary
    commit = (facts.get("git_commit") or "")[:10]  # null: unknown, of an installed program, say
    if commit and facts.get("git_dirty") is not False:
        commit += " with changes" if facts.get("git_dirty") else " perhaps with changes"
    path = os.path.relpath(run.folder, results)
    return RunLink(labels, run.seed, run.status, run.id, path, facts["partition_hash"], commit)


def _problems(study: Study) -> list[str]:
    found = []
    for cell in study.cells:
        for run in cell.runs:
            if run.status in (FAILED, REFUSED):
                found.append(
                    f"{', '.join(cell.labels.values())}, seed {run.seed}, {run.status}:"
                    f" {run.problem.strip()}"
                )
            elif run.problem or (run.finished and not _readable(run)):
                words = run.problem or "metrics.csv cannot be read, so this run counts as missing"
                words += "; force=true runs it again"
                found.append(
                    f"{', '.join(cell.labels.values())}, seed {run.seed}, damaged: {run.folder}:"
                    f" {words}"
                )
    return found


def _readable(run: StudyRun) -> bool:
    try:
        return not run.metrics.empty
    except UNREADABLE:
        return False

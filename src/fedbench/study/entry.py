"""From a study and its runs to what is rendered: grids, pictures, claims, footnotes, settings and
links.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedbench.study.comparison import COSTS, METHOD, accuracy_columns, equal_cost, significance
from fedbench.study.datasets import datasets_grid
from fedbench.study.figures import describe, draw, save
from fedbench.study.measures import DERIVED, OF_ANOTHER, Measure, as_measure, measures_of, readings
from fedbench.study.model import Claim, Entry, Grid, Picture, RunLink, Setting
from fedbench.study.notes import Notes
from fedbench.study.order import order_claim
from fedbench.study.readers import UNREADABLE
from fedbench.study.runs import FAILED, REFUSED, Study, StudyCell, StudyRun
from fedbench.study.table import Values, build_grid, combinations
from fedbench.study.value import cost_value
from fedbench.study.verdict import check_claim
from fedbench.study.wording import caption

TABLES = ("table", "datasets")
MEASURED = ("table", "points", "bars")  # forms that show measures


def build_entry(study: Study, results: Path) -> Entry:
    """Everything but the files of tables; pictures are drawn and saved below <results>/figures."""
    experiment, scale = study.experiment, study.scale
    runs = [run for cell in study.cells for run in cell.runs]
    notes, published = Notes(study), experiment.published_numbers()
    values = Values(study, _all_measures(study))
    entry = Entry(
        name=experiment.name,
        paper=experiment.paper,
        number=experiment.number,
        title=experiment.title,
        scale=scale,
        command=experiment.command(scale),
        reduction=experiment.reduction(scale),
        stand_in=_stand_ins(runs),
        seeds=sorted({run.seed for run in runs}),
        done=sum(run.done for run in runs),
        wanted=len(runs),
        remarks=list(experiment.remarks),
        settings=_settings(study),
        runs=[_link(cell, run, results) for cell in study.cells for run in cell.runs],
        problems=_problems(study),
    )
    form = experiment.show["form"]
    if form == "datasets":
        entry.grids = [datasets_grid(experiment)]
    elif study.cells and values.measures:
        entry.grids = _grids(values, notes, published)
    if form not in TABLES:
        entry.pictures = _pictures(study, values, results)
    entry.claims = [_with_reservations(claim, entry) for claim in _claims(values, published)]
    entry.footnotes = notes.footnotes()
    return entry


def _all_measures(study: Study) -> list[Measure]:
    """Of the form and of its parts. A figure that shows none is judged by those that its claims
    name.

    Such a figure may have inherited measures from a table with the same runs, which are not its
    own.
    """
    show = study.experiment.show
    found = [measure for part in [show, *show.get("parts", [])] for measure in measures_of(part)]
    shown = {
        measure.label
        for part in [show, *show.get("parts", [])]
        if part.get("form") in MEASURED
        for measure in measures_of(part)
    }
    shown |= {claim.get("measure") for claim in study.experiment.claims}
    shown |= {number.measure for number in study.experiment.published_numbers()}
    shown |= {
        measure.parameters["of"]
        for measure in found
        if measure.label in shown and measure.name in OF_ANOTHER
    }
    found = [measure for measure in found if measure.label in shown]
    if not found and study.cells:
        found = [as_measure("Final accuracy", "final_accuracy")]
    return list({measure.label: measure for measure in found}.values())


def _grids(values: Values, notes: Notes, published: list[Any]) -> list[Grid]:
    study = values.study
    show = study.experiment.show
    axes = list(study.experiment.axes)
    rows = show.get("rows") or ([METHOD] if METHOD in axes else axes[:1])
    columns = list(show.get("columns") or [])
    columns += [
        axis for axis in axes if axis not in rows + columns and len(combinations(study, [axis])) > 1
    ]
    title = (
        study.experiment.title if show["form"] == "table" else "Numbers of the runs in the figure"
    )
    grids = [build_grid(values, {"rows": rows, "columns": columns}, notes, published, title)]
    measures = list(values.measures.values())
    grids[0].caption = caption(measures, published)
    if show["form"] == "table" and METHOD in axes:
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


def _claims(values: Values, published: list[Any]) -> list[Claim]:
    experiment = values.study.experiment
    claims = []
    for claim in experiment.claims:
        label = claim.get("measure") or next(iter(values.measures), "")
        if label in values.measures and ("better" in claim or "below" in claim):
            measure = values.measures[label]
            found = check_claim(claim, values.by_labels(measure), measure.higher_is_better)
            claims.append(_with_lacking_seeds(found, values, measure))
        else:
            claims.append(Claim(claim["text"], "untested", "not checked by program"))
    for measure in values.measures.values():
        ranked = (
            METHOD in experiment.axes and measure.name != "mcnemar"
        )  # p-values put nothing in order
        ordered = order_claim(values, measure, published) if ranked else None
        claims += [_with_lacking_seeds(ordered, values, measure)] if ordered is not None else []
    return claims


def _with_lacking_seeds(claim: Claim, values: Values, measure: Measure) -> Claim:
    """A verdict that rests on fewer seeds than were wanted says so."""
    lacking, cells = 0, values.study.cells
    for cell in cells:
        damaged = any(reading.state == "damaged" for reading in values.of(cell, measure).readings)
        lacking += damaged or len(cell.finished) < len(cell.runs)
    if not lacking or claim.verdict == "untested":
        return claim
    return replace(
        claim,
        detail=f"{claim.detail}; {lacking} of {len(cells)} cells lack seeds or have diverged ones",
    )


def _with_reservations(claim: Claim, entry: Entry) -> Claim:
    """A verdict on a paper's claim says on what it rests, when that is not what the paper rests it
    on.
    """
    reasons = [
        f"{entry.scale} scale" if entry.reduction else "",
        "stand-in data" if entry.stand_in else "",
    ]
    told = ", ".join(reason for reason in reasons if reason)
    if not told or claim.verdict == "untested":
        return claim
    return replace(claim, detail=f"at {told}: {claim.detail}")


def _pictures(study: Study, values: Values, results: Path) -> list[Picture]:
    def measure(cell: StudyCell, spec: Any) -> list[float | None]:
        wanted = as_measure("", spec)
        if wanted.is_cost:  # a mean over those seeds that got there would hide the others
            median = cost_value(readings(study, cell, wanted))
            return [None if median.sign or median.failed else median.number]
        if wanted.name not in DERIVED:
            return [reading.value for reading in readings(study, cell, wanted)]
        known = (own for own in values.measures.values() if replace(own, label="") == wanted)
        value = values.of(cell, next(known))
        return [reading.value for reading in value.readings] or [value.number]

    pictures = []
    for number, (title, figure) in enumerate(draw(study, measure)):
        stem = (
            results
            / "figures"
            / study.scale
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
        cells = study.select(origin.get("only") or {})
        done = [[run for run in cell.runs if run.done] for cell in cells]
        if key == "seed":
            found = [str(seed) for seed in sorted({run.seed for runs in done for run in runs})]
        else:  # seeds differ in nothing else
            found = [_look_up(runs[0].config, key) for runs in done if runs]
        used = ", ".join(dict.fromkeys(text for text in found if text is not None))
        if not used:
            continue  # of methods or datasets that this experiment has not
        full = _look_up(base, key)
        if (
            key in changed or key.partition(".")[0] in changed
        ):  # `model=lenet` changes all of `model`
            used = f"{full or 'as published'} ({study.scale} scale: {used})"
        settings.append(Setting(key, used, origin["from"], origin.get("why", "")))
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

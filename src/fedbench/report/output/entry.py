"""From a study and its runs to what is rendered: grids, pictures, claims, footnotes, settings and
links.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from fedbench.report.experiments.experiment import Experiment, Published
from fedbench.report.experiments.spec import (
    METHOD,
    SMOKE,
    Datasets,
    Measure,
    OfAnother,
    Several,
    as_measure,
    tuned_labels,
)
from fedbench.report.judgement.claims import judge_claims
from fedbench.report.judgement.outcomes import NOT_TESTABLE, Claim
from fedbench.report.numbers.measures import measured
from fedbench.report.numbers.readers import UNREADABLE
from fedbench.report.numbers.runs import DONE, FAILED, FINISHED, REFUSED, Study
from fedbench.report.output.comparison import AT_EQUAL, accuracy_columns, equal_cost, significance
from fedbench.report.output.datasets import datasets_grid
from fedbench.report.output.figures import describe, draw, save
from fedbench.report.output.model import LINKS, Entry, Grid, Picture, Setting
from fedbench.report.output.notes import Footnotes
from fedbench.report.output.table import build_grid
from fedbench.report.output.wording import caption

TABLES = ("table", "datasets")
MEASURED = ("table", "points", "bars")  # forms that show measures


def build_entry(study: Study) -> Entry:
    """Everything but the files of tables; pictures are drawn and saved below <results>/figures."""
    study = with_measures(study)
    experiment, scale = study.experiment, study.scale
    notes, published = Footnotes(study), experiment.published_numbers()
    entry = Entry(
        name=experiment.name,
        paper=experiment.paper,
        number=experiment.number,
        title=experiment.title,
        scale=experiment.scale_name(scale),
        command=experiment.command(scale),
        reduction=experiment.reduction(scale),
        stand_in=_stand_ins(study),
        seeds=sorted(set(study.runs["seed"])),
        done=len(study.done),
        wanted=len(study.runs),
        table=study.runs,
        remarks=experiment.remarks_shown(),
        settings=_settings(study),
        runs=_links(study),
        problems=_problems(study),
        plumbing=scale == SMOKE,
    )
    show = experiment.show
    if isinstance(show, Datasets):
        entry.grids = [datasets_grid(experiment, show)]
    elif len(study.runs) and study.measures:
        entry.grids = _grids(study, notes, published)
    if show.form not in TABLES:
        entry.pictures = _pictures(study)
    entry.claims = judge_claims(study, published)
    for claim in entry.claims:
        claim.rests_on = _rests_on(claim, entry, experiment)
    entry.footnotes = notes.footnotes()
    return entry


def claims_of(study: Study) -> list[Claim]:
    """What the runs say to the claims, when nothing else of the study is wanted."""
    return judge_claims(with_measures(study), study.experiment.published_numbers())


def with_measures(study: Study) -> Study:
    """The study with the columns of all measures that it shows or judges."""
    return measured(study, _all_measures(study))


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
    if not found and len(study.runs):
        found = [as_measure("Final accuracy", "final_accuracy")]
    return list({measure.label: measure for measure in found}.values())


def _grids(study: Study, notes: Footnotes, published: list[Published]) -> list[Grid]:
    show, axes = study.experiment.show, study.axes
    free = [axis for axis in axes if axis not in show.columns]
    rows = show.rows or ([METHOD] if METHOD in free else free[:1])
    named = [*rows, *show.columns]
    others = [axis for axis in axes if axis not in named and study.runs[axis].nunique() > 1]
    is_table = show.form == "table"
    title = study.experiment.title if is_table else "Numbers of the runs in the figure"
    grids = [build_grid(study, rows, [*show.columns, *others], notes, published, title)]
    measures = list(study.measures.values())
    grids[0].caption = caption(measures, published)
    if is_table and METHOD in axes:
        costs = [
            equal_cost(study, name, kind, notes)
            for name in accuracy_columns(measures)
            for kind in AT_EQUAL
        ]
        grids += [grid for grid in costs if grid is not None]
        accuracies = [
            measure for measure in measures if measure.is_accuracy and measure.name != "area"
        ]
        compared = next(iter(accuracies), as_measure("Accuracy", "best_accuracy"))
        with_it = study if accuracies else measured(study, [compared])
        grids += significance(with_it, compared, notes, on_images=compared.name != "metric")
    return grids


def _rests_on(claim: Claim, entry: Entry, experiment: Experiment) -> str:
    """How much was run for a claim: seeds, scale, and whether the methods were tuned."""
    panels = [panel for one in claim.comparisons for panel in one.judged or one.panels]
    seeds = {panel.seeds for panel in panels if panel.outcome != NOT_TESTABLE}
    parts = []
    if seeds:
        fewest, most = min(seeds), max(seeds)
        number = str(most) if fewest == most else f"{fewest} to {most}"
        parts.append(f"{number} seed{'s' if most != 1 else ''}")
    parts.append(f"{entry.scale} scale" + (f": {entry.reduction}" if entry.reduction else ""))
    return "; ".join([*parts, _tuning(claim, experiment)])


def _tuning(claim: Claim, experiment: Experiment) -> str:
    """Which sides of a claim were run with settings that their trials chose."""
    tune = experiment.tune
    if tune is None:
        return "no method tuned here"
    sides = dict.fromkeys(side for one in claim.comparisons for side in (one.own, one.other))
    tuned = tuned_labels(experiment.axes, tune)
    others = [side for side in sides if side in experiment.axes[tune.axis] and side not in tuned]
    left_out = f", but for {', '.join(others)}" if others else ""
    return f"each method tuned on validation data{left_out}"


def _pictures(study: Study) -> list[Picture]:
    folder = study.results / "figures" / study.experiment.scale_name(study.scale)
    pictures = []
    for number, (title, figure) in enumerate(draw(study)):
        name = study.experiment.name + (f"-{number + 1}" if number else "")
        png, svg = save(figure, folder / name)
        pictures.append(Picture(title, png, svg, describe(figure)))
    return pictures


def _stand_ins(study: Study) -> str:
    data = [study.files(folder).summary["data"] for folder in study.done["folder"]]
    return ", ".join(sorted({one["name"] for one in data if one["source"] == "synthetic"}))


def _settings(study: Study) -> list[Setting]:
    """Where the values come from; where the scale changed one, the paper's value stands beside that
    of the runs.
    """
    settings, base = [], study.experiment.base
    changed = study.experiment.changed_by_scale(study.scale)
    for key, origin in study.experiment.provenance.items():
        runs = study.select(origin.only or {})
        done = runs[runs["status"].isin(DONE)]
        if key == "seed":
            found = [str(seed) for seed in sorted(set(done["seed"]))]
        else:  # seeds differ in nothing else
            first = done.drop_duplicates(study.axes)["folder"]
            known = [_look_up(study.files(folder).config, key) for folder in first]
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


def _links(study: Study) -> pd.DataFrame:
    """The runs as the page lists them: where they are, and of which partition and commit."""
    rows = []
    for run in study.runs.to_dict("records"):
        facts = study.files(run["folder"]).summary if run["status"] in DONE else {}
        rows.append(
            {
                "labels": _named(study, run),
                "seed": run["seed"],
                "status": run["status"],
                "id": run["folder"].rpartition("/")[2],
                "path": run["folder"],
                "partition_hash": facts.get("partition_hash", ""),
                "commit": _commit(facts),
                "problem": "" if facts else run["problem"],
            }
        )
    return pd.DataFrame(rows, columns=list(LINKS))


def _named(study: Study, run: dict[str, Any]) -> str:
    return ", ".join(run[axis] for axis in study.axes)


def _commit(facts: dict[str, Any]) -> str:
    """Of the program that made a run, as far as it is known."""
    commit: str = (facts.get("git_commit") or "")[:10]  # null: of an installed program, say
    if commit and facts.get("git_dirty") is not False:
        return f"{commit} {'with' if facts.get('git_dirty') else 'perhaps with'} changes"
    return commit


def _problems(study: Study) -> list[str]:
    found = []
    for run in study.runs.to_dict("records"):
        where = f"{_named(study, run)}, seed {run['seed']}"
        problem = run["problem"]
        if run["status"] in (FAILED, REFUSED):
            found.append(f"{where}, {run['status']}: {problem.strip()}")
        elif problem or (run["status"] == FINISHED and not _readable(study, run["folder"])):
            words = problem or "metrics.csv cannot be read, so this run counts as missing"
            place = study.results / run["folder"]
            found.append(f"{where}, damaged: {place}: {words}; force=true runs it again")
    return found


def _readable(study: Study, folder: str) -> bool:
    try:
        return not study.files(folder).metrics.empty
    except UNREADABLE:
        return False

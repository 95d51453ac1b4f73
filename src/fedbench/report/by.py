"""Any runs of a folder side by side, by some of their settings: `--by algo,partition.alpha`.

The runs may come from a sweep, from several, or from a study. A table, figures and the differences
between the values of the first setting, paired by seed, are made of them.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.core.errors import BadInput, nearest
from fedbench.report.experiments.experiment import OWN, Experiment
from fedbench.report.experiments.spec import Bars, Curves, Measure, Several, as_measure
from fedbench.report.judgement.claims import same_seeds, scores, signed, title
from fedbench.report.judgement.effects import Effect, Judgement, Range, effect_of, judge_panels
from fedbench.report.numbers.runs import DONE, FACTS, Study, groups
from fedbench.report.numbers.value import seeds_text
from fedbench.report.output.entry import build_entry
from fedbench.report.output.model import Entry, Grid, GridCell, GridRow
from fedbench.report.output.page import write_page
from fedbench.report.output.render import write_tables
from fedbench.runs.folder import SUMMARY
from fedbench.runs.sweeps import OUTCOME, Outcome
from fedbench.runs.table import load_runs, settings

MEASURES = {"Best accuracy": "best_accuracy", "Final accuracy": "final_accuracy"}
ALL_PAIRS = 6  # values of the first setting up to which each is compared with each
FEW = 4  # settings that a remark names
# Sections and settings without which the numbers of a run are the same.
BESIDE_NUMBERS = (
    *("seed", "results", "logger", "runtime", "force", "checkpoint", "objective"),
    *("experiment", "scale", "hydra"),
)


def render_by(results: Path, keys: Sequence[str]) -> tuple[Entry, Path]:
    """Write the tables, the figures and a page of their own. Returns the entry and the page."""
    study = study_by(results, keys)
    entry = build_entry(study)
    entry.command = f"fedbench-tables render {results} --by {','.join(keys)}"
    entry.remarks += [*differing_beside(study, keys), *found_under_fedavg(study)]
    measures = study.experiment.show.measures.values()
    entry.grids += [differences(entry.table, list(keys), measure) for measure in measures]
    name = study.experiment.name
    write_tables(entry, results / "tables" / name)
    page = results / "report" / f"{name}.html"
    write_page([entry], page, results)
    return entry, page


def study_by(results: Path, keys: Sequence[str]) -> Study:
    """The finished runs of a folder as a study whose axes are settings."""
    table = load_runs(results)
    table = table[table["status"].isin(DONE)].reset_index(drop=True)
    if table.empty:
        raise BadInput(f"results={results}: there is no finished run")
    known = [key for key in settings(Path(table["folder"].iloc[0])) if key != "seed"]
    for key in keys:
        if (key not in known and key not in table) or key in FACTS:
            raise BadInput(f"--by={key}: {nearest(key, known)}")
        if keys.count(key) > 1:
            raise BadInput(f"--by={','.join(keys)}: {key} must be named once")
    labels = table[list(keys)].map(_label)
    axes = {key: dict.fromkeys(sorted(set(labels[key]), key=_order), "") for key in keys}
    runs = labels.assign(
        seed=table["seed"].astype(int),
        overrides=[shlex.join(f"{key}={row[key]}" for key in keys) for _, row in labels.iterrows()],
        folder=[os.path.relpath(folder, results) for folder in table["folder"]],
        status=table["status"],
        problem="",
        instead="",
    )
    for _, same in runs.groupby([*keys, "seed"]):
        if len(same) > 1:
            one, two = (results / folder for folder in same["folder"][:2])
            raise BadInput(_ambiguous(keys, one, two))
    for key in keys:  # in the order of the axes
        runs[key] = pd.Categorical(runs[key], list(axes[key]))
    runs = runs.sort_values([*keys, "seed"]).astype(dict.fromkeys(keys, str))
    experiment = _experiment(list(keys), axes)
    return Study(experiment, "paper", runs.reset_index(drop=True), results)


def differing_beside(study: Study, keys: Sequence[str]) -> list[str]:
    """A sentence on the settings in which the runs differ although nobody named them.

    A named group, such as `algo`, brings settings of its own: those of `algo` may differ with it.
    """
    found = pd.DataFrame(
        [_texts(settings(study.results / folder)) for folder in study.runs["folder"]]
    ).fillna("none")
    groups = [*keys, *(["model"] if "data" in keys else [])]
    differing = [
        key
        for key in found
        if key not in keys
        and key.partition(".")[0] not in (*groups, *BESIDE_NUMBERS)
        and found[key].nunique() > 1
    ]
    chosen = [key for key in differing if "." not in key]  # groups stand for what is in them
    told = [*chosen, *(key for key in differing if key.partition(".")[0] not in chosen)]
    if not told:
        return []
    values = [f"{key} ({', '.join(sorted(set(found[key]), key=_order))})" for key in told[:FEW]]
    more = f" and {len(told) - FEW} more" if len(told) > FEW else ""
    return [
        f"These runs differ in {', '.join(values)}{more} as well, which nobody named: what is shown"
        " as a difference here may come from there."
    ]


def _texts(known: dict[str, Any]) -> dict[str, str]:
    return {key: _label(value) for key, value in known.items()}


def found_under_fedavg(study: Study) -> list[str]:
    """A sentence on each algorithm that sweeps asked for and that was FedAvg with its settings.

    Such is FedBN on a network without batch norm: its runs are FedAvg's, and have its name.
    """
    folders = [study.results / folder for folder in study.runs["folder"]]
    algorithms = {folder.name: settings(folder).get("algo") for folder in folders}
    asked: dict[str, set[str]] = {}  # by algorithm, the ids of its runs
    for file in sorted(study.results.glob(f"sweeps/*/*/{OUTCOME}")):
        with suppress(OSError, ValueError, TypeError):  # it cannot be read
            outcome = Outcome(**json.loads(file.read_text()))
            number = Path(outcome.run).name
            words = dict(word.split("=", 1) for word in outcome.words if "=" in word)
            algorithm = words.get("algo", "fedavg")
            if algorithms.get(number) == "fedavg" and algorithm != "fedavg":
                asked.setdefault(algorithm, set()).add(number)
    return [
        f"A sweep asked for algo={algorithm} as well. With these settings it is FedAvg to the bit,"
        f" so its runs ({len(numbers)} of those here) are FedAvg's and stand under fedavg."
        for algorithm, numbers in sorted(asked.items())
    ]


def _experiment(keys: list[str], axes: dict[str, dict[str, str]]) -> Experiment:
    first, *others = keys
    measures = {label: as_measure(label, name) for label, name in MEASURES.items()}
    curves = Curves(form="curves", title="Test accuracy by round", panels=others, lines=[first])
    bars = Bars(form="bars", title="Accuracy", groups=others, bars=[first], measures=measures)
    show = Several(
        form="several", rows=[first], columns=others, measures=measures, parts=[curves, bars]
    )
    return Experiment(
        name="by-" + "-".join(key.replace("/", ".") for key in keys),
        paper=OWN,
        number=f"By {', '.join(keys)}",
        title="Runs of a folder",
        show=show,
        axes=axes,
    )


def _label(value: Any) -> str:
    return "none" if value is None or value != value else str(value)


def _order(label: str) -> tuple[bool, float, str]:
    """Numbers by size, then words by the alphabet."""
    try:
        return False, float(label), ""
    except ValueError:
        return True, 0.0, label


def _ambiguous(keys: Sequence[str], one: Path, two: Path) -> str:
    """Two runs that the given settings and the seed do not tell apart: what does?"""
    first, second = settings(one), settings(two)
    differing = [
        f"{key} ({_label(first.get(key))}, {_label(second.get(key))})"
        for key in {**first, **second}
        if key != "experiment" and first.get(key) != second.get(key)
    ]
    start = f"--by={','.join(keys)}: runs {one.name} and {two.name} differ"
    if differing:
        return f"{start} in {', '.join(differing[:3])}: name it, too"
    made = [_made_by(folder) for folder in (one, two)]
    differing = [
        f"{key} ({_label(made[0].get(key))}, {_label(made[1].get(key))})"
        for key in sorted({**made[0], **made[1]})
        if made[0].get(key) != made[1].get(key)
    ]
    told = f"in {', '.join(differing[:3])}" if differing else "in nothing that their files tell"
    older = min(one, two, key=lambda folder: (folder / SUMMARY).stat().st_mtime)
    return f"{start} {told}: remove one of them, such as the older, {older}"


def _made_by(folder: Path) -> dict[str, str]:
    """With which code and on which examples a run was made, by the names of columns."""
    summary = json.loads((folder / SUMMARY).read_text())
    code = {f"own_code.{name}": code for name, code in summary.get("own_code", {}).items()}
    places = {key: summary.get(key) for key in ("source_hash", "kernels", "device")}
    return {**code, "data.fingerprint": summary["data"]["fingerprint"], **places}


def differences(runs: pd.DataFrame, keys: list[str], measure: Measure) -> Grid:
    """Paired by seed, with intervals of 95 %; p corrected by Holm for all cells of the grid.

    A setting that only some values of the first one have, as FedProx has `algo.mu`, tells their
    runs apart; it is no panel, in which FedAvg would have no run.
    """
    first, *others = keys
    for key in [one for one in others if one.startswith(f"{first}.")]:
        if "none" in set(runs[key]):
            others.remove(key)
            own = [f" {key}={value}" if value != "none" else "" for value in runs[key]]
            runs = runs.assign(**{first: runs[first] + own})
    labels = list(dict.fromkeys(runs[first]))
    pairs = list(itertools.combinations(labels, 2))
    if len(labels) > ALL_PAIRS:
        pairs = [(label, labels[0]) for label in labels[1:]]
    panels = groups(runs, others)
    effects = []
    for pair in pairs:
        for _, panel in panels:
            own, other = same_seeds(*(panel[panel[first] == label] for label in pair))
            effects.append(effect_of(scores(own, measure, 1.0), scores(other, measure, 1.0)))
    judged = iter(zip(effects, judge_panels(effects, Range()), strict=True))
    rows = [
        GridRow([f"{one} - {two}"], [_cell(*next(judged)) for _ in panels]) for one, two in pairs
    ]
    label = measure.label
    heads = [[title(dict(zip(others, key, strict=True))) or label] for key, _ in panels]
    caption = (
        "Mean difference between runs with the same seed, in points, with its 95 % interval"
        " (Student's t over seeds) and the p of a paired t-test, corrected by Holm for all cells"
        " of this table. With fewer than 3 common seeds there is no p. *: with the other seeds,"
        " a run diverged."
    )
    heading = f"{label}: differences over seeds"
    return Grid(heading, [first], heads, rows, caption, [", ".join(others) or "measure"], label)


def _cell(effect: Effect, found: Judgement) -> GridCell:
    if found.mean is None:
        return GridCell("*" if effect.seeds else "-", detail=found.reason)
    words = signed(found.mean)
    if found.low is not None and found.high is not None:
        words += f" [{signed(found.low)}, {signed(found.high)}]"
    if found.p is not None:
        words += f", p {found.p:.2g}"
    count, lost = len(effect.differences), effect.won + effect.lost + effect.idle
    words += seeds_text(count, count + lost, star=True)
    seeds = f"{count} common seeds"
    return GridCell(words, value=found.mean, detail=f"{seeds}; {found.reason}".removesuffix("; "))

"""`study.tune`: settings chosen by trials on validation data, the same number for every method.

A trial is an ordinary run of a cell with one seed, which holds out a part of the training data. The
best one by its validation accuracy gives the settings with which the cell is run on all seeds; with
the trials' own seed that is the trial itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedbench.report.experiments.experiment import Cell, Experiment
from fedbench.report.experiments.spec import SMOKE, trials_of, tuned_labels
from fedbench.report.running.plan import Plan
from fedbench.runs.archive import find_run
from fedbench.runs.objective import objective

AT_SMOKE = 2  # trials of a label, to exercise the plumbing
TRIAL = "trial"


def trial_plan(experiment: Experiment, scale: str) -> Plan:
    """The trials of a study. Where several cells share their settings, the first one is tried."""
    tune = experiment.tune
    assert tune is not None
    labels = tuned_labels(experiment.axes, tune)
    tried: dict[tuple[str, ...], Cell] = {}
    for cell in experiment.cells(scale):
        if cell.labels[tune.axis] in labels:
            tried.setdefault(experiment.tuned_key(cell.labels), cell)
    cells = []
    for cell in tried.values():
        trials = trials_of(tune, cell.labels[tune.axis])
        shown = trials[:AT_SMOKE] if scale == SMOKE else trials
        cells += [_with_words(cell, words, tune.seed) for words in shown]
    return Plan.of(experiment, scale, cells, trials=True)


def _with_words(cell: Cell, words: tuple[str, ...], seed: int) -> Cell:
    given = {word.partition("=")[0]: word for word in (*cell.overrides, *words)}
    return Cell({**cell.labels, TRIAL: " ".join(words)}, tuple(given.values()), (seed,))


def tuned(experiment: Experiment, trials: Plan, results: Path) -> Experiment | None:
    """The experiment with what its trials chose; None if one of them is not finished."""
    scores: dict[tuple[str, ...], dict[str, float]] = {}
    for trial in trials.runs.to_dict("records"):
        folder = trial["folder"]
        score = objective(None, find_run(results, folder).path) if folder else None
        if score is None:
            return None
        scores.setdefault(experiment.tuned_key(trial), {})[trial[TRIAL]] = score
    chosen, remarks = {}, []
    for key, own in scores.items():
        best = max(own, key=lambda words: own[words])  # of equals the first
        chosen[key] = tuple(best.split(" "))
        remarks.append(
            f"{', '.join(key)}: {best}, the best of {len(own)} trials by its validation accuracy"
            f" ({100 * own[best]:.2f} %, seed {_seed(experiment)})"
        )
    return replace(experiment, chosen=chosen, remarks_on_trials=remarks)


def _seed(experiment: Experiment) -> int:
    assert experiment.tune is not None
    return experiment.tune.seed

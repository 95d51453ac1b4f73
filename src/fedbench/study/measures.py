"""What is read off a run: for every cell and seed one reading, which says what happened when there is no number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedbench.errors import BadInput, nearest
from fedbench.study.experiment import REFERENCE
from fedbench.study.runs import DIVERGED, Study, StudyCell, StudyRun
from fedbench.study.statistics import first_reaching

MEGABYTE = 1e6
COSTS = {"rounds_to": "round", "bytes_to": "bytes", "gradients_to": "gradients"}
PERCENT = 100.0
UNREADABLE = (OSError, ValueError, KeyError, EOFError, BadZipFile, SafetensorError)  # what a damaged file raises
RATIOS = ("speed_up", "ratio_to")  # of another measure, which `of` names
DERIVED = (*RATIOS, "mcnemar")  # not read off a run, but from several cells


@dataclass(frozen=True)
class Reading:
    """A number of one run; or why there is none, such as unreached up to `limit`."""

    value: float | None
    state: str = "ok"  # ok, missing, damaged, diverged, unreached
    limit: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure of a study: its label, its name and its parameters."""

    label: str
    name: str
    parameters: dict[str, Any]

    @property
    def is_accuracy(self) -> bool:
        percent = self.name == "metric" and bool(self.parameters.get("percent"))
        return percent or self.name in ("best_accuracy", "final_accuracy", "mean_accuracy_last", "area")

    @property
    def is_cost(self) -> bool:
        """Something that may stay unreached, and of which less is better."""
        return self.name in COSTS

    @property
    def higher_is_better(self) -> bool:
        return self.is_accuracy or self.name == "speed_up"


def measures_of(show: dict[str, Any]) -> list[Measure]:
    """Those of a form; one that is null was inherited and is not wanted."""
    return [as_measure(label, spec) for label, spec in (show.get("measures") or {}).items() if spec is not None]


def as_measure(label: str, spec: str | dict[str, Any]) -> Measure:
    if isinstance(spec, str):
        return Measure(label, spec, {})
    parameters = dict(spec)
    return Measure(label, parameters.pop("name"), parameters)


def readings(study: Study, cell: StudyCell, measure: Measure) -> list[Reading]:
    """One reading for each seed of the cell."""
    if measure.name not in READERS:
        raise BadInput(f"{study.experiment.name}: measure {measure.name}: {nearest(measure.name, READERS)}")
    reader = READERS[measure.name]
    found = []
    for run in cell.runs:
        if run.status == DIVERGED:
            found.append(Reading(None, "diverged"))
        elif not run.finished:
            found.append(Reading(None, "missing"))
        else:
            found.append(_read(reader, study, cell, run, measure.parameters))
    return found


def _read(reader: Callable[..., Reading], *arguments: Any) -> Reading:
    """A file that is damaged costs the cell this seed, and says so; it costs the others nothing."""
    try:
        return reader(*arguments)
    except UNREADABLE:
        return Reading(None, "damaged")


def cost_series(run: StudyRun, kind: str) -> pd.Series:
    """What the run had cost at every evaluated round: round, bytes (in megabytes, both ways), gradients, seconds."""
    metrics = run.metrics
    if kind == "bytes":
        return (metrics.bytes_up + metrics.bytes_down) / MEGABYTE
    return metrics[kind].astype(float)


def _accuracy(key: str) -> Callable[..., Reading]:
    return lambda study, cell, run, parameters: Reading(PERCENT * run.summary[key])


def _mean_accuracy_last(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    """Over the evaluations in so many rounds at the end; the last one counts in any case."""
    rounds = run.metrics["round"]
    last = run.metrics.test_accuracy[rounds > rounds.iloc[-1] - int(parameters["rounds"])]
    return Reading(PERCENT * float(last.mean()))


def _area(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    """The mean over rounds of the accuracy: the area under its curve, by the trapezoidal rule, for a width of one."""
    rounds, accuracy = run.metrics["round"].to_numpy(float), run.metrics.test_accuracy.to_numpy(float)
    if len(rounds) < 2:
        return Reading(PERCENT * float(accuracy.mean()))
    return Reading(PERCENT * float(np.trapezoid(accuracy, rounds) / (rounds[-1] - rounds[0])))


def _metric(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    """A column at the last evaluated round, or at that of the best accuracy."""
    if parameters["column"] not in run.metrics:
        return Reading(None, "missing")
    best = parameters.get("at", "final") == "best"
    number = run.summary["best_round"] if best else run.metrics["round"].iloc[-1]
    value = float(run.metrics.set_index("round")[parameters["column"]][number])
    factor = PERCENT if parameters.get("percent") else 1.0
    return Reading(factor * value) if np.isfinite(value) else Reading(None, "missing")


def _cost_to(kind: str) -> Callable[..., Reading]:
    def read(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
        target = target_of(study, cell, run, parameters["target"])
        if target is None:
            return Reading(None, "missing")
        costs = cost_series(run, kind)
        cost = first_reaching(list(costs), list(run.metrics.test_accuracy), target, int(parameters.get("window", 1)))
        return Reading(cost, "ok" if cost is not None else "unreached", limit=float(costs.iloc[-1]))

    return read


def target_of(study: Study, cell: StudyCell, run: StudyRun, target: Any) -> float | None:
    """A number; or one for each label of an axis; or what another cell reached at best with the same seed."""
    if not isinstance(target, dict):
        return float(target)
    if "best_of" in target:
        other = sibling(study, cell, target["best_of"])
        same = [own for own in (other.finished if other else []) if own.seed == run.seed]
        return float(same[0].summary["best_accuracy"]) if same else None
    (axis, numbers), *_ = target.items()
    return next((float(number) for label, number in numbers.items() if str(label) == cell.labels[axis]), None)


def _seconds(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    return Reading(float(run.summary["train_seconds"]))


def _gradient_norm(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    """Of the norms of all layers, clients and rounds: their mean, variance or maximum."""
    norms = run.table("clients.csv").filter(like="gradient_norm/").to_numpy(float)
    norms = norms[np.isfinite(norms)]
    if not norms.size:
        return Reading(None, "missing")
    return Reading(float({"mean": np.mean, "variance": np.var, "maximum": np.max}[parameters["of"]](norms)))


def _distance_to(study: Study, cell: StudyCell, run: StudyRun, parameters: dict[str, Any]) -> Reading:
    """The Euclidean distance between the final models, with the same seed, hence from the same initial weights."""
    other = sibling(study, cell, parameters["cell"])
    same = [own for own in (other.finished if other else []) if own.seed == run.seed]
    if not same:
        return Reading(None, "missing")
    own, theirs = (load_file(one.folder / "model.safetensors") for one in (run, same[0]))
    squares = [float(((own[name].astype(np.float64) - theirs[name]) ** 2).sum()) for name in own]
    return Reading(float(np.sqrt(sum(squares))))


def sibling(study: Study, cell: StudyCell, changed: dict[str, str]) -> StudyCell | None:
    return study.find({**cell.labels, **{axis: str(label) for axis, label in changed.items()}})


def is_reference(cell: StudyCell) -> bool:
    """Local and centralized training are no federated methods: nothing is sent, or everything is in one place."""
    return any(word in REFERENCE for word in cell.cell.overrides)


READERS: dict[str, Callable[..., Reading]] = {
    "best_accuracy": _accuracy("best_accuracy"),
    "final_accuracy": _accuracy("final_accuracy"),
    "mean_accuracy_last": _mean_accuracy_last,
    "area": _area,
    "metric": _metric,
    **{name: _cost_to(kind) for name, kind in COSTS.items()},
    "seconds": _seconds,
    "gradient_norm": _gradient_norm,
    "distance_to": _distance_to,
}

"""How each measure is read off the files of one run: a number, or why there is none.

A measure of one run alone is a function of the run's files and the measure, which returns a number,
or None or NaN when the files have none. One that needs another run gets the study and the run's row
as well, and returns a reading.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedbench.report.experiments.spec import (
    COST_OF,
    ClientColumn,
    CostTo,
    DistanceTo,
    GradientNorm,
    LastRounds,
    Measure,
    Metric,
    Oscillation,
    SetSize,
    StaysAbove,
)
from fedbench.report.numbers.runs import RunFiles, Study
from fedbench.report.numbers.statistics import entropy, first_reaching

UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    BadZipFile,
    SafetensorError,
)  # what a damaged file raises
MEGABYTE = 1e6
Row = Mapping[str, Any]  # of a run in the table of the study
PERCENT = 100.0


class Reading(NamedTuple):
    """A number of one run; or why there is none, such as unreached up to `limit`."""

    value: float | None
    state: str = "ok"  # ok, missing, damaged, not archived, diverged, unreached, no target
    limit: float | None = None


def cost_series(metrics: pd.DataFrame, kind: str) -> pd.Series:
    """What a run had cost at every evaluated round: bytes, in megabytes both ways, or a column."""
    if kind == "bytes":
        return (metrics.bytes_up + metrics.bytes_down) / MEGABYTE
    return metrics[kind].astype(float)


def _accuracy(key: str) -> Callable[[RunFiles, Measure], float]:
    return lambda run, measure: PERCENT * float(run.summary[key])


def _accuracy_at_best_val(run: RunFiles, measure: Measure) -> float | None:
    """On the test set, in the round that is the best one on validation data, if there are any."""
    accuracy = run.summary.get("accuracy_at_best_val")
    return None if accuracy is None else PERCENT * float(accuracy)


def _mean_accuracy_last(run: RunFiles, measure: LastRounds) -> float | None:
    """Over the evaluations in so many rounds at the end; the last one counts in any case."""
    rounds = run.metrics["round"]
    last = run.metrics.test_accuracy[rounds > rounds.iloc[-1] - measure.rounds]
    return PERCENT * float(last.mean())


def _area(run: RunFiles, measure: Measure) -> float | None:
    """The mean over rounds of the accuracy: the area under its curve, by the trapezoidal rule, for
    a width of one.
    """
    rounds, accuracy = (
        run.metrics["round"].to_numpy(float),
        run.metrics.test_accuracy.to_numpy(float),
    )
    if len(rounds) < 2:
        return PERCENT * float(accuracy.mean())
    return PERCENT * float(np.trapezoid(accuracy, rounds) / (rounds[-1] - rounds[0]))


def _metric(run: RunFiles, measure: Metric) -> float | None:
    """A column at the last evaluated round, at that of the best accuracy, or its mean over all."""
    if measure.column not in run.metrics:
        return None
    column = run.metrics.set_index("round")[measure.column]
    if measure.rounds is not None:  # evaluated in these rounds alone, the first and the last given
        first, last = measure.rounds
        column = column[(column.index >= first) & (column.index <= (last or column.index[-1]))]
        if column.empty:
            return None
    best = column.index[column.index == run.summary["best_round"]]
    places = {"final": column.index[-1:], "best": best, "mean": column.index}
    value = float(column[places[measure.at]].mean(skipna=False))
    return PERCENT * value if measure.percent else value


def _largest_class(run: RunFiles, measure: Measure) -> float | None:
    """What a model would score that always guesses the most frequent class of the test set."""
    labels = run.predictions["labels"]
    return PERCENT * float(np.bincount(labels).max() / len(labels))


def _in_third(rounds: pd.Series, end: float, third: str) -> pd.Series:
    """Which of these rounds lie in the first or in the last third of `end` rounds."""
    return rounds <= end / 3 if third == "first" else rounds > 2 * end / 3


def _oscillation(run: RunFiles, measure: Oscillation) -> float | None:
    """The mean absolute change of the accuracy from one evaluation to the next, in points, over the
    last third of the rounds, or the first.
    """
    rounds = run.metrics["round"]
    inside = _in_third(rounds, rounds.iloc[-1], measure.third)
    changes = run.metrics.test_accuracy[inside].diff().abs().dropna()
    return PERCENT * float(changes.mean())


def _stays_above(study: Study, row: Row, run: RunFiles, measure: StaysAbove) -> Reading:
    """The first evaluated round from which on the accuracy is above that of another cell, with the
    same seed, to the end.
    """
    other = study.partner(row, measure.cell)
    if other is None:
        return Reading(None, "no target")
    own, theirs = (one.metrics.set_index("round")[measure.column] for one in (run, other))
    ahead = (own - theirs).dropna() > 0
    last = float(ahead.index[-1])
    behind = ahead.index[~ahead]
    after = ahead.index if behind.empty else ahead.index[ahead.index > behind[-1]]
    if after.empty:
        return Reading(None, "unreached", limit=last)
    return Reading(float(after[0]), limit=last)


def _cost_to(kind: str) -> Callable[..., Reading]:
    def read(study: Study, row: Row, run: RunFiles, measure: CostTo) -> Reading:
        target = target_of(study, row, measure.target)
        if target is None:
            return Reading(None, "no target")
        costs = cost_series(run.metrics, kind)
        cost = first_reaching(list(costs), list(run.metrics.test_accuracy), target, measure.window)
        return Reading(cost, "ok" if cost is not None else "unreached", limit=float(costs.iloc[-1]))

    return read


def target_of(study: Study, row: Row, target: Any) -> float | None:
    """A number; or one for each label of an axis; or what another cell reached at best with the
    same seed.
    """
    if not isinstance(target, dict):
        return float(target)
    if "best_of" in target:
        other = study.partner(row, target["best_of"])
        return None if other is None else float(other.summary["best_accuracy"])
    (axis, numbers), *_ = target.items()
    return next(
        (float(number) for label, number in numbers.items() if str(label) == row[axis]),
        None,
    )


def _seconds(run: RunFiles, measure: Measure) -> float | None:
    return float(run.summary["train_seconds"])


def _megabytes(run: RunFiles, measure: Measure) -> float | None:
    """Sent and received by all clients together, in all rounds."""
    return float(cost_series(run.metrics, "bytes").iloc[-1])


def _round_seconds(run: RunFiles, measure: Measure) -> float | None:
    """The mean time of a round, with its evaluation."""
    last = run.metrics.iloc[-1]
    return float(last["seconds"] / last["round"])


def last_rounds(clients: pd.DataFrame, rounds: int | None) -> pd.DataFrame:
    """The rows of clients.csv of so many rounds at the end; None = of all."""
    return (
        clients
        if rounds is None
        else clients[clients["round"] > clients["round"].max() - int(rounds)]
    )


def _client_column(run: RunFiles, measure: ClientColumn) -> float | None:
    """A column of clients.csv, mean over rounds of what `of` says of the clients of a round, or of
    one `client`.

    mean, their spread (standard deviation), that spread divided by their mean, or entropy: of the
    values as shares of their sum. labels: see `_with_labels`.
    """
    table = last_rounds(run.table("clients.csv"), measure.last)
    if measure.third is not None:
        end = run.metrics["round"].iloc[-1]
        table = table[_in_third(table["round"], end, measure.third)]
    if measure.column not in table:
        return None
    table = table.dropna(subset=[measure.column])
    if measure.client is not None:
        table = table[table["client"] == measure.client]
    if measure.of == "labels":
        return _with_labels(table, measure.column, run.table("partition.csv"))
    kinds: dict[str, Callable[..., Any]] = {
        "mean": np.mean,
        "spread": np.std,
        "relative_spread": lambda values: np.std(values) / (np.mean(values) or np.nan),
        "entropy": entropy,
    }
    of = kinds[measure.of]
    rounds = [of(own.to_numpy(float)) for _, own in table.groupby("round")[measure.column]]
    return float(np.mean(rounds)) if rounds else None


def _with_labels(table: pd.DataFrame, column: str, partition: pd.DataFrame) -> float:
    """Spearman's rank correlation of each client's mean over rounds with its number of labels."""
    means = table.groupby("client")[column].mean()
    held = (partition.set_index("client").filter(like="class_") > 0).sum(axis=1)
    return float(means.rank().corr(held.reindex(means.index).rank()))


def _set_size(run: RunFiles, measure: SetSize) -> float | None:
    """The mean size of conformal prediction sets at a level."""
    table = run.table("conformal.csv")
    own = table[table["method"] == measure.rule]
    found = own[np.isclose(own["level"], measure.level)]
    return float(found["size"].iloc[0]) if len(found) else None


def _gradient_norm(run: RunFiles, measure: GradientNorm) -> float | None:
    """Of the norms of all layers (or of one), clients and rounds (or the `last` ones): mean,
    variance or maximum.
    """
    table = last_rounds(run.table("clients.csv"), measure.last)
    columns = [name for name in table if name.startswith("gradient_norm/")]
    if measure.layer is not None:  # a name, or a place: 0 is the first, -1 the last
        place = measure.layer
        columns = columns[place:][:1] if isinstance(place, int) else [f"gradient_norm/{place}"]
    norms = table[[name for name in columns if name in table]].to_numpy(float)
    norms = norms[np.isfinite(norms)]
    if not norms.size:
        return None
    kinds: dict[str, Callable[..., Any]] = {"mean": np.mean, "variance": np.var, "maximum": np.max}
    return float(kinds[measure.of](norms))


def _distance_to(study: Study, row: Row, run: RunFiles, measure: DistanceTo) -> Reading:
    """The Euclidean distance between the final models, with the same seed, hence from the same
    initial weights.

    `of: clients` is the root mean square of the distances of the models w_k that the clients sent
    in the last round, from the other model w*. Where the server takes their mean w as it is,
    sum p_k |w_k - w*|^2 = |w - w*|^2 + V, with V the column update_variance.
    """
    other = study.partner(row, measure.cell)
    if other is None:
        return Reading(None, "missing")
    own, theirs = (load_file(one.folder / "model.safetensors") for one in (run, other))
    squares = [float(((own[name].astype(np.float64) - theirs[name]) ** 2).sum()) for name in own]
    if measure.of == "clients":
        if "update_variance" not in run.metrics:
            return Reading(None, "missing")
        squares.append(float(run.metrics.update_variance.iloc[-1]))
    return Reading(float(np.sqrt(sum(squares))))


OF_A_RUN: dict[str, Callable[..., float | None]] = {
    "best_accuracy": _accuracy("best_accuracy"),
    "accuracy_at_best_val": _accuracy_at_best_val,
    "final_accuracy": _accuracy("final_accuracy"),
    "mean_accuracy_last": _mean_accuracy_last,
    "area": _area,
    "metric": _metric,
    "largest_class": _largest_class,
    "oscillation": _oscillation,
    "seconds": _seconds,
    "round_seconds": _round_seconds,
    "megabytes": _megabytes,
    "client_column": _client_column,
    "set_size": _set_size,
    "gradient_norm": _gradient_norm,
}
OF_A_STUDY: dict[str, Callable[..., Reading]] = {
    **{name: _cost_to(kind) for name, kind in COST_OF.items()},
    "stays_above": _stays_above,
    "distance_to": _distance_to,
}


def read(study: Study, row: Row, measure: Measure) -> Reading:
    """What the files of a finished run say; raises one of UNREADABLE if they are damaged."""
    run = study.files(row["folder"])
    if measure.name in OF_A_STUDY:
        return OF_A_STUDY[measure.name](study, row, run, measure)
    value = OF_A_RUN[measure.name](run, measure)
    known = value is not None and math.isfinite(value)
    return Reading(value) if known else Reading(None, "missing")

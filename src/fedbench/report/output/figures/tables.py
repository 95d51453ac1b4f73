"""Columns of a run's files, and what becomes of them over seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd

from fedbench.report.numbers.readers import UNREADABLE
from fedbench.report.numbers.runs import RunFiles
from fedbench.report.output.figures.groups import Notes

Found = TypeVar("Found")
GRID = 200  # points of a curve whose seeds have no x in common


class Lacking(Exception):
    """A run has no such file or column; the message says which."""


def read_columns(run: RunFiles, file: str, *columns: str) -> pd.DataFrame:
    try:
        table = run.metrics if file == "metrics.csv" else run.table(file)
    except FileNotFoundError as error:
        archived = " in the archive" if "not_archived" in run.summary else ""
        raise Lacking(f"No {file}{archived}") from error
    except UNREADABLE as error:  # an empty file among them
        raise Lacking(f"Damaged {file}") from error
    missing = [column for column in columns if column not in table]
    if missing:
        raise Lacking(f"No column {', '.join(missing)} in {file}")
    return table


def read_all(
    runs: pd.DataFrame, read: Callable[[RunFiles], Found], notes: Notes, name: str, panel: str
) -> dict[int, Found]:
    """What `read` makes of each run, by its seed; a run that lacks something is noted."""
    found = {}
    for seed, folder in zip(runs["seed"], runs["folder"], strict=True):
        try:
            found[int(seed)] = read(notes.study.files(folder))
        except Lacking as lack:
            notes.lacks(str(lack), name, panel)
    return found


@dataclass
class Curve:
    """A line with its band; without one, low and high are the mean."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def over(values: np.ndarray, x: np.ndarray, band: str) -> Curve:
    """Mean over the rows, and the band that the study asks for: `std` (of a sample), `range` or
    `none`.
    """
    mean = low = high = values.mean(axis=0)
    if band == "std" and len(values) > 1:
        spread = values.std(axis=0, ddof=1)
        low, high = mean - spread, mean + spread
    elif band == "range":
        low, high = values.min(axis=0), values.max(axis=0)
    return Curve(x, mean, low, high)


def at_common_rounds(series: list[pd.Series], band: str) -> Curve | None:
    """Series by round, at the rounds that all have."""
    joined = pd.concat(series, axis=1, join="inner").sort_index()
    return (
        over(joined.to_numpy(dtype=float).T, joined.index.to_numpy(), band) if len(joined) else None
    )


def interpolated(series: list[pd.Series], band: str) -> Curve | None:
    """Series by seconds, bytes or gradients, of which each seed has its own, over the stretch that
    all cover.
    """
    series = [one.groupby(level=0).last() for one in series if len(one)]
    if not series:
        return None
    first, last = max(one.index[0] for one in series), min(one.index[-1] for one in series)
    if (
        len(series) == 1 or first >= last
    ):  # one run, or none in common: the means of the first, second ... evaluation
        points = min(map(len, series))
        x = np.mean([one.index.to_numpy()[:points] for one in series], axis=0)
        return over(np.array([one.to_numpy()[:points] for one in series]), x, band)
    grid = np.linspace(first, last, GRID)
    return over(
        np.array([np.interp(grid, one.index.to_numpy(), one.to_numpy()) for one in series]),
        grid,
        band,
    )

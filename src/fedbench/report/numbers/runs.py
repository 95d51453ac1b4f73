"""A study as one tidy table, a row a run, and the files of a run, read when they are asked for.

Its columns are the axes of the experiment with a label each, then

    seed
    overrides  the words of its cell
    folder     relative to the results folder; empty for a run that was refused
    status     finished, diverged, missing, running, failed or refused
    problem    why it failed or was refused, or what is damaged
    instead    why it is the run of another algorithm than its words ask for
    reference  whether it is local or centralized training, which is no federated method
    excluded   why it decides nothing about a paper's claim, or nothing

and then those of every measure (see measures.py). Rows are in the order of the experiment's file.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedbench.report.experiments.experiment import REFERENCE, Experiment, matches
from fedbench.report.experiments.spec import Measure

FINISHED, DIVERGED, MISSING, RUNNING, FAILED, REFUSED = (
    "finished",
    "diverged",
    "missing",
    "running",
    "failed",
    "refused",
)
DONE = (FINISHED, DIVERGED)
FACTS = ("seed", "overrides", "folder", "status", "problem", "instead", "reference", "excluded")


class RunFiles:
    """The files of one run, each read once. Only a finished or diverged run has them all."""

    def __init__(self, folder: Path):
        self.folder = folder

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    @cached_property
    def config(self) -> dict[str, Any]:
        text = (self.folder / "config.yaml").read_text()
        content: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return content

    def table(self, name: str) -> pd.DataFrame:
        """metrics.csv (a row for each evaluated round), clients.csv, conformal.csv ..."""
        packed = self.folder / f"{name}.gz"  # of an archived run
        if packed.is_file():
            text = gzip.decompress(packed.read_bytes()).decode()
        else:
            text = (self.folder / name).read_text()
        if not text.endswith("\n"):  # pandas would read half a number as a number
            raise ValueError(f"{self.folder / name} is cut off")
        return pd.read_csv(io.StringIO(text))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return self.table("metrics.csv")

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "predictions.npz", allow_pickle=False) as stored:
            return dict(stored)


@dataclass
class Study:
    """An experiment at a scale, with its runs."""

    experiment: Experiment
    scale: str
    runs: pd.DataFrame  # a row a run
    results: Path  # the folder that the runs' folders are relative to
    measures: dict[str, Measure] = field(default_factory=dict)  # by label; `runs` has their columns
    _files: dict[str, RunFiles] = field(default_factory=dict, repr=False)  # by folder

    def __post_init__(self) -> None:
        if "excluded" not in self.runs:
            rows = self.runs.to_dict("records")
            words = [set(shlex.split(row["overrides"])) for row in rows]
            self.runs = self.runs.assign(
                reference=[not own.isdisjoint(REFERENCE) for own in words],
                excluded=[self._why_excluded(row) for row in rows],
            )

    def _why_excluded(self, run: dict[str, Any]) -> str:
        words = self.experiment.replaced({axis: run[axis] for axis in self.axes}, self.scale)
        if words:
            return f"this scale runs {' '.join(words)} instead"
        if run["status"] in DONE:
            data = self.files(run["folder"]).summary["data"]
            if data["source"] == "synthetic":
                return f"stand-in data instead of {data['name']}"
        return ""

    @property
    def axes(self) -> list[str]:
        return list(self.experiment.axes)

    def files(self, folder: str) -> RunFiles:
        """The files of a run, by the column `folder`."""
        return self._files.setdefault(folder, RunFiles(self.results / folder))

    @property
    def done(self) -> pd.DataFrame:
        """The rows of the runs that came to an end, diverged ones among them."""
        return self.runs[self.runs["status"].isin(DONE)]

    @cached_property
    def cells(self) -> dict[tuple[str, ...], pd.DataFrame]:
        """The rows of every cell, a row a seed, by its labels."""
        return dict(groups(self.runs, self.axes))

    def cell(self, labels: Mapping[str, Any]) -> pd.DataFrame | None:
        return self.cells.get(tuple(str(labels[axis]) for axis in self.axes))

    def labels(self, rows: pd.DataFrame) -> dict[str, str]:
        """Those of a cell."""
        return {axis: str(rows[axis].iloc[0]) for axis in self.axes}

    def select(self, wanted: dict[str, Any]) -> pd.DataFrame:
        """The rows whose labels are among the wanted ones."""
        fits = [matches(row, wanted) for row in self.runs[self.axes].to_dict("records")]
        return self.runs[np.array(fits, bool)]

    def sibling(self, labels: Mapping[str, Any], changed: dict[str, Any]) -> pd.DataFrame | None:
        """The cell with these labels in place of its own. Instead of a label, an axis may have one
        for each of its labels; a label without one has no sibling.
        """
        other = {
            axis: label.get(labels[axis]) if isinstance(label, dict) else label
            for axis, label in changed.items()
        }
        return None if None in other.values() else self.cell({**labels, **other})

    def partner(self, run: Mapping[str, Any], changed: dict[str, Any]) -> RunFiles | None:
        """The finished run of that cell with the same seed."""
        rows = self.sibling(run, changed)
        if rows is None:
            return None
        same = rows[(rows["seed"] == run["seed"]) & (rows["status"] == FINISHED)]
        return None if same.empty else self.files(same["folder"].iloc[0])

    def combinations(self, axes: Sequence[str]) -> list[tuple[str, ...]]:
        """Of labels that occur, in the file's order."""
        places = [self.axes.index(axis) for axis in axes]
        found = {tuple(key[place] for place in places) for key in self.cells}
        order = (self.experiment.labels(axis, self.scale) for axis in axes)
        return [labels for labels in itertools.product(*order) if labels in found]


def groups(runs: pd.DataFrame, axes: Sequence[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """The rows of each combination of labels, in the order of the rows; all without any axis."""
    if runs.empty:
        return []
    if not axes:
        return [((), runs)]
    return [(tuple(key), rows) for key, rows in runs.groupby(list(axes), sort=False)]

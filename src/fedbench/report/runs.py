"""The runs of a study, read from their folders: a cell of the grid with one run for each seed."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from fedbench.report.experiment import Cell, Experiment

FINISHED, DIVERGED, MISSING, RUNNING, FAILED, REFUSED = (
    "finished",
    "diverged",
    "missing",
    "running",
    "failed",
    "refused",
)


@dataclass
class StudyRun:
    """One run of a cell. Files are read when asked for; only a finished or diverged run has
    them.
    """

    seed: int
    folder: (
        Path | None
    )  # None when the configuration was refused, for example because its data are not here
    status: str
    problem: str = ""  # of a failed or refused run, in one line
    instead: str = ""  # why it is the run of another algorithm than its words ask for

    @property
    def done(self) -> bool:
        return self.status in (FINISHED, DIVERGED)

    @property
    def finished(self) -> bool:
        return self.status == FINISHED

    @property
    def id(self) -> str:
        return self.folder.name if self.folder else ""

    def file(self, name: str) -> Path:
        """A file of the run's folder, which a refused run does not have."""
        if self.folder is None:
            raise FileNotFoundError(f"{name} of a run that was refused")
        return self.folder / name

    @cached_property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self.file("summary.json").read_text())
        return summary

    @cached_property
    def config(self) -> dict[str, Any]:
        return yaml.load(
            self.file("config.yaml").read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )

    def table(self, name: str) -> pd.DataFrame:
        """metrics.csv (a row for each evaluated round), clients.csv, conformal.csv ..."""
        packed = self.file(f"{name}.gz")  # of an archived run
        if packed.is_file():
            text = gzip.decompress(packed.read_bytes()).decode()
        else:
            text = self.file(name).read_text()
        if not text.endswith("\n"):  # pandas would read half a number as a number
            raise ValueError(f"{self.file(name)} is cut off")
        return pd.read_csv(io.StringIO(text))

    @cached_property
    def metrics(self) -> pd.DataFrame:
        return self.table("metrics.csv")

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        with np.load(self.file("predictions.npz"), allow_pickle=False) as stored:
            return dict(stored)


@dataclass
class StudyCell:
    cell: Cell
    runs: list[StudyRun]

    @property
    def labels(self) -> dict[str, str]:
        return self.cell.labels

    @property
    def finished(self) -> list[StudyRun]:
        return [run for run in self.runs if run.finished]


@dataclass
class Study:
    """An experiment at a scale, with its runs."""

    experiment: Experiment
    scale: str
    cells: list[StudyCell] = field(default_factory=list)

    def find(self, labels: dict[str, str]) -> StudyCell | None:
        return next((cell for cell in self.cells if cell.labels == labels), None)

    def select(self, wanted: dict[str, Any]) -> list[StudyCell]:
        return [cell for cell in self.cells if cell.cell.matches(wanted)]

"""Studies made by hand, for tests of what is rendered: an experiment, and run folders with given files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fedbench.study.experiment import Experiment
from fedbench.study.runs import Study, StudyCell, StudyRun

Files = dict[str, pd.DataFrame]


def experiment(show: dict[str, Any], axes: dict[str, dict[str, str]] | None = None, **fields: Any) -> Experiment:
    given = {"seeds": [0, 1, 2], "scales": {"smoke": {"reduction": "2 rounds", "seeds": [0, 1, 2]}}, **fields}
    return Experiment("made/up", "Made up", "Figure 1", "A title", show, axes or {}, **given)


def study(
    folder: Path,
    made: Experiment,
    files: Callable[[dict[str, str], int], Files],
    status: Callable[[dict[str, str], int], str] = lambda labels, seed: "finished",
    scale: str = "paper",
    data: dict[str, str] | None = None,
) -> Study:
    """`files(labels, seed)`: the tables of a run; `status(labels, seed)`: how it ended."""
    cells = []
    for number, cell in enumerate(made.cells(scale)):
        runs = []
        for seed in cell.seeds:
            place, ended = folder / f"{number}-{seed}", status(cell.labels, seed)
            if ended in ("finished", "diverged"):
                place.mkdir(parents=True)
                facts = {"status": ended, "data": data or {"name": "mnist", "source": "real", "note": ""}}
                (place / "summary.json").write_text(json.dumps(facts))
                for name, table in files(cell.labels, seed).items():
                    table.to_csv(place / name, index=False)
            runs.append(StudyRun(seed, place, ended))
        cells.append(StudyCell(cell, runs))
    return Study(made, scale, cells)


def no_measure(cell: StudyCell, spec: object) -> list[float | None]:
    raise AssertionError("this form has no measures")

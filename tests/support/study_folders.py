"""Studies made by hand, for tests of what is rendered: an experiment, and run folders with given
files.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

from fedbench.report.experiments.experiment import Experiment
from fedbench.report.experiments.spec import read_section
from fedbench.report.numbers.runs import DONE, Study

ROW = ("seed", "overrides", "folder", "status", "problem", "instead")
Files = dict[str, Any]  # name -> a table; arrays by name for .npz and .safetensors


def experiment(
    show: dict[str, Any], axes: dict[str, dict[str, str]] | None = None, **fields: Any
) -> Experiment:
    given = {
        "seeds": [0, 1, 2],
        "scales": {
            name: {"reduction": "2 rounds", "seeds": [0, 1, 2]} for name in ("smoke", "decisive")
        },
        **fields,
    }
    named = {"paper": "Made up", "number": "Figure 1", "title": "A title"}
    shown = {"form": "table", **show}
    study = read_section({**named, "show": shown, "axes": axes or {}, **given})
    return Experiment(**vars(study), name="made/up")


def study(
    folder: Path,
    made: Experiment,
    files: Callable[[dict[str, str], int], Files],
    status: Callable[[dict[str, str], int], str] = lambda labels, seed: "finished",
    scale: str = "paper",
    data: dict[str, str] | None = None,
    facts: Callable[[dict[str, str], int], dict[str, Any]] = lambda labels, seed: {},
) -> Study:
    """`files(labels, seed)`: the files of a run; `status`: how it ended; `facts`: more of its
    summary.
    """
    rows = []
    for number, cell in enumerate(made.cells(scale)):
        for seed in cell.seeds:
            name, ended = f"{number}-{seed}", status(cell.labels, seed)
            place = folder / name
            if ended in DONE:
                place.mkdir(parents=True)
                written = files(cell.labels, seed)
                known = {
                    "status": ended,
                    "data": {"name": "mnist", "source": "real", "note": "", "fingerprint": "f"},
                }
                known |= {
                    "scoring": "global",
                    "caveats": [],
                    **_results(written.get("metrics.csv"), ended),
                }
                known["data"] |= data or {}
                (place / "summary.json").write_text(json.dumps(known | facts(cell.labels, seed)))
                for file, content in written.items():
                    _write(place / file, content)
            problem = "client.lr=0: above 0 is allowed" if ended in ("failed", "refused") else ""
            row = {"seed": seed, "folder": "" if ended == "refused" else name, "status": ended}
            row |= {"overrides": shlex.join(cell.overrides), "problem": problem, "instead": ""}
            rows.append({**cell.labels, **row})
    return Study(made, scale, pd.DataFrame(rows, columns=[*made.axes, *ROW]), folder)


def _results(metrics: pd.DataFrame | None, ended: str) -> dict[str, Any]:
    if ended == "diverged":
        none = dict.fromkeys(("best_accuracy", "best_round", "final_accuracy"))
        return {"diverged": {"round": 7, "cause": "loss is not finite"}, **none}
    if metrics is None or metrics.empty:
        return {}
    best = metrics.loc[metrics.test_accuracy.idxmax()]
    return {
        "best_accuracy": float(best.test_accuracy),
        "best_round": int(best["round"]),
        "final_accuracy": float(metrics.test_accuracy.iloc[-1]),
        "train_seconds": float(metrics.seconds.iloc[-1]) if "seconds" in metrics else 0.0,
    }


def _write(place: Path, content: Any) -> None:
    if place.suffix == ".npz":
        np.savez(place, **{name: np.array(values) for name, values in content.items()})
    elif place.suffix == ".safetensors":
        save_file({name: np.array(values, np.float32) for name, values in content.items()}, place)
    else:
        content.to_csv(place, index=False)


def metrics(
    *accuracies: float, every: int = 1, megabytes: float = 1.0, gradients: int = 100, **columns: Any
) -> Files:
    """metrics.csv with so many evaluations; each round sends and receives the megabytes, half each
    way.
    """
    rounds = [every * (number + 1) for number in range(len(accuracies))]
    spent = [round(number * megabytes * 5e5) for number in rounds]
    table = {"round": rounds, "test_accuracy": accuracies, "bytes_up": spent, "bytes_down": spent}
    costs = {
        "gradients": [number * gradients for number in rounds],
        "seconds": [2.0 * number for number in rounds],
    }
    return {"metrics.csv": pd.DataFrame({**table, **costs, **columns})}

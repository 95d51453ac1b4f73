"""pfl-research for `bench.py rivals`: an environment of its own, and its rounds' times."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch

import fedbench
from fedbench.data.dataset import Dataset
from fedbench.runs.identity import source_commit

PFL = "0.6.0"
PACKAGES = (f"pfl=={PFL}", "torch==2.13.0")
PROGRAM = Path(__file__).parent / "rival_pfl.py"


class PflResearch:
    """pfl-research as its package index has it, and the rows of the table."""

    def __init__(self) -> None:
        folder = platformdirs.user_cache_path("fedbench") / "rivals" / "-".join(PACKAGES)
        self.python = folder / "bin" / "python"
        if not (folder / "ready").is_file():
            print(f"installing {' and '.join(PACKAGES)} into {folder}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [str(self.python), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, "--disable-pip-version-check", *PACKAGES], check=True)
            (folder / "ready").touch()

    def round_seconds(self, load: Any, data: Dataset, rounds: int) -> float:
        """The median time of its rounds on a workload, after one that warms up."""
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch) / "data.npz"
            np.savez(file, x=data.train_x, y=data.train_y, test_x=data.test_x, test_y=data.test_y)
            settings = {
                "data": str(file),
                "model": load.model,
                "images": load.images,
                "batch": load.batch,
                "epochs": load.epochs,
                "cohort": load.cohort or load.clients,
                "test": load.test,
                "rounds": rounds + 1,
            }
            done = subprocess.run(
                [str(self.python), str(PROGRAM), json.dumps(settings)],
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        return statistics.median(json.loads(done.stdout.splitlines()[-1])[1:])

    def heading(self) -> str:
        commit = (source_commit()["commit"] or "unknown")[:7]
        return (
            f"fedbench {fedbench.__version__} (commit {commit}), pfl {PFL},"
            f" torch {torch.__version__}; one process, one thread\n\n"
            "| workload | bare loop | pfl-research | fedbench | fedbench / pfl-research |\n"
            "| --- | --- | --- | --- | --- |"
        )

    def row(self, name: str, seconds: dict[str, float]) -> str:
        bare, own, rival = seconds["bare"], seconds["engine"], seconds["rival"]
        cells = [f"{1000 * one:.0f} ms ({one / bare:.2f})" for one in (bare, rival, own)]
        return f"| {name} | {' | '.join(cells)} | {own / rival:.2f} |"

"""The number that a search optimises, `objective`, and its direction."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from omegaconf import DictConfig

from fedbench.config.schema import BEST_VALIDATION, LARGER_IS_BETTER, SMALLER_IS_BETTER
from fedbench.core.errors import require
from fedbench.runs.folder import RunFolder

DEFAULT = (BEST_VALIDATION, "best_accuracy")  # the first that a run has


def objective(name: str | None, folder: Path) -> float | None:
    """The objective of a finished run; None on a machine that does not see the run's files.

    A diverged run has the worst value: an accuracy of 0, or an infinite loss or time.
    """
    summary = RunFolder(folder).finished()
    if summary is None:
        return None
    if summary["status"] == "diverged":
        return math.inf if name in SMALLER_IS_BETTER else 0.0
    if name is None:
        name = next(one for one in DEFAULT if one in summary)
    if name in summary:
        return float(summary[name])
    with open(folder / "metrics.csv", newline="") as file:
        return float(list(csv.DictReader(file))[-1][name])


def check_direction(name: str | None, sweeper: DictConfig) -> None:
    """Refuse a wrong direction: Optuna minimises by default, and would find the worst accuracy."""
    direction = sweeper.get("direction")
    given = getattr(direction, "name", direction)
    if given not in ("minimize", "maximize"):
        return
    needed = "maximize" if name is None or name in LARGER_IS_BETTER else "minimize"
    rule = f"must be {needed} for objective={name or DEFAULT[1]}"
    require(given == needed, "hydra.sweeper.direction", given, rule)

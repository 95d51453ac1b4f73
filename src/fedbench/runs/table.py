"""All runs of a results folder as one table, a row each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedbench.core.errors import require
from fedbench.runs.folder import UNREADABLE, RunFolder

# Of summary.json: what config.yaml has as well, and what is of no use in a table.
NOT_MEASURES = ("seed", "scale", "data", "model", "files", "checksum", "versions", "caveats")
FIRST_COLUMNS = ("id", "label", "status", "seed")
# Which are there also while no run has them; `settings` and all other numbers follow the runs.
MEASURES = (
    "final_accuracy",
    "best_accuracy",
    "best_round",
    "rounds_done",
    "train_seconds",
    "wall_time",
)


def load_runs(results: str | Path = "results") -> pd.DataFrame:
    """All runs below a results folder, a row each.

        runs = fedbench.load_runs("results")
        runs[runs.status == "finished"].groupby(["algo", "client.lr"]).final_accuracy.mean()

    The columns are `id`, `label`, `status`, the settings (`algo` is the chosen file, `algo.mu` a
    setting), the numbers of summary.json, of which `final_accuracy` and a few more are there also
    while no run is finished, and `folder`. The status is finished, diverged,
    unfinished, or damaged: a file is not what was written.
    """
    folder = Path(results)
    require(folder.is_dir(), "results", results, "must be a folder")
    rows = [_row(file.parent) for file in sorted(folder.glob("runs/*/*/config.yaml"))]
    table = pd.DataFrame(rows)
    between = [name for name in table if name not in (*FIRST_COLUMNS, "folder")]
    added = [name for name in MEASURES if name not in between]
    return table.reindex(columns=[*FIRST_COLUMNS, *between, *added, "folder"])


def _row(folder: Path) -> dict[str, Any]:
    summary, damage = RunFolder(folder).examine(by_content=False)
    try:
        known = settings(folder)
    except (*UNREADABLE, yaml.YAMLError):
        known, summary, damage = {}, None, "config.yaml cannot be read"
    if summary is None:
        summary = {"status": "damaged" if damage else "unfinished"}
    measures = {key: value for key, value in summary.items() if key not in NOT_MEASURES}
    if "rounds" in measures:  # a diverged run ends before the last one
        measures["rounds_done"] = measures.pop("rounds")
    place = {"id": folder.name, "label": folder.parent.name, "folder": str(folder)}
    return {**place, **known, **dict(_flat(measures))}


def settings(folder: Path) -> dict[str, Any]:
    """The settings of a run by their keys; of a group, such as `algo`, the file that was chosen."""
    config = read_config(folder)
    choices = config.pop("choices")
    chosen = {key: name for key, name in choices.items() if not key.startswith("hydra/")}
    return {**dict(_flat(config)), **chosen}


def read_config(folder: Path) -> dict[str, Any]:
    """libyaml's reader is ten times as fast as the one in Python."""
    text = (folder / "config.yaml").read_text()
    content: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """{"client": {"lr": 0.1}} as ("client.lr", 0.1); lists as tuples, which can be grouped by."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", tuple(value) if isinstance(value, list) else value

"""A folder that looks like a finished run's, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from fedbench.core.files import checksum_of
from support.study_folders import metrics


def write_run(
    folder: Path,
    algo: str,
    alpha: float,
    seed: int,
    accuracy: float,
    lr: float = 0.1,
    **more: Any,
) -> None:
    """`more` is written into summary.json, over what it has."""
    config = {"seed": seed, "client": {"lr": lr}, "partition": {"alpha": alpha}}
    config |= {"algo": {"name": algo}, "choices": {"algo": algo, "hydra/launcher": "basic"}}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    metrics(0.1, accuracy)["metrics.csv"].to_csv(folder / "metrics.csv", index=False)
    data = {"name": "digits", "source": "real", "note": "", "fingerprint": "f"}
    summary = {"status": "finished", "data": data, "scoring": "global", "caveats": [], "files": {}}
    summary |= {"final_accuracy": accuracy, "best_accuracy": accuracy, "best_round": 2}
    summary |= {"partition_hash": "x", "git_commit": "0123456789", "git_dirty": False}
    summary |= more
    text = json.dumps({**summary, "checksum": checksum_of(summary)})
    (folder / "summary.json").write_text(text)

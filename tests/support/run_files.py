"""Read what a finished run has left."""

from __future__ import annotations

import csv
import json
from pathlib import Path

QUICK = ("rounds=2", "client.epochs=1", "partition.clients=4", "runtime.workers=1")


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv") as file:
        return list(csv.DictReader(file))

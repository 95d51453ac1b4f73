"""A study's table and pictures in W&B, beside its runs: one W&B run of type `table` in the group of
the experiment.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from fedbench.report.output.model import Entry
from fedbench.report.output.text import csv_rows
from fedbench.runs.wandb import has_credentials, start

PROJECT = "fedbench"


def publish(entry: Entry, results: Path) -> None:
    """Online with credentials, offline below <results>/wandb without, as runs are."""
    import wandb  # takes a second, so only when it is used

    results.mkdir(parents=True, exist_ok=True)
    run = start(
        os.environ.get("WANDB_MODE") or ("online" if has_credentials() else "offline"),
        project=PROJECT,
        group=entry.name,
        job_type="table",
        name=f"{entry.name} ({entry.scale})",
        id=f"{entry.name.replace('/', '-')}-{entry.scale}",
        resume="allow",
        dir=str(results),
        config={"experiment": entry.name, "scale": entry.scale, "command": entry.command},
    )
    if run is None:
        return
    if entry.grids:
        header, *rows = csv.reader(io.StringIO(csv_rows(entry)))
        run.log({"table": wandb.Table(columns=list[str | int](header), data=rows)})
    for picture in entry.pictures:
        run.log({picture.title or "figure": wandb.Image(str(picture.png))})
    run.summary.update({"runs_done": entry.done, "runs_wanted": entry.wanted, **entry.outcomes()})
    run.finish()

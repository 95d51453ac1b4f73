"""`fedbench-tables archive`: add the finished runs of studies to `results/archive`.

    results/archive/index.csv           a row a run: overrides, result, commit, machine, time
    results/archive/runs/<label>/<id>/  its small files, with checksums
    results/archive/studies/            which run belongs to which cell of which table

The archive is part of the project: a fresh clone renders the report from it, and a study goes on
from it on any machine.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from fedbench.core.errors import BadInput
from fedbench.core.files import write_atomically
from fedbench.report.experiments.spec import SCALES
from fedbench.report.running.plan import Plan, plan_file
from fedbench.runs.archive import ARCHIVE, archive_run
from fedbench.runs.folder import RunFolder

LARGEST = 30_000_000  # bytes of the whole archive
INDEX = "index.csv"
COLUMNS = (
    "run",
    "experiments",
    "overrides",
    "status",
    "best_accuracy",
    "best_round",
    "final_accuracy",
    "data",
    "fingerprint",
    "git_commit",
    "git_dirty",
    "machine",
    "wall_time",
    "checksum",
)


def archive_plans(plans: list[Plan], results: Path) -> int:
    """Add the finished runs of these plans and of their trials; returns how many were new."""
    place, new = results / ARCHIVE, 0
    files = [plan_file(results, plan.experiment, plan.scale, trials=True) for plan in plans]
    trials = [plan for plan in map(Plan.read, files) if plan is not None]
    for plan in [*trials, *plans]:
        finished = False
        for job in plan.jobs:
            if not job.folder:
                continue
            archived = RunFolder(place / job.folder)
            run = RunFolder(results / job.folder)
            if archived.finished() is None and run.finished() is not None:
                archive_run(run, archived.path)
                new += 1
            finished |= archived.finished() is not None
        if finished:
            plan.write(place, "")
    write_atomically(place / INDEX, _index(place))
    size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    if size > LARGEST:
        raise BadInput(
            f"{place}: has {size / 1e6:.1f} MB and must have at most {LARGEST / 1e6:.0f}; remove"
            " the runs that nobody needs"
        )
    return new


def archived_plans(results: Path, trials: bool = False) -> list[Plan]:
    """The plans that lie in an archive; `trials`: those of the trials."""
    place = results / ARCHIVE / "studies"
    ending = ".trials" if trials else ""
    found = []
    for file in sorted(place.rglob(f"*{ending}.json")):
        if file.stem.removesuffix(ending).rpartition(".")[2] in SCALES:
            plan = Plan.read(file)
            if plan is not None:
                found.append(plan)
    return found


def _index(place: Path) -> str:
    """All archived runs, each with the experiments that it belongs to."""
    plans = [*archived_plans(place.parent), *archived_plans(place.parent, trials=True)]
    uses: dict[str, dict[str, None]] = {}
    words: dict[str, str] = {}
    for plan in plans:
        use = f"{plan.experiment} ({plan.scale}{', trials' if plan.trials else ''})"
        for job in plan.jobs:
            uses.setdefault(job.folder, {})[use] = None
            words.setdefault(job.folder, " ".join(job.words))
    rows = []
    for file in sorted(place.glob("runs/*/*/summary.json")):
        folder = str(file.parent.relative_to(place))
        summary = RunFolder(file.parent).finished()
        if summary is not None:
            own = {"run": folder, "experiments": "; ".join(uses.get(folder, {}))}
            own |= {"overrides": words.get(folder, ""), "data": summary["data"]["name"]}
            rows.append({**summary, **own, "fingerprint": summary["data"]["fingerprint"]})
    table = pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
    return table.to_csv(index=False)

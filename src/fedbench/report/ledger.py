"""What is done and what is missing of the planned studies, before anything runs."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from fedbench.core.errors import BadInput
from fedbench.report.calibrate import Estimate
from fedbench.report.execute import FAILURE
from fedbench.report.experiment import find_file, load, names
from fedbench.report.plan import Job, Plan, read_plan
from fedbench.report.runs import (
    DIVERGED,
    DONE,
    FAILED,
    FINISHED,
    MISSING,
    REFUSED,
    RUNNING,
    Study,
)
from fedbench.report.spec import SCALES
from fedbench.runs.archive import ARCHIVE, find_run

# Columns of a plan that only running needs.
NOT_OF_STUDIES = ("words", "work", "config", "broken")


class Status(NamedTuple):
    """A run as its folder shows it."""

    status: str
    folder: str = ""  # relative to the results folder
    problem: str = ""


def status_of(job: Job, results: Path) -> Status:
    if job.problem:
        return Status(FAILED if job.broken else REFUSED, problem=job.problem)
    found = find_run(results, job.folder)
    folder = os.path.relpath(found.path, results)
    summary, damage = found.examine(by_content=False)
    if summary is not None:
        return Status(DIVERGED if summary["status"] == "diverged" else FINISHED, folder)
    if _is_locked(found.path):
        return Status(RUNNING, folder)
    failure = found.path / FAILURE
    if failure.is_file():
        return Status(FAILED, folder, failure.read_text(errors="replace"))
    return Status(MISSING, folder, f"{damage}, so this run counts as missing" if damage else "")


def statuses(plan: Plan, results: Path) -> pd.DataFrame:
    """The runs of a plan with what their folders show."""
    found = [status_of(job, results) for job in plan.jobs]
    known = pd.DataFrame(found, plan.runs.index, list(Status._fields))
    return plan.runs.assign(**known)


def _is_locked(folder: Path) -> bool:
    file = folder.parent / f".{folder.name}.lock"
    if not file.is_file():
        return False
    lock = FileLock(file)
    try:
        lock.acquire(timeout=0)
    except (Timeout, OSError):
        return True
    lock.release()
    return False


def kept_plans(results: Path, experiments: list[str], scale: str | None = None) -> list[Plan]:
    """For every experiment the plan of the scale that is asked for, else of the largest of which
    anything was run.
    """
    if not results.is_dir():
        raise BadInput(
            f"results={results}: there is no such folder; `make reproduce-tables` or `fedbench"
            " experiment=...` makes runs, and results/archive has what was kept, if there is one"
        )
    plans = []
    for name in experiments:
        scales = [scale] if scale else list(reversed(SCALES))
        kept = [
            found[0]
            for candidate in scales
            for place in (results, results / ARCHIVE)
            if (found := read_plan(place, name, candidate)) is not None
        ]
        kept = [plan for plan in kept if find_file(name, plan.folders).is_file()]
        begun = [plan for plan in kept if statuses(plan, results)["status"].isin(DONE).any()]
        plans += (begun or kept)[:1]
    return plans


def planned_names(results: Path) -> list[str]:
    """The users' own experiments of which a plan is in the results, or in their archive."""
    found: dict[str, None] = {}
    for place in (results / "studies", results / ARCHIVE / "studies"):
        for file in sorted(place.rglob("*.json")):
            name, _, scale = str(file.relative_to(place).with_suffix("")).rpartition(".")
            if scale in SCALES and name not in names():
                found[name] = None
    return list(found)


def plans_beside(results: Path, plans: list[Plan]) -> list[Plan]:
    """The plans of all other experiments in the results."""
    planned = {plan.experiment for plan in plans}
    known = [*names(), *planned_names(results)]
    return kept_plans(results, [name for name in known if name not in planned])


def study_of(plan: Plan, results: Path) -> Study:
    """The experiment of a plan with its runs, as far as there are any."""
    experiment = load(plan.experiment, plan.folders)
    remarks = [*experiment.remarks, *plan.remarks]
    runs = statuses(plan, results).drop(columns=[*NOT_OF_STUDIES])
    return Study(replace(experiment, remarks=remarks), plan.scale, runs, results)


@dataclass
class Line:
    """An experiment in the ledger. A run that an experiment above has as well is counted there, as
    shared here.
    """

    experiment: str
    counts: Counter[str]
    shared: int
    missing: list[Job]


class Ledger:
    """What is done and what is missing of some plans; `all_again`: everything is missing."""

    def __init__(self, plans: list[Plan], results: Path, all_again: bool = False):
        self.lines: list[Line] = []
        self.unplanned: list[Job] = []  # refused, or the program failed on them: they cannot be run
        seen: set[str] = set()
        for plan in plans:
            counts: Counter[str] = Counter()
            missing, shared = [], 0
            for job in plan.jobs:
                if job.folder and job.folder in seen:
                    shared += 1
                    continue
                seen.add(job.folder)
                status = status_of(job, results).status
                if all_again and status in DONE:
                    status = MISSING
                counts[status] += 1
                if status in (MISSING, FAILED) and not job.broken:
                    missing.append(job)
                if job.problem:
                    self.unplanned.append(job)
            self.lines.append(Line(plan.experiment, counts, shared, missing))

    @property
    def missing(self) -> list[Job]:
        return [job for line in self.lines for job in line.missing]

    def show(self, console: Console, estimates: dict[str, Estimate], processes: int) -> None:
        """`estimates` has one for the folder of every missing run."""
        table = Table(title="What is done and what is missing", title_justify="left")
        for name in (
            "experiment",
            "done",
            "shared",
            "missing",
            "running",
            "failed",
            "refused",
            "time",
            "memory",
            "disk",
        ):
            table.add_column(name, justify="left" if name == "experiment" else "right")
        total: Counter[str] = Counter()
        for line in self.lines:
            counts = line.counts
            own = [estimates[job.folder] for job in line.missing if job.folder in estimates]
            numbers = [sum(counts[name] for name in DONE), line.shared]
            numbers += [counts[name] for name in (MISSING, RUNNING, FAILED, REFUSED)]
            table.add_row(
                line.experiment,
                *(str(number) if number else "" for number in numbers),
                *_words(own, processes),
            )
            total.update(
                {"done": numbers[0], **{name: counts[name] for name in (MISSING, FAILED, REFUSED)}}
            )
        console.print(table)
        words = [f"{total['done']} runs done, {len(self.missing)} to do"]
        if estimates:
            time, memory, disk = _words(list(estimates.values()), processes)
            words.append(
                f"about {time} with {processes} at a time, {memory} of memory, {disk} of disk"
            )
        if total[REFUSED]:
            words.append(f"{total[REFUSED]} refused")
        unknown = sum(not estimate.known for estimate in estimates.values())
        words += (
            [f"{unknown} runs could not be calibrated and are not in these numbers"]
            if unknown
            else []
        )
        console.print("; ".join(words))


def _words(estimates: list[Estimate], processes: int) -> tuple[str, str, str]:
    """Of what could be calibrated; a question mark for what could not."""
    known = [estimate for estimate in estimates if estimate.known]
    more = " + ?" if len(known) < len(estimates) else ""
    if not known:
        return ("?", "?", "?") if estimates else ("", "", "")
    seconds = sum(estimate.seconds for estimate in known) / min(processes, len(known))
    memory = sum(sorted((estimate.memory for estimate in known), reverse=True)[:processes])
    disk = sum(estimate.disk for estimate in known)
    return duration(seconds) + more, size(memory) + more, size(disk) + more


def duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: float) -> str:
    for unit, length in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= length:
            return f"{count / length:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"

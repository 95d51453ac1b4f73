"""What is done and what is missing of the planned studies, before anything runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from fedbench.core.errors import BadInput
from fedbench.report.experiments.experiment import find_file, load, names
from fedbench.report.experiments.spec import SCALES
from fedbench.report.numbers.runs import (
    DIVERGED,
    DONE,
    FAILED,
    FINISHED,
    MISSING,
    REFUSED,
    RUNNING,
    Study,
)
from fedbench.report.running.calibrate import Estimate
from fedbench.report.running.execute import FAILURE
from fedbench.report.running.plan import OF_JOBS, Job, Plan, fits, jobs_of, read_plan
from fedbench.runs.archive import ARCHIVE, find_run

COMPLETE, SHARED = "done", "shared"  # what the ledger calls a run beside its status
SHOWN = (COMPLETE, SHARED, MISSING, RUNNING, FAILED, REFUSED)
EMPTY = [*OF_JOBS, "experiment", "status"]  # columns of a ledger without any run
# Columns of a plan that only running needs.
NOT_OF_STUDIES = ("words", "work", "config", "broken")
EARLIER = (
    "These runs were planned before the experiment's file got other overrides or seeds, and may not"
    " be what its labels say now: `{command}` runs what it says."
)


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
    anything was run. One whose axes the file no longer has is none: its runs have no place.
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
            found
            for candidate in scales
            for place in (results, results / ARCHIVE)
            if (found := read_plan(place, name, candidate)) is not None
        ]
        kept = [plan for plan in kept if find_file(name, plan.folders).is_file()]
        kept = [plan for plan in kept if plan.is_of(load(name, plan.folders))]
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
    if experiment.tune is None and not fits(plan, experiment):  # trials add words to the file's
        remarks.insert(0, EARLIER.format(command=experiment.command(plan.scale)))
    runs = statuses(plan, results).drop(columns=[*NOT_OF_STUDIES])
    return Study(replace(experiment, remarks=remarks), plan.scale, runs, results)


class Ledger:
    """What is done and what is missing of some plans; `all_again`: everything is missing.

    A run that an experiment above has as well is counted there, as shared here.
    """

    def __init__(self, plans: list[Plan], results: Path, all_again: bool = False):
        self.experiments = [plan.experiment for plan in plans]
        tables = [
            plan.runs.assign(experiment=plan.experiment, status=statuses(plan, results)["status"])
            for plan in plans
            if len(plan.runs)
        ]
        self.runs = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=EMPTY)
        if all_again:
            self.runs["status"] = self.runs["status"].replace(list(DONE), MISSING)
        again = self.runs["folder"].duplicated() & (self.runs["folder"] != "")
        self.runs.loc[again, "status"] = SHARED

    @property
    def to_do(self) -> pd.DataFrame:
        """The rows of the runs that are missing, or failed before and are tried again."""
        tried = self.runs["status"].isin((MISSING, FAILED)) & (self.runs["folder"] != "")
        return self.runs[tried]

    @property
    def missing(self) -> list[Job]:
        return jobs_of(self.to_do)

    @property
    def unplanned(self) -> list[Job]:
        """Refused, or the program failed on them: they cannot be run."""
        return jobs_of(self.runs[self.runs["problem"] != ""])

    @property
    def counts(self) -> pd.DataFrame:
        """How many runs of each experiment are in which state."""
        found = pd.crosstab(self.runs["experiment"], self.runs["status"])
        found = found.reindex(self.experiments, fill_value=0)
        found[COMPLETE] = found.reindex(columns=list(DONE), fill_value=0).sum(axis=1)
        return found.reindex(columns=list(SHOWN), fill_value=0)

    def show(self, console: Console, estimates: dict[str, Estimate], processes: int) -> None:
        """`estimates` has one for the folder of every missing run."""
        table = Table(title="What is done and what is missing", title_justify="left")
        for name in ("experiment", *SHOWN, "time", "memory", "disk"):
            table.add_column(name, justify="left" if name == "experiment" else "right")
        counts, to_do = self.counts, self.to_do
        for experiment, numbers in counts.iterrows():
            folders = to_do.loc[to_do["experiment"] == experiment, "folder"]
            own = [estimates[folder] for folder in folders if folder in estimates]
            shown = [str(number) if number else "" for number in numbers]
            table.add_row(str(experiment), *shown, *_words(own, processes))
        total = counts.sum()
        console.print(table)
        words = [f"{total[COMPLETE]} runs done, {len(to_do)} to do"]
        if estimates:
            time, memory, disk = _words(list(estimates.values()), processes)
            words.append(
                f"about {time} with {processes} at a time, {memory} of memory, {disk} of disk"
            )
        if total[REFUSED]:
            words.append(f"{total[REFUSED]} refused")
        unknown = sum(not estimate.known for estimate in estimates.values())
        if unknown:
            words.append(f"{unknown} runs could not be calibrated and are not in these numbers")
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

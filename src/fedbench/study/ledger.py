"""What is done and what is missing of the planned studies, before anything runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console
from rich.table import Table

from fedbench.runs import RunFolder
from fedbench.study.calibrate import Estimate
from fedbench.study.execute import FAILURE
from fedbench.study.experiment import load
from fedbench.study.plan import Job, Plan
from fedbench.study.runs import DIVERGED, FAILED, FINISHED, MISSING, REFUSED, RUNNING, Study, StudyCell, StudyRun

DONE = (FINISHED, DIVERGED)


def status_of(job: Job, results: Path) -> StudyRun:
    """A run as its folder shows it."""
    if job.problem:
        return StudyRun(job.seed, None, REFUSED, job.problem)
    folder = RunFolder(results / job.folder)
    summary = folder.finished()
    if summary is not None:
        return StudyRun(job.seed, folder.path, DIVERGED if summary["status"] == "diverged" else FINISHED)
    if _is_locked(folder.path):
        return StudyRun(job.seed, folder.path, RUNNING)
    failure = folder.path / FAILURE
    if failure.is_file():
        return StudyRun(job.seed, folder.path, FAILED, failure.read_text(errors="replace"))
    return StudyRun(job.seed, folder.path, MISSING)


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


def study_of(plan: Plan, results: Path) -> Study:
    """The experiment of a plan with its runs, as far as there are any."""
    cells = [StudyCell(planned.cell, [status_of(job, results) for job in planned.jobs]) for planned in plan.cells]
    return Study(load(plan.experiment), plan.scale, cells)


@dataclass
class Line:
    """An experiment in the ledger. A run that an experiment above has as well is counted there, as shared here."""

    experiment: str
    counts: Counter[str]
    shared: int
    missing: list[Job]


class Ledger:
    def __init__(self, plans: list[Plan], results: Path):
        self.lines: list[Line] = []
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
                counts[status] += 1
                if status in (MISSING, FAILED):
                    missing.append(job)
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
                line.experiment, *(str(number) if number else "" for number in numbers), *_words(own, processes)
            )
            total.update({"done": numbers[0], **{name: counts[name] for name in (MISSING, FAILED, REFUSED)}})
        console.print(table)
        words = [f"{total['done']} runs done, {len(self.missing)} to do"]
        if estimates:
            time, memory, disk = _words(list(estimates.values()), processes)
            words.append(f"about {time} with {processes} at a time, {memory} of memory, {disk} of disk")
        if total[REFUSED]:
            words.append(f"{total[REFUSED]} refused")
        console.print("; ".join(words))


def _words(estimates: list[Estimate], processes: int) -> tuple[str, str, str]:
    if not estimates:
        return "", "", ""
    seconds = sum(estimate.seconds for estimate in estimates) / min(processes, len(estimates))
    memory = sum(sorted((estimate.memory for estimate in estimates), reverse=True)[:processes])
    return duration(seconds), size(memory), size(sum(estimate.disk for estimate in estimates))


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

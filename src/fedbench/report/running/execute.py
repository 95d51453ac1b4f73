"""Runs side by side: one process works on one run at a time, and what goes wrong in it stays
there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from fedbench import train
from fedbench.config.schema import Config
from fedbench.core.errors import BadInput, MachineFault
from fedbench.core.files import write_atomically
from fedbench.parallel.failures import WorkerFailure
from fedbench.report.running.plan import Job, compose_config, without_values
from fedbench.report.running.pool import Died, Ending, Pool

FAILURE = "failure.txt"  # in a run's folder: why its last attempt ended


@dataclass
class Outcome:
    job: Job
    status: str  # finished, failed, interrupted
    seconds: float
    problem: str = ""


@dataclass
class Executor:
    """`run(jobs)` yields an outcome a job, in the order in which they end.

    With GPUs, each process sees one of them.
    """

    results: Path
    processes: int  # runs at a time
    ranks: int = 1  # processes of a run
    words: Sequence[str] = ()  # overrides of every run

    def __post_init__(self) -> None:
        self.pool = Pool(self.attempt, self.processes, one_gpu=True)

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for ending in self.pool.run(jobs):
            outcome = _outcome(ending)
            failure = self.results / outcome.job.folder / FAILURE
            if outcome.status == "failed":
                write_atomically(failure, outcome.problem)
            elif outcome.status == "finished":
                # An interrupted attempt has not shown that the failure is gone.
                failure.unlink(missing_ok=True)
            yield outcome

    def attempt(self, job: Job) -> str:
        """In a process of the pool: run it; why it failed, or nothing."""
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            _write_to(log)
            try:
                train.run(_configuration(job, self.results, self.ranks, self.words))
                return ""
            except (BadInput, MachineFault, WorkerFailure) as error:
                problem = f"{error}\n"
            except Exception:
                problem = traceback.format_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            log.seek(0)
            problem = f"fedbench {' '.join(job.words)}\n\n{problem}\nIts output:\n{log.read()}"
            return without_values(problem, _together(job.words, self.words))


def _outcome(ending: Ending[Job, str]) -> Outcome:
    error, problem = ending.error, ending.value or ""
    if isinstance(error, KeyboardInterrupt):
        return Outcome(ending.task, "interrupted", ending.seconds)
    if isinstance(error, Died):
        problem = f"the process of this run {error}\n"
    elif error is not None:
        problem = "".join(traceback.format_exception(error))
    return Outcome(ending.task, "failed" if problem else "finished", ending.seconds, problem)


def _write_to(log: TextIO) -> None:
    """Have all that this process prints from now on go to a file."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):  # none at all, or one in memory
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    for descriptor in (1, 2):
        os.dup2(log.fileno(), descriptor)


def _configuration(job: Job, results: Path, ranks: int, words: Sequence[str]) -> Config:
    if not job.config or words:
        more = [*words, f"results={results}", f"runtime.workers={ranks}"]
        if "logger=wandb" in words and not any("logger.group=" in word for word in words):
            # W&B shows the runs as one group; where a run is shared, that of the first.
            more.append(job.words[0].replace("experiment=", "logger.group="))
        return compose_config(_together(job.words, more))
    config: Config = pickle.loads(job.config)  # it comes from the process that started this one
    scalars = config.scalars
    return replace(
        config, scalars=replace(scalars, runtime=replace(scalars.runtime, workers=ranks))
    )


def _together(words: Sequence[str], later: Sequence[str]) -> list[str]:
    """Overrides of which the later ones win: Hydra takes no group twice."""
    return list({word.partition("=")[0]: word for word in [*words, *later]}.values())

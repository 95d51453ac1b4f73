"""Runs side by side: one process works on one run at a time, and what goes wrong in it stays
there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TextIO

import torch.multiprocessing as multiprocessing

from fedbench import train
from fedbench.config.schema import Config
from fedbench.core.errors import BadInput, MachineFault
from fedbench.core.files import write_atomically
from fedbench.parallel.devices import gpus, see_one
from fedbench.parallel.failures import WorkerFailure
from fedbench.report.plan import Job, compose_config, without_values

FAILURE = "failure.txt"  # in a run's folder: why its last attempt ended
FORK = multiprocessing.get_context("fork")  # inherits torch and the composed configurations
STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Outcome:
    job: Job
    status: str  # finished, failed, interrupted
    seconds: float
    problem: str = ""


@dataclass
class _Worker:
    number: int
    process: BaseProcess
    pipe: Connection
    job: Job | None = None
    started: float = 0.0


class Executor:
    """`run(jobs)` yields an outcome a job, in the order in which they end.

    With GPUs, each process sees one of them.
    """

    def __init__(
        self, results: Path, processes: int, ranks: int = 1, words: Sequence[str] = ()
    ) -> None:
        self.results = results
        self.processes = processes  # runs at a time
        self.ranks = ranks  # processes of a run
        self.words = words  # overrides of every run
        self.workers: list[_Worker] = []
        self.stopping = False

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        waiting = list(reversed(jobs))
        previous = {number: signal.signal(number, lambda *_: self.stop()) for number in STOPPING}
        try:
            while waiting or any(worker.job for worker in self.workers):
                self._hand_out(waiting)
                yield from self._collect()
                if self.stopping:
                    waiting.clear()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            for worker in self.workers:
                worker.pipe.close()
                if worker.job:
                    worker.process.kill()
                worker.process.join()
            self.workers.clear()

    def stop(self) -> None:
        """No new runs; those under way stop after their round. Asked again: at once."""
        for worker in self.workers:
            worker.process.kill() if self.stopping else worker.process.terminate()
        self.stopping = True

    def _hand_out(self, waiting: list[Job]) -> None:
        while waiting and not self.stopping:
            idle = next((worker for worker in self.workers if worker.job is None), None)
            if idle is None and len(self.workers) == self.processes:
                return
            worker = idle or self._start()
            worker.job, worker.started = waiting.pop(), time.monotonic()
            with contextlib.suppress(
                ConnectionError
            ):  # it died while idle, which is noticed when we listen to it
                worker.pipe.send(worker.job)

    def _start(self) -> _Worker:
        ours, theirs = FORK.Pipe()
        others = [worker.pipe for worker in self.workers]
        taken = [worker.number for worker in self.workers]
        number = next(free for free in range(self.processes) if free not in taken)
        arguments = (number, theirs, [ours, *others], self.results, self.ranks, self.words)
        process = FORK.Process(target=_work, args=arguments)
        signal.pthread_sigmask(
            signal.SIG_BLOCK, STOPPING
        )  # until the worker has handlers of its own
        process.start()
        self.workers.append(_Worker(number, process, ours))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        theirs.close()
        return self.workers[-1]

    def _collect(self) -> Iterator[Outcome]:
        busy = [(worker, worker.job) for worker in self.workers if worker.job is not None]
        ready = wait([worker.pipe for worker, _ in busy], timeout=1.0)
        for worker, job in [one for one in busy if one[0].pipe in ready]:
            seconds = time.monotonic() - worker.started
            try:
                status, problem = worker.pipe.recv()
            except (EOFError, ConnectionError):
                # The process died: of a signal, mostly for want of memory.
                worker.process.join()
                worker.pipe.close()
                self.workers.remove(worker)
                status, problem = self._death(worker.process.exitcode)
            worker.job = None
            failure = self.results / job.folder / FAILURE
            if status == "failed":
                write_atomically(failure, problem)
            elif status == "finished":
                # An interrupted attempt has not shown that the failure is gone.
                failure.unlink(missing_ok=True)
            yield Outcome(job, status, seconds, problem)

    def _death(self, code: int | None) -> tuple[str, str]:
        if self.stopping:
            return "interrupted", ""
        name = signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
        hint = "; the kernel does that when memory runs out" if name == "SIGKILL" else ""
        return "failed", f"the process of this run died of {name}{hint}\n"


def _work(
    number: int,
    pipe: Connection,
    others: list[Connection],
    results: Path,
    ranks: int,
    words: Sequence[str],
) -> None:
    """A worker: runs what comes through the pipe until it is closed."""
    if len(gpus()):
        see_one(number)
    for other in others:
        other.close()  # else this end would keep a dead parent's pipes open
    os.setpgid(0, 0)  # Ctrl-C in a terminal goes to the parent alone, which passes it on
    request = _Request()
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        for descriptor in {1, 2, _descriptor(sys.stdout), _descriptor(sys.stderr)}:
            if descriptor is not None:
                os.dup2(log.fileno(), descriptor)
        with contextlib.suppress(
            EOFError, ConnectionError
        ):  # the parent has closed its end, or is no more
            while True:
                job: Job = pipe.recv()
                log.seek(0)
                log.truncate()
                status, problem = _attempt(
                    partial(_configuration, job, results, ranks, words), request
                )
                sys.stdout.flush()
                sys.stderr.flush()
                if status == "failed":
                    log.seek(0)
                    problem = (
                        f"fedbench {' '.join(job.words)}\n\n{problem}\nIts output:\n{log.read()}"
                    )
                    problem = without_values(problem, _together(job.words, words))
                pipe.send((status, problem))


class _Request:
    """To stop a worker: remembered between runs, obeyed at once while one is prepared, after the
    round in training.
    """

    def __init__(self) -> None:
        self.working = self.made = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._handle)
        # Should the parent die, the kernel asks.
        multiprocessing._prctl_pr_set_pdeathsig(signal.SIGTERM)  # type: ignore[attr-defined]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.made = True
        self.obey()

    def obey(self) -> None:
        if self.made and self.working:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        self.working = True
        self.obey()

    def __exit__(self, *exception: object) -> None:
        self.working = False


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (AttributeError, OSError):  # none at all, or one in memory
        return None


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


def _attempt(configuration: Callable[[], Config], request: _Request) -> tuple[str, str]:
    try:
        with request:
            train.run(configuration())
        return "finished", ""
    except KeyboardInterrupt:
        return "interrupted", ""
    except (BadInput, MachineFault, WorkerFailure) as error:
        return "failed", f"{error}\n"
    except Exception:
        return "failed", traceback.format_exc()

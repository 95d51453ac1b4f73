"""How long, how much memory and how much disk: from one round of one client, timed here, for each
kind of work.
"""

from __future__ import annotations

import json
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedbench.config.schema import Config
from fedbench.core.files import write_atomically
from fedbench.core.machine import peak_memory
from fedbench.parallel.group import Group
from fedbench.parallel.processes import configure_process
from fedbench.report.running.plan import Job, compose_config
from fedbench.report.running.pool import Pool
from fedbench.train import assemble, prepare

TEST_EXAMPLES = 500  # scored to find out what an evaluation takes
STEPS = 3  # of the calibrated round
START = 0.3  # seconds to compose, check and load, and to write the final files
BYTES_A_PARAMETER = 4


@dataclass(frozen=True)
class Estimate:
    seconds: float
    memory: float  # bytes
    disk: float
    known: bool = True  # whether a round could be timed


@dataclass(frozen=True)
class Round:
    """What was measured."""

    seconds_a_gradient: float
    seconds_a_test: float  # example
    memory: float
    parameters: int


UNKNOWN = Round(0.0, 0.0, 0.0, 0)


def estimate_all(
    jobs: Sequence[Job], results: Path, told: Callable[[int, int], None]
) -> dict[str, Estimate]:
    """For the folder of every job. Measured rounds are kept in
    <results>/studies/calibration.json.
    """
    file = results / "studies" / "calibration.json"
    known = _kept(file)
    new = {job.work["kind"]: job for job in reversed(jobs) if job.work["kind"] not in known}
    pool = Pool(partial(_measure, results), processes=1, fresh=True)
    for number, ending in enumerate(pool.run(new.values()), start=1):
        # A failure here is none: the run itself will fail, too, and say why.
        known[ending.task.work["kind"]] = ending.value or UNKNOWN
        told(number, len(new))
    if pool.stopping:
        raise KeyboardInterrupt
    if new:
        succeeded = {
            kind: asdict(measured) for kind, measured in known.items() if measured.parameters
        }
        write_atomically(file, json.dumps(succeeded, indent=1) + "\n")
    return {job.folder: _estimate(job.work, known[job.work["kind"]]) for job in jobs}


def _kept(file: Path) -> dict[str, Round]:
    try:
        return {kind: Round(**measured) for kind, measured in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):  # damaged: measured again
        return {}


def unpack(job: Job, results: Path) -> Config:
    if job.config:
        return pickle.loads(job.config)  # this program packed it, in this or a forked process
    return compose_config([*job.words, f"results={results}"])


def _measure(results: Path, job: Job) -> Round:
    """In a process of its own: its peak of memory is what is wanted."""
    config = unpack(job, results)
    scalars = config.scalars
    client = replace(scalars.client, steps=STEPS)
    # The second round is timed: the first one also pays for buffers and kernels that are made once.
    # On a GPU, steps are ordinary ones, because recording them takes longer than so few steps: runs
    # with recorded steps take less time than is estimated.
    fewer = replace(
        scalars,
        client=client,
        cohort=1,
        rounds=4,
        eval=replace(scalars.eval, every=4),
        runtime=replace(scalars.runtime, graph="off"),
    )
    configure_process(scalars.runtime.threads)
    parts = prepare(replace(config, scalars=fewer))
    data = parts.data
    parts.data = replace(
        data, test_x=data.test_x[:TEST_EXAMPLES], test_y=data.test_y[:TEST_EXAMPLES]
    )
    federation = assemble(Group(), parts)
    rounds = federation.rounds()
    next(rounds)
    gradients, started = federation.totals.gradients, time.perf_counter()
    next(rounds)
    seconds = time.perf_counter() - started
    done = federation.totals.gradients - gradients
    federation.evaluator.score()  # the first time pays for kernels, too
    started = time.perf_counter()
    federation.evaluator.score()
    scoring = time.perf_counter() - started
    return Round(
        seconds / max(done, 1),
        scoring / len(parts.data.test_y),
        peak_memory(),
        federation.model.size,
    )


def _estimate(work: dict[str, Any], measured: Round) -> Estimate:
    seconds = (
        START
        + work["gradients"] * measured.seconds_a_gradient
        + work["scored"] * measured.seconds_a_test
    )
    disk = work["disk"] + BYTES_A_PARAMETER * measured.parameters
    return Estimate(seconds, measured.memory, disk, known=measured.parameters > 0)

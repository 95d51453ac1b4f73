"""Which run folder belongs to which cell: every job of a study is composed and checked, nothing is
trained.

The plan of a study is kept in <results>/studies/<experiment>.<scale>.json: tables are built from
files alone.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedbench.config.hydra_errors import CONFIGURATION_ERRORS, explain
from fedbench.config.schema import Config
from fedbench.config.validate import check, config_folder
from fedbench.core.errors import BadInput, MissingData
from fedbench.core.files import write_atomically
from fedbench.data.prepared import data_root
from fedbench.parallel.failures import MachineFault
from fedbench.study.experiment import Cell, Experiment

STAND_IN = "data.source=synthetic"
KEPT = ("words", "seed", "folder", "problem", "broken", "work")  # of a job


@dataclass
class Job:
    """One run of a study: its words on the command line and, when it can be run, its folder."""

    words: list[str]
    seed: int
    folder: str = ""  # relative to the results folder
    problem: str = ""  # why it cannot be run
    work: dict[str, Any] = field(default_factory=dict)  # how much there is to do, for the estimate
    config: bytes = field(
        default=b"", repr=False
    )  # the checked configuration, pickled; while planning and running
    broken: bool = False  # not refused: the program failed on it, and `problem` is the traceback


@dataclass
class PlannedCell:
    cell: Cell
    jobs: list[Job]


@dataclass
class Plan:
    experiment: str
    scale: str
    cells: list[PlannedCell]

    @property
    def jobs(self) -> list[Job]:
        return [job for planned in self.cells for job in planned.jobs]

    def file(self, results: Path) -> Path:
        return plan_file(results, self.experiment, self.scale)

    def write(self, results: Path, stamp: str) -> None:
        cells = [
            {
                "labels": planned.cell.labels,
                "overrides": planned.cell.overrides,
                "runs": [{key: getattr(job, key) for key in KEPT} for job in planned.jobs],
            }
            for planned in self.cells
        ]
        content = {
            "experiment": self.experiment,
            "scale": self.scale,
            "stamp": stamp,
            "cells": cells,
        }
        write_atomically(self.file(results), json.dumps(content, indent=1) + "\n")


def plan_file(results: Path, experiment: str, scale: str) -> Path:
    return results / "studies" / f"{experiment}.{scale}.json"


def read_plan(results: Path, experiment: str, scale: str) -> tuple[Plan, str] | None:
    """A plan that was kept, and the stamp under which it was made; None when there is none that can
    be read.
    """
    try:
        content = json.loads(plan_file(results, experiment, scale).read_text())
        if (content["experiment"], content["scale"]) != (experiment, scale):
            return None  # somebody's copy of another one
        cells = []
        for kept in content["cells"]:
            jobs = [Job(**{key: run[key] for key in KEPT}) for run in kept["runs"]]
            seeds = tuple(job.seed for job in jobs)
            cells.append(
                PlannedCell(Cell(dict(kept["labels"]), tuple(kept["overrides"]), seeds), jobs)
            )
        return Plan(experiment, scale, cells), content["stamp"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stamp() -> str:
    """Changes with the configuration files, the program, the device and the datasets at hand: with
    any run's id.
    """
    from fedbench.train import pick_device

    digest = hashlib.blake2b(pick_device("auto").encode(), digest_size=8)
    for folder, suffixes in (
        (config_folder(), (".yaml", ".csv")),
        (Path(__file__).parents[1], (".py",)),
    ):
        for file in sorted(folder.rglob("*")):
            if file.suffix in suffixes:
                digest.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    root = data_root(None)
    for file in sorted(root.glob("*/*")) if root.is_dir() else []:
        facts = file.stat()
        digest.update(f"{file.relative_to(root)} {facts.st_size} {facts.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def make_plans(
    studies: Sequence[tuple[Experiment, str]],
    results: Path,
    processes: int,
    told: Callable[[int, int], None],
) -> list[Plan]:
    """The plans of several studies. Those that were kept and still hold are taken as they are.

    What could not be run is tried again: weights may have come meanwhile, or the machine may have
    been short of memory.
    """
    now = stamp()
    plans: list[Plan] = []
    for experiment, scale in studies:
        kept = read_plan(results, experiment.name, scale)
        if kept is not None and kept[1] == now:
            plans.append(kept[0])
        else:
            cells = experiment.cells(scale)
            jobs = [
                [Job(experiment.job(cell, seed, scale), seed) for seed in cell.seeds]
                for cell in cells
            ]
            plans.append(Plan(experiment.name, scale, list(map(PlannedCell, cells, jobs))))
    alike: dict[
        tuple[str, ...], list[Job]
    ] = {}  # composed once; Hydra takes a third of a second for each
    for (experiment, _), plan in zip(studies, plans, strict=True):
        settings = experiment.settings()
        for job in plan.jobs:
            if not job.folder:
                alike.setdefault((settings, *job.words[1:]), []).append(job)
    for place, done in enumerate(_settle([jobs[0] for jobs in alike.values()], results, processes)):
        for job in list(alike.values())[place]:
            job.words = [job.words[0], *done.words[1:]]
            for key in ("folder", "problem", "broken", "work", "config"):
                setattr(job, key, getattr(done, key))
        told(place + 1, len(alike))
    for plan in plans:
        plan.write(results, now)
    return plans


def _settle(jobs: list[Job], results: Path, processes: int) -> Iterator[Job]:
    """Compose the jobs, in as many processes as there are cores."""
    tasks = [(job.words, job.seed, str(results)) for job in jobs]
    if processes == 1 or len(tasks) < 4:
        yield from map(settle_job, tasks)
        return
    with pool_of(processes) as pool:
        yield from pool.map(settle_job, tasks, chunksize=4)


@contextmanager
def pool_of(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Forked workers that leave Ctrl-C and SIGTERM to the parent; one that is killed ends the
    command with its reason.

    What is loaded by then is frozen: a test of significance collects garbage every time, in all of
    torch's objects.
    """
    fork = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(processes, mp_context=fork, initializer=_enter_pool)
    try:
        yield pool
    except BrokenProcessPool as error:
        words = (
            "a process was ended by the system (it does that when memory runs out); the same"
            " command goes on"
        )
        raise MachineFault(words) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _enter_pool() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()


def settle_job(task: tuple[list[str], int, str]) -> Job:
    """Find a job's folder, or why it cannot be run. On `laptop` a dataset that is not at hand is
    stood in for.
    """
    words, seed, results = task
    try:
        try:
            return _settled(words, seed, results)
        except MissingData:
            if "scale=laptop" not in words:
                raise
            return _settled([*words, STAND_IN], seed, results)
    except BadInput as error:
        return Job(words, seed, problem=str(error))
    except (ValueError, *CONFIGURATION_ERRORS) as error:  # Hydra raises ValueError for `group=null`
        return Job(words, seed, problem=explain(error, words))
    except Exception:  # a fault of the program stays with its cell, too
        return Job(words, seed, problem=traceback.format_exc(), broken=True)


def _settled(words: list[str], seed: int, results: str) -> Job:
    from fedbench.study.calibrate import work_of
    from fedbench.train import prepare

    config = compose_config([*words, f"results={results}"])
    packed = pickle.dumps(config)  # now: building binds the algorithm's pieces to a whole network
    folder = prepare(config).folder.path
    return Job(words, seed, os.path.relpath(folder, results), work=work_of(config), config=packed)


def compose_config(words: Sequence[str]) -> Config:
    """What `fedbench <words>` would run."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        composed = compose("config", overrides=list(words), return_hydra_config=True)
    choices: dict[str, Any] = dict(composed.hydra.runtime.choices)
    return check(
        OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]), choices
    )

"""Which run folder belongs to which cell: every job of a study is composed and checked, nothing is
trained.

A plan is a table with a row a run: the axes of the experiment, the words of the cell, and what is
known of the job. It is kept in <results>/studies/<experiment>.<scale>.json: tables are built from
files alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shlex
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig, OmegaConf

import fedbench
from fedbench import train
from fedbench.config.environment import Values, hidden_by_name
from fedbench.config.hydra_errors import CONFIGURATION_ERRORS, explain
from fedbench.config.schema import Config
from fedbench.config.validate import check, config_folder, with_algorithm
from fedbench.core.errors import BadInput, MissingData, require_known
from fedbench.core.files import write_atomically
from fedbench.data.dataset import Dataset, DatasetSettings
from fedbench.data.prepared import data_root
from fedbench.parallel.devices import gpus
from fedbench.report.experiments.experiment import (
    SEARCH_PATH,
    Cell,
    Experiment,
    compose_tree,
    files_without_studies,
)
from fedbench.report.experiments.spec import SCALES
from fedbench.report.running.pool import Pool
from fedbench.report.running.work import work_of
from fedbench.runs.archive import ARCHIVE, has_settings
from fedbench.runs.folder import RunFolder
from fedbench.runs.identity import identity, label, run_id
from fedbench.runs.prepared import PreparedRun


class WrongWords(BadInput):
    """The words of a job have a mistake, a misspelt key say: no machine can run it."""


@dataclass
class Job:
    """One run of a study: its words on the command line and, when it can be run, its folder."""

    words: list[str]
    seed: int
    folder: str = ""  # relative to the results folder
    problem: str = ""  # why it cannot be run
    work: dict[str, Any] = field(default_factory=dict)  # how much there is to do, for the estimate
    # The checked configuration, pickled; while planning and running.
    config: bytes = field(default=b"", repr=False)
    broken: bool = False  # not refused: the program failed on it, and `problem` is the traceback
    instead: str = ""  # why it is the run of another algorithm than its words ask for


OF_JOBS = tuple(one.name for one in fields(Job))  # columns of a plan beside the axes
KEPT = tuple(name for name in OF_JOBS if name != "config")


@dataclass
class Plan:
    """The jobs of a study at a scale, as a table with a row a run."""

    experiment: str
    scale: str
    runs: pd.DataFrame  # the axes, `overrides` (the words of the cell), and the fields of a job
    folders: tuple[str, ...] = ()  # the user's, one of which has the experiment's file
    stamp: str = ""  # under which it was kept
    remarks: list[str] = field(default_factory=list)  # what its trials chose
    trials: bool = False  # by which settings are chosen, kept in a file of their own

    @classmethod
    def of(
        cls, experiment: Experiment, scale: str, cells: Sequence[Cell], trials: bool = False
    ) -> Plan:
        """Of jobs that are still to be settled."""
        rows = [
            {
                **cell.labels,
                "overrides": shlex.join(cell.overrides),
                **vars(Job(experiment.job(cell, seed, scale), seed)),
            }
            for cell in cells
            for seed in cell.seeds
        ]
        columns = None if rows else [*experiment.axes, "overrides", *OF_JOBS]
        runs = pd.DataFrame(rows, columns=columns)
        return cls(experiment.name, scale, runs, experiment.folders, trials=trials)

    @classmethod
    def of_jobs(cls, experiment: Experiment, scale: str, jobs: Sequence[Job]) -> Plan:
        """Of jobs that are not the cells of the study."""
        runs = pd.DataFrame([vars(job) for job in jobs], columns=list(OF_JOBS))
        return cls(experiment.name, scale, runs.assign(overrides=""), experiment.folders)

    @classmethod
    def read(cls, file: Path) -> Plan | None:
        """A plan that was kept; None if it cannot be read."""
        try:
            content = json.loads(file.read_text())
            runs = pd.DataFrame(content["runs"], columns=list(content["columns"]))
            if runs[["overrides", *KEPT]].isna().any(axis=None):
                return None
            others = {name: content[name] for name in ("stamp", "remarks", "trials")}
            names, folders = (content["experiment"], content["scale"]), tuple(content["folders"])
            return cls(*names, runs.assign(config=b""), folders, **others)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, results: Path, stamp: str) -> None:
        kept = self.runs.drop(columns="config")
        content = {**vars(self), "stamp": stamp}
        content |= {"columns": list(kept), "runs": kept.to_dict("records")}
        write_atomically(self.file(results), json.dumps(content, indent=1) + "\n")

    def is_of(self, experiment: Experiment) -> bool:
        """Whether the experiment's file still has the axes and the labels of the runs, and no
        fewer axes: several cells would become one.
        """
        own = set(self.runs) - {"overrides", *OF_JOBS}
        return own == set(experiment.axes) and all(
            self.runs[axis].isin(list(labels)).all() for axis, labels in experiment.axes.items()
        )

    def file(self, results: Path) -> Path:
        return plan_file(results, self.experiment, self.scale, self.trials)

    @property
    def jobs(self) -> list[Job]:
        return jobs_of(self.runs)

    def update(self, jobs: Sequence[Job]) -> None:
        """Take what became known of the jobs, in their order."""
        known = pd.DataFrame([vars(job) for job in jobs], self.runs.index, list(OF_JOBS))
        self.runs = self.runs.assign(**known)


def jobs_of(runs: pd.DataFrame) -> list[Job]:
    """The rows of a plan, or of several, as what processes are given."""
    return [Job(**row) for row in runs[list(OF_JOBS)].to_dict("records")]


def plan_file(results: Path, experiment: str, scale: str, trials: bool = False) -> Path:
    return results / "studies" / f"{experiment}.{scale}{'.trials' if trials else ''}.json"


def read_plan(results: Path, experiment: str, scale: str) -> Plan | None:
    """A plan that was kept; None when there is none that can be read."""
    plan = Plan.read(plan_file(results, experiment, scale))
    if plan is None or (plan.experiment, plan.scale) != (experiment, scale):
        return None  # the last: somebody's copy of another one
    return plan


def stamp(folders: Sequence[str] = ()) -> str:
    """Changes with the configuration files, the program, the device and the datasets at hand: with
    any run's id. `folders`: the user's own of configuration.
    """
    device = "cuda" if len(gpus()) else "cpu"
    digest = hashlib.blake2b(device.encode(), digest_size=8)
    places = [(config_folder(), (".yaml", ".csv")), (Path(fedbench.__file__).parent, (".py",))]
    places += [(Path(folder), (".yaml", ".csv", ".py")) for folder in folders]
    for folder, suffixes in places:
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
    stamps = {folders: stamp(folders) for folders in {study.folders for study, _ in studies}}
    plans: list[Plan] = []
    for experiment, scale in studies:
        kept = read_plan(results, experiment.name, scale)
        current = stamps[experiment.folders]
        if kept is None or kept.stamp != current or not fits(kept, experiment):
            kept = _unplanned(experiment, scale)
        plans.append(kept)
    experiments = [experiment for experiment, _ in studies]
    settle(list(zip(experiments, plans, strict=True)), results, processes, told)
    for experiment, plan in zip(experiments, plans, strict=True):
        if experiment.is_own:  # the files of a paper share what they say of their values
            _check_provenance(experiment, plan)
        plan.write(results, stamps[plan.folders])
    return plans


def _check_provenance(experiment: Experiment, plan: Plan) -> None:
    """Refuse a key that no run has. Runs without a configuration were planned before, or cannot be
    run.
    """
    configs: list[Config] = [pickle.loads(packed) for packed in plan.runs["config"] if packed]
    if len(configs) == len(plan.runs):
        known = {key for config in configs for key in _keys(config.tree)}
        known |= {f"choices.{group}" for config in configs for group in config.names}
        for key in experiment.provenance:
            require_known(f"experiment={experiment.name}: study.provenance", key, known)


def _keys(tree: dict[str, Any], section: str = "") -> Iterator[str]:
    """Of every section and setting: client, client.lr."""
    for name, value in tree.items():
        yield f"{section}{name}"
        if isinstance(value, dict):
            yield from _keys(value, f"{section}{name}.")


def fits(plan: Plan, experiment: Experiment) -> bool:
    """Whether a plan has the cells and seeds of the experiment, which trials may have changed."""
    cells = experiment.cells(plan.scale)
    wanted = [(shlex.join(cell.overrides), seed) for cell in cells for seed in cell.seeds]
    return list(zip(plan.runs["overrides"], plan.runs["seed"], strict=True)) == wanted


def _unplanned(experiment: Experiment, scale: str) -> Plan:
    plan = Plan.of(experiment, scale, experiment.cells(scale))
    plan.remarks = list(experiment.remarks_on_trials)
    return plan


def settle(
    planned: Sequence[tuple[Experiment, Plan]],
    results: Path,
    processes: int,
    told: Callable[[int, int], None] = lambda done, wanted: None,
) -> None:
    """Find the folders of all jobs that have none, or why they cannot be run.

    Hydra takes a tenth of a second for each, so jobs that differ in nothing but the name of their
    experiment are composed once, and so are those that differ in their seeds alone.
    """
    _loaded.cache_clear()  # the datasets at hand may be others than when it was filled
    alike: dict[tuple[str, ...], dict[int, list[Job]]] = {}
    jobs_by_plan = [plan.jobs for _, plan in planned]
    for (experiment, _), jobs in zip(planned, jobs_by_plan, strict=True):
        settings = experiment.settings()
        for job in jobs:
            if not job.folder:
                words = [word for word in job.words[1:] if word != f"seed={job.seed}"]
                alike.setdefault((settings, *words), {}).setdefault(job.seed, []).append(job)
    groups = [alike[key] for key in sorted(alike, key=_dataset)]
    tasks = [([jobs[0] for jobs in seeds.values()], str(results)) for seeds in groups]
    with files_without_studies() as files:
        for place, done in enumerate(_in_processes(tasks, files, processes)):
            for own in done:
                for job in groups[place][own.seed]:
                    job.words = [job.words[0], *own.words[1:]]
                    for key in ("folder", "problem", "broken", "work", "instead", "config"):
                        setattr(job, key, getattr(own, key))
            told(place + 1, len(alike))
    for (_, plan), jobs in zip(planned, jobs_by_plan, strict=True):
        plan.update(jobs)


def _dataset(words: tuple[str, ...]) -> str:
    """What the words say of the dataset: jobs that share one are planned one after another."""
    return " ".join(word for word in words[1:] if word.startswith("data"))


def _in_processes(
    tasks: list[tuple[list[Job], str]], files: Path, processes: int
) -> Iterator[list[Job]]:
    work = partial(settle_jobs, files=files)
    if processes == 1 or len(tasks) == 1:
        return map(work, tasks)
    return Pool(work, processes).values(tasks)


def settle_jobs(task: tuple[list[Job], str], files: Path | None = None) -> list[Job]:
    """The folders of jobs that differ in their seeds alone, or why they cannot be run.

    `files`: of configuration, in place of the program's. BadInput is raised where the words are
    wrong, which they are on every machine.
    """
    (first, *others), results = task
    try:
        settled, prepared = settle_job(first, results, files)
    except MissingData as error:
        return [Job(job.words, job.seed, problem=str(error)) for job in (first, *others)]
    if prepared is not None and _seeds_are_alike(first, prepared):
        return [settled, *(_with_seed(settled, prepared, job) for job in others)]
    return [settled, *(settle_job(job, results, files)[0] for job in others)]


def settle_job(job: Job, results: str, files: Path | None = None) -> tuple[Job, PreparedRun | None]:
    """The job with its folder, or with the reason why it cannot be run.

    MissingData is raised, because every seed lacks them, and so is BadInput of wrong words.
    """
    words, seed = job.words, job.seed
    try:
        return _settled(words, seed, results, files)
    except (MissingData, WrongWords):
        raise
    except Exception:  # a fault of the program stays with its cell
        problem = without_values(traceback.format_exc(), words)
        return Job(words, seed, problem=problem, broken=True), None


def _settled(
    words: list[str], seed: int, results: str, files: Path | None
) -> tuple[Job, PreparedRun | None]:
    try:
        composed = compose_tree([*words, f"results={results}"], files)
        config = _checked(composed)
    except BadInput as error:
        raise _wrong(words, str(error)) from error
    except (ValueError, *CONFIGURATION_ERRORS) as error:  # Hydra raises ValueError for `group=null`
        raise _wrong(words, explain(error, words)) from error
    packed = pickle.dumps(config)  # now: the run's folder is noted in it
    try:
        prepared = train.prepare(config, _examples_of(config.data, config.scalars.seed))
    except MissingData as error:
        archived = _archived(words, config, Path(results))
        if archived is None:
            raise MissingData(_hidden(str(error), words, composed)) from error
        return Job(words, seed, archived, work=work_of(config)), None
    except BadInput as error:
        return Job(words, seed, problem=_hidden(str(error), words, composed)), None
    folder = os.path.relpath(prepared.folder.path, results)
    job = Job(words, seed, folder, work=work_of(config), config=packed, instead=prepared.instead)
    return job, prepared


def _wrong(words: list[str], reason: str) -> WrongWords:
    experiment, *others = [word for word in words if not word.startswith(("seed=", SEARCH_PATH))]
    told = ": ".join(part for part in (experiment, " ".join(others), reason) if part)
    return WrongWords(without_values(told, words))


def _archived(words: list[str], config: Config, results: Path) -> str | None:
    """The folder of an archived run with these words and settings: its data need not be here."""
    for plan in _plans_of(results / ARCHIVE, words[0].removeprefix("experiment=")):
        for job in (one for one in plan.jobs if one.words == words and one.folder):
            run = RunFolder(results / ARCHIVE / job.folder)
            # What is FedAvg by construction was run, and written, as FedAvg.
            if has_settings(run, config) or has_settings(run, with_algorithm(config, "fedavg")):
                return job.folder
    return None


@cache
def _plans_of(archive: Path, experiment: str) -> list[Plan]:
    files = [
        plan_file(archive, experiment, scale, trials)
        for scale in SCALES
        for trials in (False, True)
    ]
    plans = [Plan.read(file) for file in files]
    return [plan for plan in plans if plan is not None]


def _with_seed(like: Job, prepared: PreparedRun, job: Job) -> Job:
    """The job of another seed, whose id needs no network: a seed changes no algorithm."""
    config: Config = pickle.loads(like.config)  # packed here
    seed = job.seed
    if prepared.instead:  # by no seed's doing
        config = with_algorithm(config, prepared.config.names["algo"])
    config.scalars.seed = seed
    config = replace(
        config, tree={**config.tree, "seed": seed}, shown={**config.shown, "seed": seed}
    )
    fingerprint = _examples_of(config.data, seed).fingerprint()
    clients = len(prepared.split.client_indices)
    facts = (prepared.device, fingerprint, clients, prepared.kernels.name)
    tree = identity(config, prepared.algorithm, *facts)
    folder = f"runs/{label(config)}/{run_id(tree)}"
    own = [word for word in like.words if word != f"seed={like.seed}"]
    place = like.words.index(f"seed={like.seed}")
    words = [*own[:place], f"seed={seed}", *own[place:]]
    packed = pickle.dumps(config)
    return Job(words, seed, folder, work=like.work, config=packed, instead=like.instead)


def _seeds_are_alike(job: Job, prepared: PreparedRun) -> bool:
    """Whether another seed changes nothing of a run's identity but the seed and a drawn subset.

    With pooled data the test set follows from the partition.
    """
    pooled = getattr(prepared.config.data, "pool", True)  # unknown of a class of somebody's own
    return not pooled and not any("seed}" in word for word in job.words)


def _is_drawn(data: Any) -> bool:
    """Whether the examples of a dataset may depend on the seed: a part of them is drawn."""
    return getattr(data, "subset", True) is not None or getattr(data, "validation", 1) > 0


def _examples_of(data: Any, seed: int) -> Dataset:
    """What a run with this seed uses; where nothing is drawn that is the same for every seed."""
    return _loaded(pickle.dumps(data), seed if _is_drawn(data) else 0)


@lru_cache(maxsize=3)  # jobs come in the order of their datasets, most with three seeds
def _loaded(settings: bytes, seed: int) -> Dataset:
    unpacked: DatasetSettings = pickle.loads(settings)  # packed here
    return unpacked.for_run(seed)


def compose_config(words: Sequence[str]) -> Config:
    """What `fedbench <words>` would run."""
    return _checked(compose_tree(words))


def _checked(composed: DictConfig) -> Config:
    choices: dict[str, Any] = dict(composed.hydra.runtime.choices)
    return check(_of_the_job(composed), choices)


def without_values(text: str, words: Sequence[str]) -> str:
    """A text about `fedbench <words>` without values of the environment, which may be secrets."""
    try:
        composed = compose_tree(words)
    except (ValueError, *CONFIGURATION_ERRORS):  # then no file's values were used either
        return hidden_by_name(text, list(words))
    return _hidden(text, words, composed)


def _hidden(text: str, words: Sequence[str], composed: DictConfig) -> str:
    """The same, where what Hydra composed of the words is known."""
    return Values(_of_the_job(composed)).hidden(hidden_by_name(text, list(words)))


def _of_the_job(composed: DictConfig) -> DictConfig:
    return OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])

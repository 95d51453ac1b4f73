"""What Hydra documents works here: callbacks, env_set, folders, logging, variables of the
environment, searches.
"""

from __future__ import annotations

import builtins
import errno
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.config_store import ConfigStore
from hydra.experimental.callback import Callback
from omegaconf import OmegaConf
from support import faulty_dataset

from fedbench.cli import explain_failure
from fedbench.config import hydra_errors as messages
from fedbench.config.environment import Values, shown
from fedbench.report.running.plan import compose_config
from fedbench.report.running.work import work_of
from fedbench.runs import sweeps
from fedbench.runs.objective import objective

QUICK = (
    "rounds=2",
    "client.epochs=1",
    "partition.clients=3",
    "runtime.workers=1",
    "data.subset=60",
)
TOKEN = "token-that-nobody-may-see"
SCRATCH = "scratch-of-a-cluster"
SEARCH = (
    "-m",
    "hydra/sweeper=optuna",
    "hydra.sweeper.sampler.seed=0",
    "hydra.sweeper.n_jobs=1",
    "client.lr=interval(0.01,0.3)",
)
optuna = pytest.mark.skipif(
    importlib.util.find_spec("hydra_plugins.hydra_optuna_sweeper") is None,
    reason="hydra-optuna-sweeper is not installed",
)


class Noting(Callback):
    """A callback of somebody's own: a line for each of its calls, with a variable of the job."""

    def __init__(self, file: str) -> None:
        self.file = Path(file).absolute()

    def note(self, what: str) -> None:
        with open(self.file, "a") as file:
            file.write(f"{what} {os.environ.get('OF_THE_JOB')}\n")

    def on_job_start(self, config: Any, **others: Any) -> None:
        self.note("start")

    def on_job_end(self, config: Any, job_return: Any, **others: Any) -> None:
        self.note(f"end {job_return.status.name}")


def test_callbacks_and_variables_of_a_job(fedbench):
    callback = (
        f"+hydra.callbacks.own._target_={__name__}.Noting",
        "+hydra.callbacks.own.file=noted.txt",
    )
    run = fedbench(*QUICK, *callback, "+hydra.job.env_set.OF_THE_JOB=here")
    assert run.status == 0, run.err
    assert Path("noted.txt").read_text() == "start here\nend COMPLETED None\n"
    assert "OF_THE_JOB" not in os.environ


def test_folders_and_logging_of_a_run(fedbench):
    words = (
        "hydra.run.dir=mine/${now:%Y}",
        "hydra.output_subdir=.hydra",
        "hydra/job_logging=default",
    )
    run = fedbench(*QUICK, *words)
    assert run.status == 0, run.err
    (folder,) = Path("mine").iterdir()
    assert {file.name for file in (folder / ".hydra").iterdir()} == {
        "config.yaml",
        "hydra.yaml",
        "overrides.yaml",
    }
    assert (folder / "fedbench.log").exists()
    assert run.folder.parts[:2] == ("results", "runs")


@pytest.mark.parametrize(
    "words", [("algo=mine",), ("-m", "algo=mine", "seed=0,1"), ("-m", "algo=fedavg,mine")]
)
def test_a_configuration_that_may_not_be_read_is_named(fedbench, tmp_path, monkeypatch, words):
    """It is no folder of Hydra's that cannot be written."""
    file = tmp_path / "own" / "algo" / "mine.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")
    opened = builtins.open

    def refuse(name, *arguments, **keywords):
        if str(name) == str(file):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))
        return opened(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "open", refuse)  # the superuser may read everything
    run = fedbench("--config-dir", "own", *QUICK, *words)
    assert run.status == 2
    assert "fedbench: own/algo/mine.yaml: permission denied\n" in run.err
    assert "must be a folder" not in run.err


def test_folders_of_a_sweep(fedbench):
    words = (
        "-m",
        "seed=0,1",
        "hydra.sweep.dir=mine",
        "hydra.sweep.subdir=seed-${seed}",
        "hydra.output_subdir=.hydra",
    )
    run = fedbench(*QUICK, *words)
    assert run.status == 0, run.err
    assert len(list(Path("mine").glob("seed-[01]/.hydra/overrides.yaml"))) == 2
    found = [json.loads(Path(f"mine/{number}/outcome.json").read_text()) for number in (0, 1)]
    assert [(one["status"], one["words"][-1]) for one in found] == [(0, "seed=0"), (0, "seed=1")]
    assert (
        fedbench(*QUICK, "-m", "seed=0,-1", "hydra.sweep.dir=mine").status == 2
    )  # not as the earlier one there
    assert json.loads(Path("mine/1/outcome.json").read_text())["status"] == 2


def test_a_sweep_whose_jobs_have_working_directories_of_their_own(fedbench):
    """Relative results are below those directories; the table of the sweep finds the runs."""
    run = fedbench("-m", *QUICK, "seed=0,1", "hydra.job.chdir=true", "hydra.sweep.dir=mine")
    assert run.status == 0, run.err
    (table,) = Path("mine").glob("summary.csv")
    rows = [row.split(",") for row in table.read_text().splitlines()]
    assert [row[2] for row in rows] == ["status", "finished", "finished"]
    for number, row in enumerate(rows[1:]):
        assert row[-1].startswith(f"mine/{number}/results/runs/")
        stored = json.loads(Path(f"mine/{number}/outcome.json").read_text())
        assert Path(stored["run"]) == Path(row[-1]).absolute()


def test_nothing_but_the_runs_folder_by_default(fedbench):
    run = fedbench(*QUICK)
    assert run.status == 0, run.err
    assert [str(place) for place in Path().iterdir()] == ["results"]
    assert [place.name for place in Path("results").iterdir()] == ["runs"]


@pytest.fixture
def environment(monkeypatch):
    for name, value in {"MY_TOKEN": TOKEN, "SCRATCH": SCRATCH, "RATE": "0.05"}.items():
        monkeypatch.setenv(name, value)


def holding(folder: Path, value: str) -> list[str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 10
    return [str(file) for file in files if value.encode() in file.read_bytes()]


WORDS = (
    "data.root=${oc.env:SCRATCH}/data",
    "logger.group=${oc.env:MY_TOKEN}",
    "client.lr=${oc.env:RATE}",
)


def test_values_of_the_environment_are_used_and_shown_as_interpolations(
    fedbench, environment, tmp_path
):
    own = ("hydra.output_subdir=.hydra", "hydra.run.dir=mine", "hydra.job.env_copy=[MY_TOKEN]")
    run = fedbench(*QUICK, *WORDS[::2], *own)
    assert run.status == 0, run.err
    stored = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert stored["data"]["root"] == "${oc.env:SCRATCH}/data"
    assert stored["client"]["lr"] == "${oc.env:RATE}"
    plain = fedbench(*QUICK, "client.lr=0.05")
    assert plain.folder == run.folder  # it is the same run
    assert "finished already" in plain.out
    for value in (TOKEN, SCRATCH):
        assert holding(tmp_path, value) == []
        assert value not in run.out + run.err


def test_no_value_of_the_environment_is_in_a_sweep_or_in_wandb(fedbench, environment, tmp_path):
    """But for what W&B itself must know: its project, entity and group."""
    words = (*WORDS[::2], "logger.mode=offline", "hydra.job.env_copy=[MY_TOKEN]")
    run = fedbench("-m", *QUICK, *words, "seed=0,1", quiet=False)
    assert run.status == 0, run.err
    assert list(Path("results").glob("runs/*/*/wandb/offline-run-*/*.wandb"))
    assert list(Path("results").glob("sweeps/*/multirun.yaml"))
    for value in (TOKEN, SCRATCH):
        assert holding(tmp_path, value) == []
        assert value not in run.out + run.err


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("data=${oc.env:MY_TOKEN}", "data=${oc.env:MY_TOKEN}: choose from"),
        ("rounds=${oc.env:MY_TOKEN}", "rounds=${oc.env:MY_TOKEN}: must be an integer"),
        (
            "model.weights=${oc.env:MY_TOKEN}/x",
            "model.weights=${oc.env:MY_TOKEN}/x: no such file or directory",
        ),
    ],
)
def test_no_message_has_a_value_of_the_environment(fedbench, environment, word, told):
    run = fedbench(*QUICK, *word.split())
    assert run.status == 2
    assert run.err.startswith(f"fedbench: {told}")
    assert run.err.count("\n") == 1
    assert TOKEN not in run.out + run.err


@pytest.mark.parametrize("folder", ["/cluster/secret/", "/cluster//secret", "~/secret"])
def test_no_message_has_a_folder_of_the_environment(fedbench, monkeypatch, folder):
    """A path is shown without what it does not need, and with the user's home."""
    monkeypatch.setenv("HOME", "/home/of-a-user")
    monkeypatch.setenv("SCRATCH", folder)
    words = ("data=mnist", "data.source=real", "data.root=${oc.env:SCRATCH}")
    run = fedbench(*words, *QUICK)
    assert run.status == 2
    assert run.err.startswith("fedbench: data=mnist: not in ${oc.env:SCRATCH}")
    assert "secret" not in run.out + run.err


def test_no_quoted_value_has_one(monkeypatch):
    token = "a 'single', a \"double\" quote,\tand a \\"
    monkeypatch.setenv("MY_TOKEN", token)
    hidden = Values(OmegaConf.create({"a": "${oc.env:MY_TOKEN}"})).hidden
    assert hidden(f"KeyError: {token!r}") == "KeyError: '${oc.env:MY_TOKEN}'"


def test_no_traceback_has_one(fedbench, environment, tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_TOKEN", TOKEN)
    faulty_dataset.write(tmp_path / "own")
    run = fedbench(
        *QUICK, "--config-dir", "own", "data=faulty", "seed=1", "data.root=${oc.env:MY_TOKEN}"
    )
    assert run.status == 1
    assert "RuntimeError: planted ${oc.env:MY_TOKEN}" in run.err
    assert TOKEN not in run.out + run.err


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
@pytest.mark.parametrize("launcher", ["somewhere.Launcher", sweeps.BASIC])
def test_no_failure_of_a_launcher_or_sweeper_has_one(
    fedbench, environment, tmp_path, monkeypatch, capfd, error, launcher
):
    """Also where a file of configuration, and not the command line, names the variable."""
    presets = tmp_path / "own" / "preset"
    presets.mkdir(parents=True)
    preset = "# @package _global_\ndata: {root: '${oc.env:MY_TOKEN}'}\n"
    (presets / "mine.yaml").write_text(preset)
    fedbench("--config-dir", "own", "-m", "+preset=mine", *QUICK, "cohort=100")
    sweep = sweeps.SweepCallback.current
    monkeypatch.setattr(sweep, "launcher", launcher)
    explain_failure(error(f"cannot use {TOKEN}"), sweep, wants_traceback=False)
    told = capfd.readouterr().err
    assert "cannot use ${oc.env:MY_TOKEN}" in told
    assert TOKEN not in told


EXPERIMENT = """# @package _global_
defaults:
  - /experiment/_grid
rounds: 1
client: {epochs: 1}
partition: {clients: 3}
%s
study:
  title: Two methods of mine
  axes:
    method:
      FedAvg: algo=fedavg
      FedProx: algo=fedprox
  seeds: [0, 1]
  show:
    form: table
    rows: [method]
    measures: {Best: best_accuracy}
"""
ROOT = "data: {root: '${oc.env:MY_TOKEN}/x'}"


def write_experiment(own: Path, settings: str = "") -> None:
    (own / "experiment").mkdir(parents=True, exist_ok=True)
    (own / "experiment" / "mine.yaml").write_text(EXPERIMENT % settings)


def nobody_sees(run: Any, folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert [str(file) for file in files if TOKEN.encode() in file.read_bytes()] == []
    assert TOKEN not in run.out + run.err


@pytest.mark.parametrize("in_file", [True, False])
def test_no_refused_job_of_a_table_has_a_value_of_the_environment(
    fedbench, environment, tmp_path, in_file
):
    """Neither one that a word names nor one that the experiment's file names, in its plan."""
    write_experiment(tmp_path / "own", ROOT if in_file else "")
    words = ("data=mnist", "data.source=real", "data.root=${oc.env:MY_TOKEN}/x")
    if in_file:
        file = tmp_path / "own" / "experiment" / "mine.yaml"
        text = file.read_text().replace("algo=fed", "data=mnist data.source=real algo=fed")
        file.write_text(text)
    run = fedbench("--config-dir", "own", "experiment=mine", *(() if in_file else words))
    assert run.status == 2, run.err
    told = "data=mnist: not in ${oc.env:MY_TOKEN}/x"
    assert told in run.out + run.err
    if in_file:  # with words of one's own that change numbers no plan is kept
        assert list(Path("results").glob("studies/mine.*.json"))
    reasons = [json.loads(file.read_text())["reason"] for file in Path().rglob("outcome.json")]
    assert all(told in reason for reason in reasons)
    nobody_sees(run, tmp_path)


def test_no_failed_job_of_a_table_has_one(fedbench, environment, tmp_path, monkeypatch):
    """Planned with the examples of seed 0, it fails when it is run."""
    monkeypatch.setenv("PLANTED_TOKEN", TOKEN)
    faulty_dataset.write(tmp_path / "own")
    write_experiment(tmp_path / "own", ROOT)
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.write_text(file.read_text().replace("algo=fed", "data=faulty algo=fed"))
    run = fedbench("--config-dir", "own", "experiment=mine", "runtime=serial")
    assert run.status == 1, run.err
    failures = [file.read_text() for file in Path("results").rglob("failure.txt")]
    assert len(failures) == 2
    assert all("RuntimeError: planted ${oc.env:MY_TOKEN}" in text for text in failures)
    assert "planted ${oc.env:MY_TOKEN}" in run.out
    nobody_sees(run, tmp_path)


def test_the_estimate_of_a_job_keeps_no_value(environment):
    work = work_of(
        compose_config(["experiment=digits/methods", "model.weights=${oc.env:MY_TOKEN}"])
    )
    assert "${oc.env:MY_TOKEN}" in work["kind"]
    assert TOKEN not in str(work)


def test_what_is_shown_of_references(environment):
    composed = OmegaConf.create(
        {
            "a": "${oc.env:MY_TOKEN}",
            "b": {"c": "${a}", "d": ["x", "${b.c}-${oc.env:NOT_SET,none}"], "e": "${f}"},
            "f": 3,
        }
    )
    text = "${oc.env:MY_TOKEN}"
    plain = {
        "a": text,
        "b": {"c": text, "d": ["x", f"{text}-${{oc.env:NOT_SET,none}}"], "e": 3},
        "f": 3,
    }
    assert shown(composed) == plain
    indirect = {
        "name": "env",
        "g": "${oc.decode:${oc.env:MY_TOKEN}}",
        "h": "${oc.${name}:MY_TOKEN}",
    }
    assert TOKEN not in str(shown(OmegaConf.create(indirect)))
    assert composed.b.c == TOKEN  # the resolver is OmegaConf's own again
    assert Values(composed).hidden(f"no {TOKEN} here") == f"no {text} here"


@pytest.mark.parametrize(("choice", "extra"), messages.PLUGINS.items())
def test_a_plugin_that_is_not_installed_is_one_line(fedbench, monkeypatch, choice, extra):
    group, _, name = choice.rpartition("/")
    stored = ConfigStore.instance().repo["hydra"][group.partition("/")[2]]
    monkeypatch.delitem(stored, f"{name}.yaml", raising=False)
    run = fedbench("-m", *QUICK, f"{group}={name}", "seed=0,1")
    assert run.status == 2
    assert (
        run.err == f"fedbench: {group}={name}: not installed; pip install 'fedbench-lab[{extra}]'\n"
    )
    assert list(Path().iterdir()) == []


def test_objectives(fedbench):
    run = fedbench(*QUICK)
    facts = json.loads((run.folder / "summary.json").read_text())
    last = (run.folder / "metrics.csv").read_text().splitlines()[-1].split(",")
    assert objective(None, run.folder) == facts["best_accuracy"]
    assert objective("final_accuracy", run.folder) == facts["final_accuracy"]
    assert objective("train_seconds", run.folder) == facts["train_seconds"]
    assert objective("test_loss", run.folder) == float(last[2])
    assert objective(None, run.folder / "nowhere") is None


def test_the_objective_of_a_diverged_run_is_the_worst(fedbench):
    run = fedbench(*QUICK, "client.lr=1e18")
    assert objective(None, run.folder) == objective("final_accuracy", run.folder) == 0
    assert objective("test_loss", run.folder) == float("inf")


@optuna
def test_a_search_finds_the_best_of_its_trials(fedbench):
    run = fedbench(*QUICK, *SEARCH, "hydra.sweeper.n_trials=3", "hydra.sweeper.direction=maximize")
    assert run.status == 0, run.err
    (folder,) = Path("results/sweeps").iterdir()
    found = yaml.safe_load((folder / "optimization_results.yaml").read_text())
    trials = [json.loads(file.read_text()) for file in folder.glob("*/outcome.json")]
    assert len(trials) == 3
    best = max(trials, key=lambda trial: trial["objective"])
    assert found["best_value"] == best["objective"]
    assert f"client.lr={found['best_params']['client.lr']}" in best["words"]
    assert f"search: {found}" in run.out


@optuna
@pytest.mark.heavy
def test_ten_trials_find_better_than_the_default(fedbench):
    """The search of docs/many-runs.md."""
    words = ("algo=fedprox", "runtime.workers=1")
    default = fedbench(*words)
    assert default.status == 0, default.err
    search = (
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_trials=10",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.seed=0",
        "client.lr=tag(log,interval(0.01,1))",
        "algo.mu=tag(log,interval(0.0001,1))",
    )
    run = fedbench("-m", *words, *search)
    assert run.status == 0, run.err
    (folder,) = Path("results/sweeps").iterdir()
    found = yaml.safe_load((folder / "optimization_results.yaml").read_text())
    before = json.loads((default.folder / "summary.json").read_text())["best_accuracy"]
    assert found["best_value"] > before


@optuna
def test_a_search_in_the_wrong_direction_is_refused(fedbench):
    run = fedbench(*QUICK, *SEARCH, "hydra.sweeper.n_trials=3")
    assert run.status == 2
    told = (
        "fedbench: job 0: hydra.sweeper.direction=minimize: must be maximize for"
        " objective=best_accuracy\n"
    )
    assert told in run.err
    assert not Path("results/runs").exists()
    run = fedbench(*QUICK, *SEARCH, "hydra.sweeper.n_trials=2", "objective=test_loss")
    assert run.status == 0, run.err


@optuna
@pytest.mark.parametrize(("rate", "jobs"), [(0.0, 1), (1.0, 3)])
def test_a_trial_that_is_refused_is_not_scored(fedbench, rate, jobs):
    """Hydra's `max_failure_rate` says whether the search goes on."""
    words = (
        "hydra.sweeper.n_trials=3",
        "hydra.sweeper.direction=maximize",
        f"hydra.sweeper.max_failure_rate={rate}",
    )
    run = fedbench(*QUICK, *SEARCH, *words, "cohort=100")
    assert run.status == 2
    assert run.err.count("fedbench: job ") == (jobs if jobs == 1 else 2 * jobs)
    assert not Path("results/runs").exists()
    assert "search: " not in run.out


def test_ranks_of_torchrun_start_no_launchers(fedbench, monkeypatch):
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for key, value in torchrun.items():
        monkeypatch.setenv(key, value)
    for word in ("hydra/launcher=joblib", "hydra/sweeper=optuna"):
        run = fedbench("-m", *QUICK, word, "seed=0,1")
        assert run.status == 2
        assert (
            run.err
            == f"fedbench: {word}: must be basic under torchrun, whose ranks would each start their"
            " own\n"
        )
        assert list(Path().iterdir()) == []

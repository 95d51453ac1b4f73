"""`fedbench experiment=NAME`: the grid of a study as a sweep, with the user's own words over it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hydra.core.plugins import Plugins
from hydra.utils import get_class
from support import study_small

from fedbench.report.engine import Result
from fedbench.report.running.plan import Job, read_plan

RESULTS = Path("results")


@pytest.fixture(scope="module")
def configuration(tmp_path_factory) -> Path:
    return study_small.write_configuration(
        tmp_path_factory.mktemp("conf") / "conf", away=study_small.AWAY
    )


@pytest.fixture
def small(configuration, monkeypatch, fedbench):
    study_small.use(configuration, monkeypatch)
    return fedbench


@pytest.fixture
def swept(small, monkeypatch):
    """What `fedbench ...` would run, as the words of its jobs; nothing is run."""
    found = []

    def run_nothing(plans, options, console):
        found.extend(job.words for plan in plans for job in plan.jobs)
        return Result()

    monkeypatch.setattr("fedbench.report.engine.run_plans", run_nothing)
    monkeypatch.setattr("fedbench.report.engine.render_all", lambda *_, **__: [])

    def call(*words: str) -> list[set[str]]:
        found.clear()
        outcome = small(*words, quiet=False)
        assert outcome.status == 0, outcome.err
        return [set(words) for words in found]

    return call


def settled_without_hydra(task: tuple[list[Job], str], files: Path) -> list[Job]:
    return [Job(job.words, job.seed, "runs/x") for job in task[0]]


def configurations() -> list[dict]:
    return [
        yaml.safe_load(file.read_text()) for file in sorted(RESULTS.glob("runs/*/*/config.yaml"))
    ]


def test_an_experiment_runs_its_grid_and_keeps_its_plan(small):
    words = ("experiment=small/table1", "scale=decisive", "runtime=serial")
    outcome = small(*words)
    assert outcome.status == 0, outcome.err
    plan = read_plan(RESULTS, "small/table1", "decisive")
    folders = {f"results/{job.folder}" for job in plan.jobs}
    assert len(folders) == 2
    assert {str(file.parent) for file in RESULTS.glob("runs/*/*/summary.json")} == folders
    assert {one["algo"]["name"] for one in configurations()} == {"fedavg", "fedprox"}
    assert {one["rounds"] for one in configurations()} == {1}
    table = Path("results/tables/decisive/small/table1.md").read_text()
    assert "| FedProx |" in table
    again = small(*words, quiet=False)
    assert "2 runs done, 0 to do" in again.out
    assert "report: results/report/index.html" in again.out


def test_the_users_words_win_over_the_grid_and_equal_jobs_run_once(small):
    words = ("algo=fedprox", "algo.mu=0.5", "seed=3,4", "rounds=1")
    outcome = small("experiment=small/table1", "scale=smoke", *words)
    assert outcome.status == 0, outcome.err
    found = [
        (one["algo"]["modifiers"]["prox"]["mu"], one["seed"], one["rounds"])
        for one in configurations()
    ]
    assert sorted(found) == [(0.5, 3, 1), (0.5, 4, 1)]
    assert not list(RESULTS.glob("studies/small/*"))  # no table is made of such runs


def test_jobs_are_the_grid_times_the_users_combinations(swept):
    base = {
        "experiment=small/table1",
        "scale=smoke",
        "rounds=2",
        "data.source=real",
        "data.subset=150",
    }
    prox = {"algo=fedprox", "algo.mu=0.1"}
    found = swept("experiment=small/table1", "scale=smoke", "client.lr=0.1,0.2", "seed=5")
    rates = [{"client.lr=0.1", "seed=5"}, {"client.lr=0.2", "seed=5"}]
    assert found == [base | own | rate for rate in rates for own in ({"algo=fedavg"}, prox)]
    assert swept("experiment=small/table1")[0] == {
        *("experiment=small/table1", "scale=paper", "algo=fedavg", "seed=0")
    }


def test_another_launcher_gets_the_same_jobs(small, monkeypatch):
    found = []

    def split(sweeper, overrides, size):
        found.extend(batch for batches in original(sweeper, overrides, size) for batch in batches)
        return []

    Plugins.instance()  # loads the sweeper's file anew, once in a process
    sweeper = get_class("hydra_plugins.fedbench_grid.GridSweeper")
    original = sweeper.split_arguments
    monkeypatch.setattr(sweeper, "split_arguments", split)
    words = ("experiment=small/table1", "scale=smoke", "hydra/launcher=joblib")
    for own in ((), ("seed=5",)):
        found.clear()
        outcome = small(*words, *own)
        assert outcome.status == 0, outcome.err
        assert len(found) == (2 if own else 4)
        assert {"experiment=small/table1", "scale=smoke", "algo=fedavg"} <= set(found[0])


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        *(("runtime.workers=1", True), ("logger=none", True), ("hydra.verbose=false", True)),
        *(("runtime.threads=2", False), ("seed=0", False)),
    ],
)
def test_a_plan_is_kept_only_without_words_that_change_numbers(swept, monkeypatch, word, kept):
    monkeypatch.setattr(
        "fedbench.report.running.plan.settle_jobs",
        settled_without_hydra,
    )
    assert len(swept("experiment=small/table1", "scale=smoke", word)) == (
        2 if word == "seed=0" else 4
    )
    assert (read_plan(RESULTS, "small/table1", "smoke") is not None) == kept


def test_a_scale_that_the_file_does_not_describe_is_one_line(small, configuration):
    outcome = small("experiment=small/away", "scale=decisive")
    assert outcome.status == 2
    told = "must be smoke or paper; experiment=small/away does not say what would decide its claims"
    assert outcome.err == f"fedbench: scale=decisive: {told}\n"
    assert not RESULTS.exists()


def test_a_job_that_is_refused_is_told_and_the_others_run(small):
    outcome = small("experiment=small/away", "scale=paper")
    assert outcome.status == 2
    assert outcome.err.count("data=mnist: not in") == 1
    assert [one["data"]["name"] for one in configurations()] == ["digits"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("clientt.lr=1", "unknown key 'clientt': did you"),
        ("experiment=small/table9", "did you mean"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_runs(small, word, told):
    outcome = small("experiment=small/table1", "scale=smoke", word)
    assert outcome.status == 2
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not RESULTS.joinpath("runs").exists()

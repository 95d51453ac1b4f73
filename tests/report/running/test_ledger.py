"""The ledger: what is done, what is missing and what that will take, before anything runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support import study_small

from fedbench.report.experiments.experiment import load
from fedbench.report.running import calibrate
from fedbench.report.running.calibrate import Estimate, Round, estimate_all
from fedbench.report.running.ledger import Ledger, duration, size, status_of, study_of
from fedbench.report.running.plan import Job, Plan, compose_config
from fedbench.report.running.work import work_of
from fedbench.runs.folder import RunFolder

WORK = {"kind": "k", "gradients": 1000, "scored": 200, "disk": 5000}


def job(name: str, seed: int = 0, problem: str = "") -> Job:
    return Job(
        ["experiment=small/table1"], seed, "" if problem else f"runs/x/{name}", problem, WORK
    )


def plan(*jobs: Job, experiment: str = "small/table1") -> Plan:
    made = Plan.of_jobs(load("small/table1"), "smoke", jobs)
    return Plan(experiment, "smoke", made.runs.assign(method="FedAvg"))


def summary(results: Path, name: str, content: dict) -> None:
    folder = results / "runs" / "x" / name
    folder.mkdir(parents=True)
    stored = RunFolder(folder).with_checksums(content)
    (folder / "summary.json").write_text(json.dumps(stored))


@pytest.fixture
def results(tmp_path) -> Path:
    """Runs in every state: finished, diverged, failed, cut off while the summary was written, and
    one under way.
    """
    facts = {"best_round": 1, "scoring": "global", "data": {"source": "real", "note": ""}}
    accuracies = {"best_accuracy": 0.5, "final_accuracy": 0.5}
    summary(tmp_path, "finished", {"status": "finished", **accuracies, **facts})
    broken = {
        "status": "diverged",
        "diverged": {"round": 1, "cause": "a loss"},
        **dict.fromkeys(accuracies),
    }
    summary(tmp_path, "diverged", broken | facts)
    summary(tmp_path, "cut", {})
    (tmp_path / "runs" / "x" / "cut" / "summary.json").write_text('{"status": "fin')
    (tmp_path / "runs" / "x" / "failed").mkdir()
    (tmp_path / "runs" / "x" / "failed" / "failure.txt").write_bytes(
        b"Traceback\nRuntimeError: \xff out of luck\n"
    )
    lock = RunFolder(tmp_path / "runs" / "x" / "running").lock()
    yield tmp_path
    lock.release()


STATES = {
    "finished": "finished",
    "diverged": "diverged",
    "cut": "missing",
    "failed": "failed",
    "running": "running",
}


@pytest.mark.parametrize(("name", "status"), [*STATES.items(), ("nothing", "missing")])
def test_a_run_is_what_its_folder_shows(results, name, status):
    found = status_of(job(name, 4), results)
    assert (found.status, found.folder) == (status, f"runs/x/{name}")
    told = {"failed": "RuntimeError: \N{REPLACEMENT CHARACTER} out of luck"}
    told["cut"] = "summary.json cannot be read (JSONDecodeError), so this run counts as missing"
    assert found.problem.splitlines()[-1:] == ([told[name]] if name in told else [])


def test_a_lock_that_nobody_holds_is_no_run_under_way(tmp_path):
    RunFolder(tmp_path / "runs" / "x" / "left").lock().release()
    assert status_of(job("left"), tmp_path).status == "missing"


def test_a_run_is_counted_once_and_shared_where_it_comes_again(results):
    jobs = [job(name) for name in STATES]
    first = plan(*jobs, job("", problem="data=mnist: not here"))
    second = plan(
        job("failed"),
        job("other"),
        job("finished"),
        job("", problem="no"),
        experiment="small/figure1",
    )
    ledger = Ledger([first, second], results)
    states = ["done", "shared", "missing", "running", "failed", "refused"]
    assert list(ledger.counts) == states
    assert ledger.counts.loc["small/table1"].tolist() == [2, 0, 1, 1, 1, 1]
    assert ledger.counts.loc["small/figure1"].tolist() == [0, 2, 1, 0, 0, 1]
    assert [one.folder for one in ledger.missing] == ["runs/x/cut", "runs/x/failed", "runs/x/other"]


def test_the_ledger_is_shown_with_what_is_to_do(results):
    plans = [plan(*(job(name) for name in STATES), job("", problem="no"))]
    ledger = Ledger(plans, results)
    console = Console(file=io.StringIO(), width=140)
    estimates = {one.folder: Estimate(300.0, 2e9, 4e6) for one in ledger.missing}
    ledger.show(console, estimates, 2)
    table, last = console.file.getvalue().split("└")
    (line,) = [line for line in table.splitlines() if "small/table1" in line]
    assert [word.strip() for word in line.split("│")[1:-1]] == [
        *("small/table1", "2", "", "1", "1", "1", "1", "5 min", "4.0 GB", "8.0 MB")
    ]
    assert last.splitlines()[1:] == [
        "2 runs done, 2 to do; about 5 min with 2 at a time, 4.0 GB of memory, 8.0 MB of disk; 1"
        " refused"
    ]


def test_what_could_not_be_calibrated_is_a_question_mark(results):
    ledger = Ledger([plan(job("one"), job("two"))], results)
    unknown = Estimate(0.3, 0.0, 5000.0, known=False)
    for estimates, words, told in (
        (
            {"runs/x/one": unknown, "runs/x/two": unknown},
            "? with",
            "2 runs could not be calibrated",
        ),
        (
            {"runs/x/one": Estimate(300.0, 2e9, 4e6), "runs/x/two": unknown},
            "5 min + ? with",
            "1 runs could not be",
        ),
    ):
        console = Console(file=io.StringIO(), width=200)
        ledger.show(console, estimates, 1)
        assert f"about {words}" in console.file.getvalue()
        assert told in console.file.getvalue()


def test_a_study_has_the_runs_of_its_plan(results):
    study = study_of(plan(job("finished"), job("nothing", 1)), results)
    runs = study.cell({"method": "FedAvg"})
    assert runs[["seed", "status"]].to_numpy().tolist() == [[0, "finished"], [1, "missing"]]
    assert list(study.done["folder"]) == ["runs/x/finished"]


@pytest.fixture(autouse=True)
def small(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("conf") / "conf"
    study_small.use(study_small.write_configuration(folder), monkeypatch)


def test_what_was_measured_is_kept_and_a_failure_is_not(tmp_path, monkeypatch, capfd):
    """Each in a process of its own, of which a failure or a death says nothing."""
    calls = tmp_path / "calls.txt"

    def measure(results, job):
        with calls.open("a") as file:
            file.write(job.folder + "\n")
        number = len(calls.read_text().splitlines())
        if number == 1:
            raise ZeroDivisionError
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return Round(0.001, 0.0001, 3e8, 70)

    monkeypatch.setattr(calibrate, "_measure", measure)
    jobs, told = [job("a"), replace(job("b"), work={**WORK, "gradients": 3000})], []
    tell = lambda done, wanted: told.append((done, wanted))  # noqa: E731
    file = tmp_path / "studies" / "calibration.json"
    for _ in range(2):
        failed = estimate_all(jobs, tmp_path, tell)
        assert not failed["runs/x/a"].known
        assert json.loads(file.read_text()) == {}
    assert capfd.readouterr().err == ""
    found = estimate_all(jobs, tmp_path, tell)
    assert found["runs/x/a"] == Estimate(pytest.approx(0.3 + 1.0 + 0.02), 3e8, 5000 + 4 * 70)
    assert found["runs/x/b"].seconds == pytest.approx(0.3 + 3.0 + 0.02)
    assert estimate_all(jobs, tmp_path, tell) == found
    assert told == [(1, 1)] * 3
    for damage in ("", "[]", '{"k": 3}', '{"k": {"seconds": 1}}'):
        file.write_text(damage)
        assert estimate_all(jobs, tmp_path, tell) == found
    assert calls.read_text() == "runs/x/a\n" * 7


def test_a_real_round_is_measured_and_work_grows_with_the_rounds(tmp_path):
    words = [
        "experiment=small/table1",
        "scale=smoke",
        "data.source=real",
        "data.subset=150",
        f"results={tmp_path}",
    ]
    config = compose_config([*words, "rounds=2"])
    assert (
        work_of(config)["gradients"] == 2 * 3 * 50
    )  # rounds, clients, examples of each in an epoch
    assert work_of(config)["scored"] == 2 * config.tree["data"]["test_size"]
    longer = replace(config, scalars=replace(config.scalars, rounds=20))
    assert work_of(longer)["gradients"] == 10 * work_of(config)["gradients"]
    assert work_of(longer)["scored"] == 10 * work_of(config)["scored"]
    jobs = [Job(words, 0, "runs/x", config=pickle.dumps(config), work=work_of(config))]
    estimate_all(jobs, tmp_path, lambda done, wanted: None)
    (measured,) = calibrate._kept(tmp_path / "studies" / "calibration.json").values()
    assert min(measured.seconds_a_gradient, measured.seconds_a_test) > 0
    assert measured.memory > 1e7
    assert measured.parameters > 1000
    short, long = (calibrate._estimate(work_of(one), measured) for one in (config, longer))
    assert 0 < short.seconds < long.seconds
    assert long.seconds - calibrate.START == pytest.approx(10 * (short.seconds - calibrate.START))
    assert not (tmp_path / "runs").exists()


def test_the_clock_of_a_calibration_leaves_out_what_is_done_once(monkeypatch, tmp_path):
    """Recording steps, which takes longer than the few of a calibration, and the first scoring."""
    words = ["experiment=small/table1", "scale=smoke", "data.subset=150", f"results={tmp_path}"]
    config = compose_config([*words, "rounds=2"])
    assert config.scalars.runtime.graph == "auto"
    calls, assemble = [], calibrate.assemble

    def assembled(*given):
        federation = assemble(*given)
        calls.append(federation.settings.runtime.graph)
        score = federation.evaluator.score
        monkeypatch.setattr(federation.evaluator, "score", lambda: calls.append("score") or score())
        return federation

    clock = SimpleNamespace(perf_counter=lambda: calls.append("clock") or 1.0)
    monkeypatch.setattr(calibrate, "time", clock)
    monkeypatch.setattr(calibrate, "assemble", assembled)
    calibrate._measure(tmp_path, Job([], 0, config=pickle.dumps(config)))
    assert calls == ["off", "clock", "clock", "score", "clock", "score", "clock"]


def test_an_experiment_that_is_not_there_is_refused_by_name():
    from fedbench.core.errors import BadInput

    with pytest.raises(BadInput, match="experiment=small/tabel1: did you mean 'small/table1'"):
        load("small/tabel1")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (200000, "2 d")],
)
def test_durations_are_told_in_the_unit_that_fits(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [(10, "0 kB"), (5e3, "5 kB"), (2.5e6, "2.5 MB"), (1e9, "1.0 GB"), (3e12, "3.0 TB")],
)
def test_sizes_are_told_in_the_unit_that_fits(count, words):
    assert size(count) == words

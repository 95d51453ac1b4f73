"""Runs side by side: the same bits as alone, and what goes wrong in one stays there."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import fake_cuda, inject, study_small
from support.waiting import LIMIT, wait_until

from fedbench import train as program
from fedbench.core.errors import BadInput
from fedbench.parallel import devices
from fedbench.report.experiments.experiment import load
from fedbench.report.running import execute, pool
from fedbench.report.running.execute import Executor
from fedbench.report.running.ledger import status_of
from fedbench.report.running.plan import Job, make_plans

LONG = study_small.TABLE.replace(
    "study:\n",
    "checkpoint: {every: 100000}\nstudy:\n  scales: {decisive: {overrides: rounds=12"
    " data.subset=150}}\n",
    1,
)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The jobs of a small study, and where its configuration is."""
    folder = tmp_path_factory.mktemp("planned")
    study_small.write_configuration(folder / "conf", long=LONG)
    with pytest.MonkeyPatch.context() as patch:
        study_small.use(folder / "conf", patch)
        (plan,) = make_plans(
            [(load("small/table1"), "smoke")], folder, 1, lambda done, wanted: None
        )
    return folder / "conf", plan.jobs


@pytest.fixture
def jobs(planned, tmp_path, monkeypatch) -> list[Job]:
    """FedAvg with two seeds and FedProx with two; results go to the test's own folder."""
    study_small.use(planned[0], monkeypatch)
    monkeypatch.chdir(tmp_path)
    return [moved(job, tmp_path) for job in planned[1]]


def moved(job: Job, results: Path) -> Job:
    config = pickle.loads(job.config)
    config = replace(config, scalars=replace(config.scalars, results=str(results)))
    return replace(job, config=pickle.dumps(config))


def digests(jobs: list[Job], results: Path) -> list[str]:
    return [
        json.loads((results / job.folder / "summary.json").read_text())["digest"] for job in jobs
    ]


def test_many_at_a_time_or_one_with_several_ranks_compute_the_bits_of_a_plain_run(
    jobs, tmp_path, capfd
):
    for job in jobs:
        program.run(pickle.loads(job.config))
    expected = digests(jobs, tmp_path)
    assert len(set(expected)) == 4
    for processes, ranks in ((1, 2), (2, 1)):
        folder = tmp_path / f"{processes}"
        own = [
            replace(moved(job, folder), config=b"" if number == 3 else moved(job, folder).config)
            for number, job in enumerate(jobs)
        ]  # a kept plan has no configuration: it is composed again
        outcomes = list(Executor(folder, processes, ranks).run(own))
        assert [outcome.status for outcome in outcomes] == ["finished"] * 4
        assert sorted(outcome.job.folder for outcome in outcomes) == sorted(
            job.folder for job in jobs
        )
        assert digests(jobs, folder) == expected
        summary = json.loads((folder / jobs[0].folder / "summary.json").read_text())
        assert summary["workers"] == ranks


def test_what_goes_wrong_in_a_run_stays_there_and_the_next_attempt_clears_it(
    jobs, tmp_path, monkeypatch
):
    raised, refused, killed, good = jobs

    def run(config):
        number = [job.config for job in jobs].index(pickle.dumps(config))
        print("some words")
        if number == 0:
            os.write(1, b"\xff\xfe half a picture\n")
            print("the last words before it", end="")
            raise ZeroDivisionError("why ever")
        if number == 1:
            raise BadInput("client.lr=0: above 0 is allowed")
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(config)

    original = program.run
    monkeypatch.setattr(program, "run", run)
    monkeypatch.setattr(execute, "_configuration", lambda job, *_: pickle.loads(job.config))
    outcomes = {outcome.job.folder: outcome for outcome in Executor(tmp_path, 1).run(jobs)}
    assert [outcomes[job.folder].status for job in jobs] == [
        "failed",
        "failed",
        "failed",
        "finished",
    ]
    told = [
        (tmp_path / job.folder / "failure.txt").read_text() for job in (raised, refused, killed)
    ]
    assert told[0].startswith(f"fedbench {' '.join(raised.words)}\n")
    assert "ZeroDivisionError: why ever" in told[0].split("Its output:")[0]
    assert told[0].endswith("half a picture\nthe last words before it")
    assert "client.lr=0: above 0 is allowed" in told[1]
    assert "Traceback" not in told[1]
    assert "the last words" not in told[1]
    assert (
        told[2]
        == "the process of this run died of SIGKILL; the kernel does that when memory runs out\n"
    )
    assert not (tmp_path / good.folder / "failure.txt").exists()
    assert [status_of(job, tmp_path).status for job in jobs] == [
        "failed",
        "failed",
        "failed",
        "finished",
    ]
    assert status_of(killed, tmp_path).problem == told[2]

    def stop(config):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        program, "run", stop
    )  # an attempt that shows nothing leaves the reason where it was
    assert [outcome.status for outcome in Executor(tmp_path, 1).run([killed])] == ["interrupted"]
    assert status_of(killed, tmp_path).problem == told[2]
    monkeypatch.setattr(program, "run", original)
    assert [outcome.status for outcome in Executor(tmp_path, 2).run(jobs)] == ["finished"] * 4
    assert not list(tmp_path.rglob("failure.txt"))
    assert [status_of(job, tmp_path).status for job in jobs] == ["finished"] * 4


def test_a_worker_that_dies_between_two_runs_costs_one_of_them(jobs, tmp_path):
    executor, statuses = Executor(tmp_path, 1), []
    for outcome in executor.run(jobs[:3]):
        statuses.append(outcome.status)
        if len(statuses) == 1:
            executor.pool.workers[0].process.kill()
            executor.pool.workers[0].process.join()
    assert statuses == ["finished", "failed", "finished"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_being_prepared_stops_at_once(jobs, tmp_path, monkeypatch, number):
    def prepare(*_):
        (tmp_path / "preparing").touch()
        time.sleep(LIMIT)
        (tmp_path / "prepared").touch()

    def ask():
        wait_until((tmp_path / "preparing").exists)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(execute, "_configuration", prepare)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    asking = threading.Thread(target=ask)
    asking.start()
    executor = Executor(tmp_path, 1)
    assert [outcome.status for outcome in executor.run(jobs)] == ["interrupted"]
    asking.join()
    assert executor.pool.stopping
    assert not (tmp_path / "prepared").exists()
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert not list(tmp_path.rglob("failure.txt"))


def processes_of(session: int) -> list[str]:
    """What still runs in a session, but zombies."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, own = file.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(own) == session and state != "Z":
            found.append(file.parent.name)
    return found


@pytest.mark.parametrize("how", ["SIGTERM to it", "SIGINT to its group", "SIGKILL to it"])
def test_interrupted_it_keeps_checkpoints_and_the_same_command_goes_on(jobs, tmp_path, how):
    words = (
        "--only",
        "small/long",
        "--scale",
        "decisive",
        "--results",
        str(tmp_path / "own"),
        "--jobs",
        "2",
    )

    def reproduce() -> int:
        """Both runs wait after their fourth round until they are asked to stop."""
        inject.remember_stops()
        inject.plant({"place": "metrics", "call": 4, "after": True, "kind": "until stopped"})
        return study_small.reproduce(*words)

    pid = study_small.fork(reproduce)

    def rows() -> list[int]:
        return [
            len(file.read_text().splitlines()) for file in tmp_path.glob("own/runs/*/*/metrics.csv")
        ]

    wait_until(lambda: rows() == [5, 5])  # with the names of the columns
    number = getattr(signal, how.split()[0])
    os.killpg(pid, number) if how.endswith("group") else os.kill(pid, number)
    assert study_small.status_of(pid) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    wait_until(lambda: not processes_of(pid))
    folders = list(tmp_path.glob("own/runs/*/*/"))
    assert len(folders) == 2
    assert all(list(folder.glob("checkpoint-*")) for folder in folders)
    assert not list(tmp_path.rglob("summary.json"))
    assert not list(tmp_path.rglob("failure.txt"))
    if number == signal.SIGTERM:
        assert "interrupted" in Path("output.txt").read_text()
        assert study_small.status_of(study_small.fork(lambda: study_small.reproduce(*words))) == 0
        assert [
            json.loads(file.read_text())["rounds"] for file in tmp_path.rglob("summary.json")
        ] == [12, 12]
        assert (tmp_path / "own" / "report" / "index.html").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--jobs", "0"), "--jobs=0: must be an integer of at least 1"),
        (("--only", "small/tabel1"), "--only=small/tabel1: did you mean 'small/table1'?"),
    ],
)
def test_a_wrong_word_is_one_line_and_status_two(jobs, capfd, words, told):
    assert study_small.reproduce(*words) == 2
    assert capfd.readouterr().err == f"fedbench-tables: {told}\n"


def test_a_dry_run_tells_what_there_is_to_do_and_runs_nothing(jobs, capfd, monkeypatch):
    monkeypatch.setattr(sys.modules["fedbench.report.engine"], "Executor", None)
    assert study_small.reproduce("--only", "small/table1", "--scale", "decisive", "--dry-run") == 0
    out = capfd.readouterr().out
    assert "small/table1" in out
    assert "0 runs done, 2 to do; about " in out
    assert not Path("results/runs").exists()
    assert not Path("results/report").exists()


def test_every_process_has_a_gpu_of_its_own(jobs, tmp_path, monkeypatch):
    """Also one that takes the place of a process that died."""
    found = fake_cuda.gpus("NVIDIA A100", "NVIDIA A100")
    monkeypatch.setattr(pool, "gpus", lambda: found)
    monkeypatch.setattr(devices, "gpus", lambda: found)
    monkeypatch.setenv(devices.VISIBLE, "5,7")

    def attempt(executor, job):
        (tmp_path / f"{os.getpid()}.gpu").write_text(os.environ[devices.VISIBLE])
        wait_until(lambda: len(list(tmp_path.glob("*.gpu"))) >= 2)
        os._exit(1)

    monkeypatch.setattr(Executor, "attempt", attempt)
    outcomes = list(Executor(tmp_path, 2).run(jobs))
    assert {outcome.status for outcome in outcomes} == {"failed"}
    seen = [file.read_text() for file in tmp_path.glob("*.gpu")]
    assert len(seen) == 4
    assert set(seen) == {"5", "7"}

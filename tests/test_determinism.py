"""One contract: serial = any number of workers = killed and resumed, to the bit."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest
from faults_helper import result

# Stateful methods on a model with batch norm and a partial cohort: everything that a checkpoint must hold is in use.
SETTING = (
    "data=mnist",
    "data.source=synthetic",
    "data.subset=160",
    "model=lenet",
    "model.batch_norm=true",
    "partition.clients=5",
    "cohort=3",
    "client.epochs=1",
    "client.batch_size=16",
    "rounds=6",
    "checkpoint.every=2",
    "eval.batch_size=7",
)
# Several kinds of state; all methods are in tests/test_pairs.py (workers) and tests/test_gauntlet.py (kills).
METHODS = ("algo=scaffold", "algo=fedbn", "algo=fedgen", "modifier=[ecgr]")


def in_a_child(call) -> int:
    """Run `call` in a forked process, which starts without importing anything again; returns its process id."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        try:
            call()
        finally:
            os._exit(99)
    return pid


def start(arguments: tuple[str, ...]) -> int:
    from fedbench import cli as program

    def call() -> None:
        sys.argv = ["fedbench", "logger=none", *arguments]
        try:
            program.main()
        except SystemExit as ended:
            os._exit(ended.code)

    return in_a_child(call)


def wait_for_rows(pattern: str, rows: int) -> None:
    """Until the run's metrics hold that many rows."""
    for _ in range(6000):
        files = list(Path().glob(pattern))
        if files and len(files[0].read_text().splitlines()) > rows:
            return
        time.sleep(0.005)
    raise AssertionError("the run did not get that far")


@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_workers_killed_and_resumed_with_another(fedbench, method):
    whole, three = (fedbench(*SETTING, method, f"results=with{n}", f"runtime.workers={n}") for n in (1, 3))
    assert whole.status == three.status == 0, three.err
    expected = result(whole.folder)
    assert len(expected[1]) == 6
    assert result(three.folder) == expected
    chance = random.Random(method)
    pid = start((*SETTING, method, "results=broken", "runtime.workers=2", "checkpoint.every=1"))
    wait_for_rows("broken/runs/*/*/metrics.csv", chance.randint(2, 4))  # the checkpoint follows the row
    time.sleep(chance.random() * 0.05)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    resumed = fedbench(*SETTING, method, "results=broken", "runtime.workers=3")
    assert resumed.status == 0, resumed.err
    assert "resuming after round" in resumed.out
    assert result(resumed.folder) == expected
    assert not list(resumed.folder.glob("*checkpoint*"))


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_interrupted_is_resumable(fedbench, number, workers):
    setting = (*SETTING, "rounds=40", "algo=scaffold", f"runtime.workers={workers}")
    pid = start((*setting, "results=broken", "checkpoint.every=1000"))
    wait_for_rows("broken/runs/*/*/metrics.csv", 2)
    os.kill(pid, number)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    (folder,) = Path().glob("broken/runs/*/*/")
    assert list(folder.glob("checkpoint-*"))
    assert not (folder / "summary.json").exists()
    resumed = fedbench(*setting, "results=broken")
    assert "resuming after round" in resumed.out
    assert result(resumed.folder) == result(fedbench(*setting, "results=whole").folder)


def test_a_checkpoint_that_cannot_be_used_does_not_outlive_newer_ones(fedbench):
    setting = (*SETTING, "rounds=60", "runtime.workers=1", "results=broken")
    pid = start((*setting, "checkpoint.every=1"))
    wait_for_rows("broken/runs/*/*/metrics.csv", 12)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for manifest in Path().glob("broken/runs/*/*/checkpoint-*/manifest.json"):
        manifest.write_text("[]")
    next(Path().glob("broken/runs/*/*/metrics.csv")).unlink()  # so that the next wait sees the next attempt
    pid = start((*setting, "checkpoint.every=1000"))
    wait_for_rows("broken/runs/*/*/metrics.csv", 2)
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert "resuming after round" in fedbench(*setting).out


def test_a_checkpoint_of_another_version_is_not_mixed_in(fedbench, monkeypatch):
    setting = (*SETTING, "rounds=30", "runtime.workers=1", "checkpoint.every=1")
    pid = start((*setting, "results=broken"))
    wait_for_rows("broken/runs/*/*/metrics.csv", 3)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    monkeypatch.setattr("fedbench.__version__", "0.0.0")
    resumed = fedbench(*setting, "results=broken")
    assert "this is 0.0.0" in resumed.out
    assert "resuming" not in resumed.out
    assert result(resumed.folder) == result(fedbench(*setting, "results=whole").folder)


def test_no_rank_outlives_its_parent(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    pid = start((*SETTING, "rounds=100000", "runtime.workers=2"))
    wait_for_rows("results/runs/*/*/metrics.csv", 1)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for _ in range(200):
        alive = [child for child in children if Path(f"/proc/{child}/stat").exists()]
        alive = [child for child in alive if Path(f"/proc/{child}/stat").read_text().split()[2] != "Z"]
        if not alive:
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {alive}")


def test_a_sweep_may_mix_threads_and_workers(fedbench):
    """A thread pool of one job must not be in the process that forks the ranks of the next: they would hang."""
    sweep = ("runtime.threads=2,1", "runtime.workers=1,2", "force=true", "rounds=2")
    run = fedbench("-m", *SETTING, *sweep)
    assert run.status == 0, run.err
    assert run.out.count("run: ") == 4

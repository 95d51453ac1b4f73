"""One contract: serial = any number of workers = killed and resumed, to the bit."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from support.faulty_runs import checkpoints, folder_of, members, result, run, start
from support.native import MISSING
from support.waiting import wait_until

COMMON = (
    "data.source=synthetic",
    "data.subset=160",
    "partition.clients=5",
    "cohort=3",
    "client.epochs=1",
    "client.batch_size=16",
    "rounds=6",
    "checkpoint.every=2",
    "eval.batch_size=7",
)
BATCH_NORM = ("data=mnist", "model=lenet", "model.batch_norm=true")
NATIVE = ("data=mnist", "model=lenet")  # its kernels are native where the machine has them
NATIVE_BATCH_NORM = ("data=cifar10", "model=cnn_bn")
# Stateful methods on a model with batch norm and a partial cohort: everything that a checkpoint
# must hold is in use.
SETTING = (*COMMON, *BATCH_NORM)
# Several kinds of state; all methods are in tests/algorithms/test_pairs.py (workers) and
# tests/runs/test_gauntlet.py (kills).
METHODS = ("algo=scaffold", "algo=fedbn", "algo=fedgen algo.generator_steps=3", "modifier=[ecgr]")
CASES = [
    *(
        pytest.param(BATCH_NORM, method, id=method, marks=() if n in (0, 3) else pytest.mark.heavy)
        for n, method in enumerate(METHODS)
    ),
    pytest.param(NATIVE, METHODS[0], id=f"native {METHODS[0]}"),
    pytest.param(NATIVE, METHODS[3], id=f"native {METHODS[3]}", marks=pytest.mark.heavy),
    pytest.param(NATIVE_BATCH_NORM, METHODS[0], id="native cnn_bn", marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("network", "method"), CASES)
def test_any_number_of_workers_killed_and_resumed_with_another(fedbench, network, method):
    setting = (*COMMON, *network, *method.split())
    whole, two, three = (
        fedbench(*setting, f"results=with{n}", f"runtime.workers={n}") for n in (1, 2, 3)
    )
    assert whole.status == two.status == three.status == 0, three.err
    assert (", native kernels\n" in whole.out) == (network != BATCH_NORM and not MISSING)
    expected = result(whole.folder)
    assert len(expected[1]) == 6
    assert result(two.folder) == expected
    assert result(three.folder) == expected
    chance = random.Random(method)
    place = chance.choice(["training", "aggregation", "evaluation", "metrics", "checkpoint"])
    broken = (*setting, "logger=none", "results=broken", "runtime.workers=2")
    # The parent alone is killed, at a call that comes after the first checkpoint.
    fault = {"place": place, "call": chance.randint(4, 5), "kind": "parent"}
    killed = run(*broken, "checkpoint.every=1", **fault)
    assert killed.status == -signal.SIGKILL, killed.err
    resumed = fedbench(*setting, "results=broken", "runtime.workers=3")
    assert resumed.status == 0, resumed.err
    assert "resuming after round" in resumed.out
    assert result(resumed.folder) == expected
    assert not list(resumed.folder.glob("*checkpoint*"))


@pytest.mark.parametrize(("kind", "workers"), [("SIGINT", 2), ("SIGTERM", 1)])
def test_interrupted_is_resumable(fedbench, kind, workers):
    setting = (*SETTING, "logger=none", "algo=scaffold", f"runtime.workers={workers}")
    broken = (*setting, "results=broken", "checkpoint.every=1000")
    assert run(*broken, place="evaluation", call=3, kind=kind).status == 130
    folder = folder_of("broken")
    assert list(folder.glob("checkpoint-*"))
    assert not (folder / "summary.json").exists()
    resumed = fedbench(*setting, "results=broken")
    assert "resuming after round 3" in resumed.out
    assert result(resumed.folder) == result(fedbench(*setting, "results=whole").folder)


def test_a_checkpoint_that_cannot_be_used_does_not_outlive_newer_ones(fedbench):
    setting = (*SETTING, "logger=none", "rounds=15", "runtime.workers=1", "results=broken")
    fault = {"place": "checkpoint", "call": 12, "after": True, "kind": "kill"}
    killed = run(*setting, "checkpoint.every=1", **fault)
    assert killed.status == -signal.SIGKILL, killed.err
    assert 12 in checkpoints("broken")
    for folder in checkpoints("broken").values():
        (folder / "manifest.json").write_text("[]")
    stopped = run(*setting, "checkpoint.every=1000", place="evaluation", call=2, kind="SIGINT")
    assert stopped.status == 130, stopped.err
    assert "resuming after round 2" in fedbench(*setting).out


def test_a_checkpoint_of_another_version_is_not_mixed_in(fedbench, monkeypatch):
    setting = (*SETTING, "logger=none", "runtime.workers=1", "checkpoint.every=1")
    killed = run(*setting, "results=broken", place="checkpoint", call=3, after=True, kind="kill")
    assert killed.status == -signal.SIGKILL, killed.err
    monkeypatch.setattr("fedbench.__version__", "0.0.0")
    resumed = fedbench(*setting, "results=broken")
    assert "it has another version of fedbench (" in resumed.out
    assert "resuming" not in resumed.out
    assert result(resumed.folder) == result(fedbench(*setting, "results=whole").folder)


def test_no_rank_outlives_its_parent(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    fault = {"place": "evaluation", "kind": "pause", "marker": "there"}
    started = start(fault, *SETTING, "logger=none", "runtime.workers=2")
    wait_until(Path("there").exists)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    assert len(children) == 2
    assert {*map(int, children)} <= {*members(started.pid)}
    os.kill(started.pid, signal.SIGKILL)
    assert started.end().status == -signal.SIGKILL  # which also looks for what is left of the group


def test_a_sweep_may_mix_threads_and_workers(fedbench):
    """A thread pool of one job must not be in the process that forks the ranks of the next: they
    would hang.
    """
    sweep = ("runtime.threads=2,1", "runtime.workers=1,2", "force=true")
    # Threads that share a busy core are slow.
    sweep += ("rounds=1", "client.steps=1", "eval.batch_size=100")
    run = fedbench("-m", *SETTING, *sweep)
    assert run.status == 0, run.err
    assert run.out.count("run: ") == 4

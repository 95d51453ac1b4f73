"""A worker that raises, hangs or is killed ends the run with its reason, leaves no process, and the
run goes on.
"""

from __future__ import annotations

import signal

import pytest
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted

from fedbench.parallel.failures import MachineFault, WorkerExit, WorkerFailure, first_cause

METHOD = (*SETTING, "algo=scaffold", "results=broken", "runtime.workers=2")
# What happens in a worker's second round, and what standard error says.
FAILURES = {
    "kill": "worker {} of 2 was ended by SIGKILL (the kernel does that when memory runs out)",
    "hang": "runtime.timeout=1: the others waited 1 seconds for worker {} of 2",
    "memory": "there is not enough memory",
    "raise": "worker {} of 2 failed:",
}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("kind", FAILURES)
def test_a_worker_that_fails(kind, rank):
    """`run` itself checks that no process of the group is left."""
    limit = ("runtime.timeout=1",) if kind == "hang" else ()
    failed = run(*METHOD, *limit, place="aggregation", call=4, rank=rank, kind=kind)
    assert failed.status == 1, failed.out
    assert FAILURES[kind].format(rank + 1) in failed.err
    if kind == "raise":
        assert failed.err.count("Traceback") == 1  # its own, not those of the workers that lost it
        assert "ArithmeticError: a planted failure" in failed.err
    else:
        assert "the last checkpoint is kept; the same command" in one_line(failed.err)
    resumed = run(*METHOD)
    assert resumed.status == 0, resumed.err
    assert resumed.resumed_after == 2
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


@pytest.mark.parametrize("place", ["final", pytest.param("metrics", marks=pytest.mark.heavy)])
def test_a_leader_that_hangs_while_it_writes(place):
    """The other workers stay until it has written, and say whom they waited for."""
    failed = run(*METHOD, "runtime.timeout=1", place=place, kind="hang")
    assert failed.status == 1, failed.out
    assert "the others waited 1 seconds for worker 1 of 2" in one_line(failed.err)
    resumed = run(*METHOD)
    assert resumed.status == 0, resumed.err
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_a_failed_run_does_not_end_a_sweep():
    failed = run(*METHOD, "-m", "seed=0,1", place="training", call=2, kind="kill", rank=1)
    assert failed.status == 1
    for job in (0, 1):  # every job forks its workers anew
        assert f"fedbench: job {job}: worker 2 of 2 was ended by SIGKILL" in failed.err


def test_the_cause_goes_before_its_consequences():
    lost = WorkerExit.of(0, RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"))
    late = WorkerExit.of(
        0, RuntimeError("[gloo/transport/tcp/unbound_buffer.cc] Timed out waiting 3000ms for recv")
    )
    assert lost.lost
    assert late.waited
    killed, raised = WorkerExit(1, signal=signal.SIGKILL), WorkerExit.of(2, KeyError("planted"))
    full = WorkerExit.of(1, OSError(28, "No space left on device"))
    assert "worker 2 of 3 was ended by SIGKILL" in str(
        first_cause([lost, killed, raised], [], 3, 9)
    )
    assert "the disk is full" in str(first_cause([lost, full], [], 2, 9))
    assert isinstance(first_cause([lost, raised], [], 3, 9), WorkerFailure)
    assert "KeyError" in str(first_cause([lost, raised], [], 3, 9))
    assert isinstance(first_cause([late], [1], 2, 9), MachineFault)
    assert "workers waited 9 seconds for each other" in str(first_cause([late, late], [], 2, 9))
    assert isinstance(first_cause([lost], [], 2, 9), WorkerFailure)

"""A worker that raises, hangs or is killed ends the run with its reason, leaves no process, and the
run goes on.
"""

from __future__ import annotations

import signal
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted
from support.waiting import LIMIT

from fedbench.core.errors import MachineFault
from fedbench.parallel.failures import WorkerExit, WorkerFailure, describe, first_cause
from fedbench.parallel.processes import launch

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


def test_a_rank_with_nothing_to_do_waits_for_those_that_are_still_joining(monkeypatch, tmp_path):
    """One that left at once closed its connections, which the last to join took for a crash."""
    join, leave = dist.init_process_group, dist.destroy_process_group

    def slow_join(*words, rank, **settings):
        join(*words, rank=rank, **settings)
        time.sleep(0.3 * rank)
        (tmp_path / f"joined{rank}").touch()

    def watched_leave():
        assert len(list(tmp_path.glob("joined*"))) == 3
        leave()

    monkeypatch.setattr(dist, "init_process_group", slow_join)
    monkeypatch.setattr(dist, "destroy_process_group", watched_leave)
    launch(lambda group: None, 3, timeout=LIMIT)
    assert len(list(tmp_path.iterdir())) == 3


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


GPU = "GPU 1 (NVIDIA A100, 80 GiB)"
LESS = (
    "a smaller runtime.workers, client.batch_size or eval.batch_size needs less, and so does"
    " runtime.graph=off"
)
ORDINARY = "runtime.graph=off takes ordinary steps"
READ = "CUDA error: operation not permitted when stream is capturing"
BROKEN_OFF = "CUDA error: operation failed due to a previous error during capture"
NO_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has a total capacity of 79.1"


def broken_off(cause: Exception) -> Exception:
    """The error of a recording that was ended by another one."""
    error = torch.AcceleratorError(f"{BROKEN_OFF}\nCompile with `TORCH_USE_CUDA_DSA`")
    error.__context__ = cause
    return error


TIMED_OUT = "CUDA error: the launch timed out and was terminated"
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
# As PyTorch words them, and what is made of them.
GPU_ERRORS = [
    (
        torch.OutOfMemoryError(f"{NO_MEMORY} GiB of which 3.00 MiB is free."),
        f"{GPU} has not enough memory for 20.00 MiB more; {LESS}",
    ),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        f"{GPU} has not enough memory; {LESS}",
    ),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
        f"{GPU} has not enough memory; {LESS}",
    ),
    (
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        f"{GPU} has not enough memory; {LESS}",
    ),
    (torch.AcceleratorError("CUDA error: out of memory\nCompile with"), f"{GPU} has not enough"),
    (
        torch.AcceleratorError(f"{TIMED_OUT}\nCompile with `TORCH_USE_CUDA_DSA`"),
        f"the driver of {GPU} ended a computation that took too long ({TIMED_OUT});",
    ),
    (
        torch.AcceleratorError(f"{NO_KERNEL}\nCompile with `TORCH_USE_CUDA_DSA`"),
        f"{GPU} cannot be used ({NO_KERNEL}); runtime.device=cpu trains without it",
    ),
    (
        RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with"),
        "this process has used CUDA already, so it cannot start workers that use it; a new process",
    ),
    (
        torch.AcceleratorError(f"{READ}\nCompile with `TORCH_USE_CUDA_DSA`"),
        f"a step cannot be recorded on {GPU} ({READ}); {ORDINARY}",
    ),
    (
        RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture"),
        f"a step cannot be recorded on {GPU} (Cannot call CUDAGenerator",
    ),
    (
        broken_off(torch.AcceleratorError(f"{READ}\nCompile with")),
        f"a step cannot be recorded on {GPU} ({READ}); {ORDINARY}",
    ),
    (
        broken_off(RuntimeError("no rule for this operator\nmore")),
        f"a step cannot be recorded on {GPU} (no rule for this operator); {ORDINARY}",
    ),
    (
        broken_off(torch.OutOfMemoryError(NO_MEMORY)),
        f"{GPU} has not enough memory for 20.00 MiB more; {LESS}",
    ),
    (
        RuntimeError(
            "avg_pool3d_backward_cuda does not have a deterministic implementation, but you set"
        ),
        f"avg_pool3d_backward_cuda does not have a deterministic implementation on {GPU};"
        " runtime.deterministic=false allows it",
    ),
]


@pytest.mark.parametrize(("error", "words"), GPU_ERRORS)
def test_what_a_gpu_does_to_a_run_is_one_line_with_a_remedy(monkeypatch, error, words):
    about = SimpleNamespace(name="NVIDIA A100", total_memory=80 * 2**30)
    assert describe(error).startswith(words.replace(GPU, "the GPU"))  # CUDA is not asked here
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: about)
    ended = WorkerExit.of(0, error)
    assert ended.fault.startswith(words)
    assert "\n" not in ended.fault
    assert not ended.lost


def test_an_unknown_error_of_a_gpu_keeps_its_traceback_and_is_no_lost_peer():
    ended = WorkerExit.of(0, torch.AcceleratorError("CUDA error: operation timed out in a kernel"))
    assert (ended.fault, ended.lost, ended.waited) == ("", False, False)
    assert "operation timed out" in ended.traceback


def test_a_mistake_in_a_method_keeps_its_traceback_while_a_step_is_recorded():
    ended = WorkerExit.of(0, broken_off(KeyError("misspelt")))
    assert ended.fault == ""
    assert "KeyError: 'misspelt'" in ended.traceback

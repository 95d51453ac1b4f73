"""What a machine does to a run: the disk is full, memory runs out, a worker dies.

Each becomes one line that says what happened and how to resume; an error that nobody expected keeps
its traceback. The exit status is 1: the configuration was right, and no finished work is lost.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError

from fedbench.core.errors import MachineFault

RESUME = "the last checkpoint is kept; the same command (without force=true) resumes"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
NO_MEMORY = re.compile(r"can('t|not) allocate memory|not enough memory|out of memory", re.I)
# cuBLAS and cuDNN do not speak of memory when they cannot allocate their own.
NO_GPU_MEMORY = re.compile(
    r"(?:CUDA|HIP)(?: error:)? out of memory|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"
    r"|CUDNN_STATUS_(?:\w*ALLOC\w*FAILED|NOT_INITIALIZED)"
)
# What PyTorch says when a step cannot be recorded as a CUDA graph, whatever the reason.
CAPTURE = re.compile(r"stream is capturing|capturing blocking stream|during (?:\w+ )*capture")
UNUSABLE_GPU = re.compile(
    r"no kernel image is available|driver version is insufficient|driver on your system is too old"
)
FORKED_TOO_LATE = "Cannot re-initialize CUDA in forked subprocess"
USED_BEFORE = "this process has used CUDA already, so it cannot start workers that use it"
# What gloo says when another rank is gone or silent: the consequence of a failure, not its cause.
LOST_PEER = re.compile(
    r"gloo|connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.I
)
TIMED_OUT = re.compile(r"timed? ?out", re.I)


class WorkerFault(Exception):
    """The machine ended a worker. The message says what happened, without how to resume."""


class WorkerFailure(Exception):
    """A worker raised an unexpected error. The message is its traceback."""


def full_disk(error: OSError) -> bool:
    return error.errno in FULL


def as_os_error(error: SafetensorError, path: Path) -> Exception:
    """safetensors hides the system's error number in a sentence; without one, the error itself."""
    number = re.search(r"os error (\d+)", str(error))
    if number is None:
        return error
    return OSError(int(number[1]), os.strerror(int(number[1])), str(path))


def describe(error: BaseException) -> str:
    """What the machine did, in a few words; empty for an ordinary error of the program."""
    if isinstance(error, WorkerFault):
        return str(error)
    if isinstance(error, OSError) and error.errno in (*FULL, *READ_ONLY):
        what = "the disk is full" if full_disk(error) else "the folder cannot be written"
        where = f", {error.filename}" if error.filename else ""
        return f"{what} ({error.strerror}{where})"
    if isinstance(error, RuntimeError):
        reason = _describe_recording(error) or _describe_gpu_error(str(error))
        if reason:
            return reason
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError | RuntimeError) and NO_MEMORY.search(str(error)):
        return "there is not enough memory"
    return ""


def _describe_recording(error: RuntimeError) -> str:
    """Why a step could not be recorded; empty for other errors.

    A recording that is broken off may end with an error of its own, in whose context the cause is.
    """
    if not CAPTURE.search(str(error)):
        return ""
    cause = error.__context__ or error
    if cause is not error:
        known = describe(cause)
        if known or not isinstance(cause, RuntimeError):  # a method's mistake: for its traceback
            return known
    first = str(cause).partition("\n")[0]
    return (
        f"a step cannot be recorded on {_this_gpu()} ({first}); runtime.graph=off takes ordinary"
        " steps"
    )


def _describe_gpu_error(text: str) -> str:
    """What went wrong on a GPU, and what helps; empty for other errors."""
    first = text.partition("\n")[0]
    if NO_GPU_MEMORY.search(text):
        size = re.search(r"Tried to allocate ([\d.]+ \w+)", text)
        more = f" for {size[1]} more" if size else ""
        return (
            f"{_this_gpu()} has not enough memory{more}; a smaller runtime.workers,"
            " client.batch_size or eval.batch_size needs less, and so does runtime.graph=off"
        )
    if "launch timed out" in text:
        return (
            f"the driver of {_this_gpu()} ended a computation that took too long ({first}); a GPU"
            " that draws a screen has such a limit"
        )
    if UNUSABLE_GPU.search(text):
        return f"{_this_gpu()} cannot be used ({first}); runtime.device=cpu trains without it"
    if FORKED_TOO_LATE in text:
        return f"{USED_BEFORE}; a new process can"
    if "does not have a deterministic implementation" in text:
        return f"{first.partition(',')[0]} on {_this_gpu()}; runtime.deterministic=false allows it"
    return ""


def _this_gpu() -> str:
    """The GPU of this rank, in words. Asks nothing of CUDA where nobody has used it."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):
            number = torch.cuda.current_device()
            about = torch.cuda.get_device_properties(number)
            return f"GPU {number} ({about.name}, {about.total_memory / 2**30:.0f} GiB)"
    return "the GPU"


def explain(error: BaseException, results: Path) -> MachineFault | None:
    """The line for a fault of the machine; None for an ordinary error of the program."""
    if isinstance(error, MachineFault):
        return error
    reason = describe(error)
    return MachineFault(f"results={results}: {reason}; {RESUME}") if reason else None


@dataclass
class WorkerExit:
    """How a worker ended: by a signal, by an error, or because it lost another worker."""

    rank: int
    signal: int = 0
    fault: str = ""  # what the machine did
    traceback: str = ""
    lost: bool = False  # another worker was gone or silent
    waited: bool = False  # it was silent for longer than runtime.timeout

    def name(self, workers: int) -> str:
        return f"worker {self.rank + 1} of {workers}"

    @classmethod
    def of(cls, rank: int, error: BaseException) -> WorkerExit:
        """In the worker: what the parent has to know about an error."""
        fault = describe(error)
        text = "".join(traceback.format_exception(error))
        of_gpu = isinstance(error, torch.AcceleratorError) or str(error).startswith(("CUDA", "HIP"))
        lost = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and not of_gpu and bool(LOST_PEER.search(str(error)))
        )
        lost = lost and not fault  # gloo reports a lack of memory on this machine, too
        waited = lost and bool(TIMED_OUT.search(str(error)))
        return cls(rank, fault=fault, traceback=text, lost=lost, waited=waited)


def first_cause(
    exits: list[WorkerExit], silent: list[int], workers: int, timeout: int
) -> Exception:
    """Why a run ended, from how its workers ended: a cause comes before its consequences.

    `silent` are the workers that still ran when the others had failed: they hang, if the others
    waited for them.
    """
    for one in exits:
        if one.signal:
            name = signal.Signals(one.signal).name
            hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
            return MachineFault(f"{one.name(workers)} was ended by {name}{hint}; {RESUME}")
    for one in exits:
        if one.fault:
            return WorkerFault(one.fault)
    unexpected = [one for one in exits if not one.lost]
    if not unexpected and any(one.waited for one in exits):
        waited = f"waited {timeout} seconds for"
        if silent:
            words = f"the others {waited} {WorkerExit(silent[0]).name(workers)}"
        else:
            words = f"workers {waited} each other"
        return MachineFault(f"runtime.timeout={timeout}: {words}; {RESUME}")
    shown = (unexpected or exits)[0]
    return WorkerFailure(f"{shown.name(workers)} failed:\n{shown.traceback}")

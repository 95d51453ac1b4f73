"""What a machine does to a run: full disks, folders that cannot be written, workers that die, hang
or raise.

Each becomes one line that says what happened and that the same command goes on; only what nobody
expected keeps its traceback. The exit status is 1: the configuration was right, and nothing that is
finished is lost.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import traceback
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError

GO_ON = "the last checkpoint is kept; the same command (without force=true) goes on"
REMOVED = "the folder was removed while the run went on"
FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the disk is full for this process (a limit on the size of files)",
    errno.EIO: "the disk does not work",
}
CLOSED = {
    errno.EROFS: "the folder is read-only",
    errno.EACCES: "the folder cannot be written",
    errno.EPERM: "the folder cannot be written",
    errno.ENOTDIR: "a file is where a folder must be",
    errno.EEXIST: "a file is where a folder must be",
    errno.EISDIR: "a folder is where a file must be",
    errno.EPIPE: "whoever read the output has gone",
    errno.EMFILE: "this process may not open more files (ulimit -n), and every worker needs some",
    errno.ENFILE: "the system may not open more files",
}
NO_MEMORY = re.compile(r"can't allocate memory|not enough memory|out of memory", re.IGNORECASE)
NO_FILES = re.compile(r"too many open files", re.IGNORECASE)
# What gloo says when another rank is gone or silent: the consequence of a failure, hardly ever its
# reason.
LOST_PEER = re.compile(
    r"gloo|connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE
)
HINTS = {
    signal.SIGKILL: "the kernel does that when memory runs out",
    signal.SIGABRT: "a library does that when it gets no memory, or no more open files: ulimit -n",
    signal.SIGBUS: (
        "the kernel does that when there is no room for shared memory, or a disk under a mapped"
        " file fails"
    ),
}
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)


class MachineFault(Exception):
    """A run that the machine ended. The message is one line."""


class WorkerFault(Exception):
    """The same in a worker, as `describe` tells it: the parent knows what else to say."""


class WorkerFailure(Exception):
    """A worker raised what nobody expected. The message is its own traceback."""


def full_disk(error: OSError) -> bool:
    return error.errno in FULL


def as_os_error(error: SafetensorError, path: Path) -> Exception:
    """safetensors hides the system's number in a sentence; without one, the error itself."""
    number = re.search(r"os error (\d+)", str(error))
    return (
        OSError(int(number.group(1)), os.strerror(int(number.group(1))), str(path))
        if number
        else error
    )


def describe(error: BaseException) -> str:
    """The machine's part in an exception, in one line; nothing when it is an ordinary error of the
    program.
    """
    if isinstance(error, WorkerFault):
        return str(error)
    if isinstance(error, OSError) and error.errno in FULL | CLOSED:
        where = f", {error.filename}" if error.filename else ""
        return f"{(FULL | CLOSED)[error.errno]} ({error.strerror}{where})"
    if (
        isinstance(error, FileNotFoundError)
        and error.filename
        and not Path(error.filename).parent.is_dir()
    ):
        return f"{REMOVED} ({error.filename})"
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return "there is not enough memory"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return "there is not enough memory"
    if isinstance(error, RuntimeError) and NO_MEMORY.search(str(error)):
        return "there is not enough memory"
    if isinstance(error, RuntimeError) and NO_FILES.search(str(error)):
        return CLOSED[errno.EMFILE]
    return ""


def explain(error: BaseException, results: Path) -> MachineFault | None:
    """The line for a known fault of the machine, else nothing."""
    if isinstance(error, MachineFault):
        return error
    reason = describe(error)
    then = "the same command goes on from what is left" if reason.startswith(REMOVED) else GO_ON
    return MachineFault(f"results={results}: {reason}; {then}") if reason else None


@dataclass
class Ended:
    """How a worker ended: of a signal, of an exception, of losing another one (`lost`), or well."""

    rank: int
    signal: int = 0
    fault: str = ""  # one line, of a fault of the machine
    traceback: str = ""
    lost: bool = False
    waited: bool = False  # lost because another one was silent for too long

    def name(self, workers: int) -> str:
        return f"worker {self.rank + 1} of {workers}"

    @classmethod
    def of(cls, rank: int, error: BaseException) -> Ended:
        """In the worker: what the parent has to know of an exception."""
        fault, text = describe(error), "".join(traceback.format_exception(error))
        lost = isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and bool(LOST_PEER.search(str(error)))
        )
        lost = lost and not fault  # gloo tells of this machine's want of files or memory, too
        waited = lost and bool(TIMED_OUT.search(str(error)))
        return cls(rank, fault=fault, traceback=text, lost=lost, waited=waited)


def reason(ended: list[Ended], silent: list[int], workers: int, timeout: int) -> Exception:
    """Why a run ended, of all that its workers said: the cause goes before its consequences.

    `silent` are the workers that had said nothing when the others had failed: they hang, if the
    others waited.
    """
    for one in ended:
        if one.signal:
            name = signal.Signals(one.signal).name
            hint = f" ({HINTS[one.signal]})" if one.signal in HINTS else ""
            return MachineFault(f"{one.name(workers)} was ended by {name}{hint}; {GO_ON}")
    # A worker that fails in a checkpoint removes what there is of it: the others may miss their
    # part of the folder.
    missed = [one for one in ended if one.fault.startswith(REMOVED)]
    for one in ended:
        if one.fault and one not in missed:
            return WorkerFault(one.fault)
    unexpected = next((one for one in ended if not one.lost and one not in missed), None)
    if unexpected is None and missed:
        return WorkerFault(missed[0].fault)
    if unexpected is None and any(one.waited for one in ended):
        waited = f"waited {timeout} seconds for"
        words = (
            f"the others {waited} {Ended(silent[0]).name(workers)}"
            if silent
            else f"workers {waited} each other"
        )
        return MachineFault(f"runtime.timeout={timeout}: {words}; {GO_ON}")
    shown = unexpected or ended[0]
    return WorkerFailure(f"{shown.name(workers)} failed:\n{shown.traceback}")

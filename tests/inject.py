"""Runs `fedbench ...` with one planted fault: `python tests/inject.py '{"place": ..., "call": n, ...}' WORDS`.

The n-th call of a place, in the chosen rank, is where it happens: the process is killed, hangs, raises, or the system
refuses to write. The product knows nothing of this file.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

import fedbench.checkpoint
from fedbench import cli as program
from fedbench import reporting, train
from fedbench.checkpoint import CheckpointStore
from fedbench.client import Trainer
from fedbench.federation import Federation
from fedbench.recorder import Recorder

PLACES = {  # where a fault can be planted: owner and name of a function
    "training": (Trainer, "_steps"),
    "aggregation": (Federation, "server_step"),
    "evaluation": (Federation, "evaluate"),
    "metrics": (Recorder, "_add_row"),
    "checkpoint": (CheckpointStore, "save"),
    "checkpoint-tensors": (fedbench.checkpoint, "_save"),
    "checkpoint-manifest": (CheckpointStore, "_complete"),
    "checkpoint-pruning": (fedbench.checkpoint, "_folders"),
    "rename": (os, "replace"),
    "final": (Recorder, "finish"),
    "final-summary": (Recorder, "_results"),
    "cleaning": (train, "clean"),
}
ERRORS = {name: getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "ENOMEM", "EMFILE")}


def strike(fault: dict) -> None:
    kind = fault["kind"]
    if fault.get("marker"):  # a file that says that it happened
        Path(fault["marker"]).touch()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "killall":
        os.killpg(0, signal.SIGKILL)
    elif kind in ("SIGINT", "SIGTERM"):
        os.kill(os.getppid() if dist.is_initialized() else os.getpid(), signal.Signals[kind])
    elif kind == "hang":
        time.sleep(1000)
    elif kind == "remove":
        shutil.rmtree("broken")
    elif kind == "memory":
        raise MemoryError
    elif kind in ERRORS:
        raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), "planted")
    else:
        raise ArithmeticError("a planted failure")


def plant(fault: dict) -> None:
    """Wrap the function so that its n-th call in the chosen rank strikes, before it does its work or after it."""
    owner, name = PLACES[fault["place"]]
    original: Callable = getattr(owner, name)
    calls = 0

    def struck(*arguments, **keywords):
        nonlocal calls
        rank = dist.get_rank() if dist.is_initialized() else 0
        calls += rank == fault.get("rank", 0)
        due = calls == fault.get("call", 1) and rank == fault.get("rank", 0)
        due = due and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"  # a restart is to be spared
        if due and not fault.get("after"):
            strike(fault)
        result = original(*arguments, **keywords)
        if due and fault.get("after"):
            strike(fault)
        return result

    setattr(owner, name, struck)


def limit_file_size(size: int) -> None:
    """Files cannot grow past it: what a full disk is, without one."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def obey_permissions() -> None:
    """Root may read and write everything; without these two capabilities it is a user like any other."""
    library, override, read_search = ctypes.CDLL(None, use_errno=True), 1 << 1, 1 << 2
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the third version of the interface, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low words, then high ones
    if library.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for low in range(3):
        sets[low] &= ~(override | read_search)
    if library.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def prepare(fault: dict) -> None:
    reporting.save_picture = lambda *_: None  # the partition's picture takes longer than the whole run
    if fault.get("file_size"):
        limit_file_size(fault["file_size"])
    if fault.get("open_files"):  # the limit, and how far the process may raise it
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(fault["open_files"]))
    if fault.get("closed"):
        os.close(1)
        sys.stdout = None
    if fault.get("encoding"):
        sys.stdout = open(1, "w", encoding=fault["encoding"], closefd=False)  # noqa: SIM115
    if fault.get("obedient"):
        obey_permissions()
    if fault.get("place"):
        plant(fault)


if __name__ == "__main__":
    prepare(json.loads(sys.argv.pop(1)))
    program.main()

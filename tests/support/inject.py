"""Runs `fedbench ...` with one planted fault: `python tests/support/inject.py '{"place": ...,
"call": n, ...}' WORDS`.

The n-th call of a place, in the chosen rank, is where it happens: the process is killed, hangs,
raises, or the system refuses to write. Nothing here goes by the clock: a signal has arrived before
the run goes on, and nobody loses patience with a rank that hangs before it does. The product knows
nothing of this file.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

import fedbench.runs.checkpoint
from fedbench import cli as program
from fedbench.parallel.interrupt import StopRequest
from fedbench.parallel.ranks import Ranks
from fedbench.runs import writer
from fedbench.runs.checkpoint import CheckpointStore
from fedbench.runs.folder import RunFolder
from fedbench.runs.writer import RunWriter
from fedbench.training.client import Trainer
from fedbench.training.federation import Federation

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a program, too
from support.waiting import LIMIT, wait_until

PLACES = {  # where a fault can be planted: owner and name of a function
    "training": (Trainer, "_steps"),
    "aggregation": (Federation, "server_step"),
    "evaluation": (Federation, "evaluate"),
    "metrics": (RunWriter, "_add_row"),
    "checkpoint": (CheckpointStore, "save"),
    "checkpoint-tensors": (fedbench.runs.checkpoint, "_save"),
    "checkpoint-manifest": (CheckpointStore, "_complete"),
    "checkpoint-pruning": (fedbench.runs.checkpoint, "_folders"),
    "rename": (os, "replace"),
    "final": (RunWriter, "_write_results"),
    "final-summary": (RunWriter, "_results"),
    "cleaning": (RunFolder, "clean"),
}
ERRORS = {
    name: getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EIO", "ENOMEM", "EMFILE")
}


# Exchanges between ranks, in which each waits for the others.
EXCHANGES = (
    *("init_process_group", "barrier", "all_reduce", "broadcast"),
    *("all_gather", "all_gather_single", "all_to_all_single"),
)
stops: list[StopRequest] = []  # of the runs of this process; a forked rank sees the last one's flag


class Board:
    """What forked ranks tell each other: how many exchanges each has begun, and that one hangs."""

    def __init__(self) -> None:
        self._numbers = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("I")

    @property
    def struck(self) -> bool:
        return bool(self._numbers[0])

    def strike(self) -> None:
        self._numbers[0] = 1

    def arrive(self, rank: int, ranks: int) -> None:
        """Wait until the others begin this exchange, too, or one of them hangs."""
        own = self._numbers[1 + rank] = self._numbers[1 + rank] + 1
        everyone = self._numbers[1 : 1 + ranks]
        wait_until(lambda: self.struck or min(everyone) >= own)


board = Board()


def strike(fault: dict) -> None:
    kind = fault["kind"]
    if fault.get("marker"):  # a file that says that it happened
        Path(fault["marker"]).touch()
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "killall":
        os.killpg(0, signal.SIGKILL)
    elif kind == "parent":
        assert dist.is_initialized(), "only a rank has a parent that may be killed"
        os.kill(os.getppid(), signal.SIGKILL)
        hang()
    elif kind in ("SIGINT", "SIGTERM"):
        os.kill(os.getppid() if dist.is_initialized() else os.getpid(), signal.Signals[kind])
        wait_until(lambda: stops[-1].requested)  # the parent may be slow to notice
    elif kind in ("own SIGINT", "own SIGTERM"):  # to one rank of torchrun's alone
        for _ in range(fault.get("times", 1)):
            os.kill(os.getpid(), signal.Signals[kind.removeprefix("own ")])
        wait_until(lambda: stops[-1].requested)
    elif kind == "until stopped":  # by a signal from elsewhere
        wait_until(lambda: stops[-1].requested)
    elif kind == "pause":  # until somebody removes the marker
        wait_until(lambda: not Path(fault["marker"]).exists())
    elif kind == "hang":
        hang()
    elif kind == "until cut":  # on every rank: somebody cuts the cable between them
        Path(f"here-{dist.get_rank()}").touch()
        wait_until(Path("cut").exists)
        board.strike()
    elif kind == "remove":  # at once, and not file by file beside a rank that writes
        os.rename("broken", "removed")
        shutil.rmtree("removed")
    elif kind == "memory":
        raise MemoryError
    elif kind in ERRORS:
        raise OSError(ERRORS[kind], os.strerror(ERRORS[kind]), "planted")
    else:
        raise ArithmeticError("a planted failure")


def hang() -> None:
    board.strike()
    time.sleep(2 * LIMIT)


def remember_stops() -> None:
    """Keep the requests to stop, so that a fault can wait until one has arrived."""
    original = StopRequest.__enter__

    def enter(stop: StopRequest) -> StopRequest:
        stops.append(stop)
        return original(stop)

    StopRequest.__enter__ = enter


def be_patient(together: bool) -> None:
    """Let limits of time count from when a rank hangs, and not while all get on slowly.

    `together`: the ranks share a board. Others wait for what happens before an exchange.
    """
    wanted: list[timedelta] = []

    def patient(name: str) -> None:
        original = getattr(dist, name)

        def exchange(*arguments, **keywords):
            if name == "init_process_group":
                wanted.append(keywords["timeout"])
                keywords["timeout"] = timedelta(seconds=LIMIT)
                if together:
                    board.arrive(keywords["rank"], keywords["world_size"])
            else:
                if together:
                    board.arrive(dist.get_rank(), dist.get_world_size())
                if board.struck:
                    dist.distributed_c10d._set_pg_timeout(wanted[-1])
            return original(*arguments, **keywords)

        setattr(dist, name, exchange)

    for name in EXCHANGES:
        patient(name)
    for name in ("_meet", "_gather"):  # of ranks that torchrun started
        without_limit(name)


def without_limit(name: str) -> None:
    original = getattr(Ranks, name)

    def wait(ranks: Ranks, *arguments):
        return original(ranks, *arguments[:-1], LIMIT)

    setattr(Ranks, name, wait)


def plant(fault: dict) -> None:
    """Wrap the function so that its n-th call in the chosen rank strikes, before it does its work
    or after it.
    """
    owner, name = PLACES[fault["place"]]
    original: Callable = getattr(owner, name)
    calls = 0

    def struck(*arguments, **keywords):
        nonlocal calls
        rank = dist.get_rank() if dist.is_initialized() else 0
        chosen = fault.get("rank", 0) in (rank, "every")
        calls += chosen
        due = (calls == fault.get("call", 1) or fault.get("every")) and chosen
        due = (
            due and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        )  # a restart is to be spared
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
    """Root may read and write everything; without these two capabilities it is a user like any
    other.
    """
    library, override, read_search = ctypes.CDLL(None, use_errno=True), 1 << 1, 1 << 2
    header = (ctypes.c_uint32 * 2)(
        0x20080522, 0
    )  # the third version of the interface, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; low words, then high ones
    if library.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    for low in range(3):
        sets[low] &= ~(override | read_search)
    if library.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def prepare(fault: dict) -> None:
    writer.save_picture = lambda *_: None  # it takes longer than the whole run
    if fault.get("file_size"):
        limit_file_size(fault["file_size"])
    if fault.get("open_files"):  # the limit, and how far the process may raise it
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(fault["open_files"]))
    if fault.get("encoding"):
        sys.stdout = open(1, "w", encoding=fault["encoding"], closefd=False)  # noqa: SIM115
    if fault.get("obedient"):
        obey_permissions()
    if fault.get("place"):
        remember_stops()
        plant(fault)
    if fault.get("kind") in ("hang", "until cut"):
        be_patient(together=fault["kind"] == "hang")


if __name__ == "__main__":
    prepare(json.loads(sys.argv.pop(1)))
    program.main()

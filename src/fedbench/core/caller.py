"""What another process has started ends with it: a run with `fedbench.run`, a rank with torchrun.

This module imports nothing that takes long.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

from fedbench.core.errors import UNEXPECTED

CALLER = "FEDBENCH_CALLER"  # in the environment: the number of the process that called fedbench.run
_RUN_ID = "TORCHELASTIC_RUN_ID"  # in the environment: torchrun started this process
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def under_torchrun() -> bool:
    """Whether torchrun started this process, or mpirun or srun with torchrun's variables."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def end_with_torchrun() -> None:
    """Have the kernel kill a rank when the process that started it ends. Others: nothing."""
    if not under_torchrun():
        return
    parent = os.getppid()
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It has died meanwhile, or even before its number was asked for.
    if os.getppid() != parent or took_over_from_torchrun(parent):
        os.write(2, b"torchrun has ended before this rank began: the rank ends, too\n")
        os._exit(UNEXPECTED)


def took_over_from_torchrun(parent: int) -> bool:
    """Whether this process is torchrun's and `parent` only took it over when torchrun died.

    torchrun has loaded PyTorch, and a program between it and its rank (`--no-python sh ...`) was
    given torchrun's variables as the rank was. Whoever takes over orphans, such as init, has
    neither. Where that cannot be read, and with mpirun or srun, nobody is suspected.
    """
    if _RUN_ID not in os.environ:
        return False
    process = Path("/proc") / str(parent)
    try:
        if _user(process) != _user(Path("/proc/self")):
            return True
        given = (process / "environ").read_bytes()
        loaded = (process / "maps").read_bytes()
    except OSError:
        return False
    return f"{_RUN_ID}=".encode() not in given and b"/libtorch" not in loaded


def _user(process: Path) -> str:
    """The real user of a process, and the effective one, as the kernel lists them."""
    lines = (process / "status").read_text().splitlines()
    return next((line for line in lines if line.startswith("Uid:")), "")


def stop_with_the_caller() -> None:
    """Stop as SIGTERM does, with a checkpoint, when the caller dies. Without a caller: nothing."""
    caller = os.environ.pop(CALLER, None)  # its children are not the caller's
    if caller is None:
        return
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        """Once: the kernel may report the end of several threads of the caller."""
        nonlocal stopped
        if not stopped:
            stopped = True
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGHUP, stop)
    with suppress(OSError, AttributeError):  # another system than Linux
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGHUP)
    if str(os.getppid()) != caller:  # it has died already
        signal.raise_signal(signal.SIGHUP)

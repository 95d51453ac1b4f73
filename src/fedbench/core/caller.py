"""What another process has started ends with it: a run with `fedbench.run`, a rank with torchrun.

This module imports nothing that takes long.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from types import FrameType

from fedbench.core.errors import UNEXPECTED

CALLER = "FEDBENCH_CALLER"  # in the environment: the number of the process that called fedbench.run
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
    if os.getppid() != parent:  # it has died meanwhile
        os._exit(UNEXPECTED)


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

"""A run that `fedbench.run` has started as a process of its own ends with its caller."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from types import FrameType

CALLER = "FEDBENCH_CALLER"  # in the environment: the number of the process that called fedbench.run
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


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

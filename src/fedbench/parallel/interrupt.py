"""Ctrl-C and SIGTERM end a run after the current round, with a checkpoint.

A second one ends it at once. Under torchrun, or whoever else starts ranks, a second one does
nothing here: what stops all processes of a job, such as Slurm, reaches a rank twice, itself and
through torchrun. torchrun ends its ranks when it gets a second signal, or after 30 seconds.
"""

from __future__ import annotations

import collections
import mmap
import signal
import sys
from types import FrameType
from typing import Any

from fedbench.parallel.processes import speaks, under_torchrun


class StopRequest:
    """A flag that signals set in the parent and that forked ranks read.

    `with StopRequest() as stop:` handles the signals of a run; `stop.requested` is the flag.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)  # anonymous shared memory: a fork sees later changes
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        return self._shared[0] != 0

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if under_torchrun():
                return
            raise KeyboardInterrupt
        self._shared[0] = 1
        if speaks():
            again = "" if under_torchrun() else " (Ctrl-C again stops at once)"
            words = f"stopping after this round, with a checkpoint{again}"
            print(words, file=sys.stderr, flush=True)

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def forget_interruptions() -> None:
    """Make the exit status count, although an interruption was handled before.

    When a KeyboardInterrupt passes through the `exec` or `eval` of a text (as libraries call them
    while they are imported), CPython 3.11 notes it and in the end kills itself with SIGINT, handled
    or not. The next such call clears the note, and every namedtuple makes one.
    """
    collections.namedtuple("Nothing", ())

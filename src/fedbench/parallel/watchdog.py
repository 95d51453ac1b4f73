"""A process that is alone has nobody who waits for it: it looks after itself, by the clock.

Several workers notice in their exchanges when one of them is silent; see
`fedbench.parallel.processes`.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from fedbench.parallel.failures import WorkerFault

# Processor time between two looks below which nothing was done. What waits for ever uses none; what
# computes, however long a round takes, uses much more.
IDLE_SECONDS = 0.01


@contextmanager
def watchdog(timeout: float) -> Iterator[None]:
    """End the work inside when it has used no processor time for `timeout` seconds.

    It looks twice in that time, and believes the second look: the first may follow a while in which
    the whole process was stopped. A worker that hangs inside a C library is not reached by this.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are for the main thread
        yield
        return
    used, idle_looks = time.process_time(), 0

    def look(number: int, frame: FrameType | None) -> None:
        nonlocal used, idle_looks
        before, used = used, time.process_time()
        idle = (
            used - before < IDLE_SECONDS and sys.gettrace() is None
        )  # in a debugger somebody may be thinking
        idle_looks = idle_looks + 1 if idle else 0
        if idle_looks == 2:
            raise WorkerFault(
                f"the worker did nothing for {timeout:g} seconds (runtime.timeout={timeout:g})"
            )

    handler = signal.signal(signal.SIGALRM, look)
    signal.siginterrupt(signal.SIGALRM, False)  # what the look interrupts goes on
    signal.setitimer(signal.ITIMER_REAL, timeout / 2, timeout / 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)

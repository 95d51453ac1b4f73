"""Waiting for something that happens, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 600  # seconds after which it never will: no test depends on how long it takes


def wait_until(true: Callable[[], object], seconds: float = LIMIT) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds:g} seconds"
        time.sleep(0.005)

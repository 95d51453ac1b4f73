"""What operating systems answer in different ways. Linux is tested; macOS is not."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import socket
import sys
from pathlib import Path

LOOPBACK_NAMES = ("lo", "lo0")  # Linux, macOS


def available_cores() -> int:
    """The cores that this process may use. macOS cannot tell, so there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_name() -> str:
    """The processor and its cores, as far as the system tells: "AMD EPYC 7B13, 2 cores"."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # Linux has it in a file
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    return f"{processor}, {available_cores()} cores"


def loopback_interface() -> str | None:
    """The network interface that leads to this machine alone; None if there is none."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in LOOPBACK_NAMES if name in names), None)


def peak_memory() -> int:
    """The most bytes of memory that this process had. Linux counts KiB, macOS bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak

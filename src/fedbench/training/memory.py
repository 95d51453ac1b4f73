"""What a run needs of memory at the very least, and what there is: the kernel kills without a word,
so ask before.

Only what certainly does not fit is refused. Activations, data and the memories of clients come on
top and are not counted: they depend on too much.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from fedbench.core.errors import BadInput

# Vectors as long as all parameters. To build a model: its own, and the flat ones for parameters and
# gradients.
TO_BUILD = 3
# Every worker: its own, the server's and the initial parameters. One that trains a client:
# gradients and the path.
TO_WORK, TO_TRAIN = 3, 2
GIBIBYTE = 2**30
FLOAT = 4  # bytes


def check_model(build: Callable[[], nn.Module]) -> None:
    """Refuse a model that no memory here can hold, before it is built: on the device "meta" it
    takes none.
    """
    try:
        with torch.device("meta"):
            parameters = sum(parameter.numel() for parameter in build().parameters())
    except Exception:  # whatever is wrong with it is told when it is built in earnest
        return
    _require(TO_BUILD * parameters * FLOAT, f"a model of {parameters:,} parameters")


def check_training(parameters: int, workers: int, clients: int, momentum: bool) -> None:
    """Refuse what the workers of this machine cannot hold, when they train on the CPU this many
    clients a round.
    """
    vectors = workers * TO_WORK + min(workers, clients) * (TO_TRAIN + momentum)
    counted = f"{workers} worker{'s' if workers > 1 else ''}"
    _require(
        vectors * parameters * FLOAT,
        f"training {parameters:,} parameters with {counted} (runtime.workers)",
    )


def _require(needed: int, what: str) -> None:
    there = available()
    if there is not None and needed > there:
        sizes = (
            f"at least {needed / GIBIBYTE:.1f} GiB, and {there / GIBIBYTE:.1f} GiB are available"
        )
        raise BadInput(
            f"model, runtime: too large for this machine's memory ({what} takes {sizes})"
        )


def available(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes that may still be used, swap included: of the machine, and of this process's control
    groups.
    """
    try:
        lines = [line.split() for line in (proc / "meminfo").read_text().splitlines()]
        plan = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
        swap = plan.get("SwapFree", 0)
        rooms = [
            plan["MemAvailable"],
            *_rooms_of_groups((proc / "self/cgroup").read_text(), groups),
        ]
    except (
        OSError,
        ValueError,
        KeyError,
        IndexError,
    ):  # not Linux, or not as expected: nothing is known
        return None
    return min(rooms) + swap


def _rooms_of_groups(memberships: str, groups: Path) -> list[int]:
    rooms = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names, top = ("memory.max", "memory.current", "file"), groups
        elif "memory" in controllers.split(","):
            names, top = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
                groups / "memory",
            )
        else:
            continue
        folder = Path(os.path.normpath(f"{top}/{path}"))
        # A container may see its own group as the root, whatever the path says.
        for group in {
            top,
            folder,
            *(parent for parent in folder.parents if parent.is_relative_to(top)),
        }:
            room = _room(group, *names)
            rooms += [] if room is None else [room]
    return rooms


def _room(group: Path, limit: str, used: str, cached: str) -> int | None:
    """What a group may still use; the files that the kernel keeps in memory for it give way."""
    try:
        most = (group / limit).read_text().strip()
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(most) - int((group / used).read_text()) + int(stat[cached])
    except (OSError, ValueError, KeyError):  # no limit ("max"), or no such group
        return None

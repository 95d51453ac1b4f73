"""Measure what a round sends between ranks without shared memory, as bytes on the loopback device.

    unshare --net sh -c 'ip link set lo up && .venv/bin/python scripts/traffic.py'

The new network namespace (for root) has no other traffic. Ranks are forked, but get no shared
memory, as under `torchrun`. Only what clients send and its sums travel here; what a run gathers for
its records and evaluation comes on top.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path

import torch
import torch.distributed as dist

from fedbench.parallel.exchange import Exchange
from fedbench.parallel.group import Group, balance
from fedbench.parallel.processes import launch

MODELS = {"LeNet": 61_706, "MLP": 199_210}
BYTES = 4


def loopback_bytes() -> int:
    """What the loopback device has carried so far, with the headers of its packets."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        device, _, numbers = line.partition(":")
        if device.strip() == "lo":
            return int(numbers.split()[0])
    raise SystemExit("there is no loopback device here")


def bytes_of_rounds(ranks: int, cohort: int, width: int, rounds: int) -> float:
    """Mean bytes that a rank receives in a round."""
    measured = multiprocessing.Value("q", 0)

    def work(group: Group) -> None:
        owners = balance([1] * cohort, group.size)
        dist.barrier()
        before = loopback_bytes()
        dist.barrier()
        for _ in range(rounds):
            exchange = Exchange(group, owners, width, torch.float32)
            exchange.mine.fill_(1.0)
            exchange.send()
            exchange.add_to(torch.zeros(width), slice(0, width), [1.0] * cohort)
        dist.barrier()
        if group.leader:
            measured.value = loopback_bytes() - before
        dist.barrier()

    Group.shared_tensor = lambda *rest: None
    launch(work, ranks, timeout=300)
    return measured.value / rounds / ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    print("| model | ranks | bytes a rank and round | rows |\n| --- | --- | --- | --- |")
    for name, width in MODELS.items():
        for ranks in asked.ranks:
            measured = bytes_of_rounds(ranks, asked.cohort, width, asked.rounds)
            rows = measured / (BYTES * width)
            print(f"| {name} ({width:,}) | {ranks} | {measured:,.0f} | {rows:.2f} |", flush=True)


if __name__ == "__main__":
    main()

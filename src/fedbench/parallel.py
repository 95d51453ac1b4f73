"""SPMD on torch.distributed: every rank runs the same program and gathers rows in client order.

`runtime.workers=N` forks N ranks on this machine, which pass rows through shared memory; under `torchrun` the ranks
exist already, perhaps on several machines, and rows travel by gloo. A group of one needs no process group at all.
Rows are always in CPU memory, so that several ranks can share one GPU and the reduction is the same everywhere.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

# Elements of a gathered block: 64 MiB of float32. Larger models are gathered in pieces along the parameters.
BLOCK_ELEMENTS = 2**24
VECTOR = 64  # pieces end at multiples of this many elements, where a loop over vector registers leaves no rest
GRACE_SECONDS = 2  # how long the other ranks may take to notice that one has failed, before they are killed


class Group:
    """The ranks of this run; a single process unless a process group is up."""

    def __init__(self, shared: mmap.mmap | None = None) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self._shared = torch.frombuffer(shared, dtype=torch.uint8) if shared is not None else None

    @property
    def leader(self) -> bool:
        return self.rank == 0

    def gather(self, rows: Tensor, owners: list[int]) -> Tensor:
        """All rows in client order: row i comes from rank owners[i], whose own rows stand in the same order."""
        return torch.cat([matrix.clone() for matrix in self._pieces(rows, owners)], dim=1)

    def weighted_sum(self, rows: Tensor, owners: list[int], coefficients: list[float]) -> Tensor:
        """sum_i coefficients[i] * row_i, added up in client order: the same bits for any number of ranks."""
        sums = []
        for matrix in self._pieces(rows, owners):
            total = torch.zeros(matrix.shape[1], dtype=rows.dtype)
            for row, coefficient in zip(matrix, coefficients, strict=True):
                total.add_(row, alpha=coefficient)
            sums.append(total)
        return torch.cat(sums)

    def _pieces(self, rows: Tensor, owners: list[int]) -> Iterator[Tensor]:
        """The gathered matrix in pieces along its columns, so that memory stays bounded; each is valid until the next.

        Their width depends only on the number of rows, and vector instructions see the same columns for any number
        of ranks.
        """
        width = max(VECTOR, BLOCK_ELEMENTS // max(len(owners), 1) // VECTOR * VECTOR)
        for start in range(0, max(rows.shape[1], 1), width):
            columns = rows[:, start : start + width]
            if self.size == 1:
                yield columns
            elif self._shared is not None and len(owners) * columns.shape[1] * 8 <= len(self._shared):
                yield self._exchange_in_memory(columns, owners)
            else:
                yield self._exchange_by_gloo(columns, owners)

    def _exchange_in_memory(self, rows: Tensor, owners: list[int]) -> Tensor:
        size = len(owners) * rows.shape[1]
        matrix = self._shared[: size * rows.element_size()].view(rows.dtype).view(len(owners), rows.shape[1])
        self.barrier()  # everyone has read what stood here before
        mine = [position for position, owner in enumerate(owners) if owner == self.rank]
        for position, row in zip(mine, rows, strict=True):
            matrix[position] = row
        self.barrier()
        return matrix

    def _exchange_by_gloo(self, rows: Tensor, owners: list[int]) -> Tensor:
        longest = max(owners.count(rank) for rank in range(self.size))
        padded = rows.new_zeros((longest, rows.shape[1]))
        padded[: len(rows)] = rows
        everything = rows.new_empty((self.size * longest, rows.shape[1]))
        dist.all_gather_single(everything, padded)
        taken = [0] * self.size
        order = []
        for owner in owners:
            order.append(owner * longest + taken[owner])
            taken[owner] += 1
        return everything[torch.tensor(order, dtype=torch.int64)]

    def any(self, flag: bool) -> bool:
        """True on every rank when it is true on one."""
        if self.size == 1:
            return flag
        value = torch.tensor([int(flag)])
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def share(self, number: int) -> int:
        """The leader's number, on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number])
        dist.broadcast(value, src=0)
        return int(value.item())

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def balance(loads: list[int], ranks: int) -> list[int]:
    """An owner for each item: the largest first, to the least loaded rank."""
    totals, owners = [0] * ranks, [0] * len(loads)
    for item in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        rank = min(range(ranks), key=lambda r: (totals[r], r))
        owners[item] = rank
        totals[rank] += max(loads[item], 1)
    return owners


def under_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()


def join_torchrun(timeout: int) -> Group:
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(seconds=timeout))
    return Group()


def launch(work: Callable[[Group], None], workers: int, timeout: int) -> None:
    """Run `work` on every rank of this machine; a rank that fails ends the others and its traceback is raised.

    Ranks are forked: they inherit the data without a copy and start without importing torch again. That is safe
    while the parent has started no thread pool and not touched CUDA, which main.py sees to.
    """
    if workers == 1:
        work(Group())
        return
    with tempfile.TemporaryDirectory(prefix="fedbench-") as folder:
        shared = mmap.mmap(-1, 8 * BLOCK_ELEMENTS)  # anonymous; a page costs nothing before it is used
        arguments = (work, workers, timeout, str(Path(folder) / "rendezvous"), shared)
        ranks = multiprocessing.start_processes(_rank, arguments, workers, join=False, start_method="fork")
        try:
            while not ranks.join(grace_period=GRACE_SECONDS):
                pass
        finally:  # a second Ctrl-C lands here: no orphan remains
            for process in ranks.processes:
                process.kill()


def _rank(
    rank: int, work: Callable[[Group], None], workers: int, timeout: int, rendezvous: str, shared: mmap.mmap
) -> None:
    # The parent alone handles Ctrl-C and SIGTERM, and tells the ranks; should it die, the kernel ends this rank.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # this machine only: no name lookup
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=workers,
        timeout=timedelta(seconds=timeout),
    )
    work(Group(shared))
    dist.destroy_process_group()

"""The ranks of a run and what they exchange: flags, numbers and rows in client order.

Every rank runs the same program (SPMD). A group of one needs no process group at all. Ranks that
were forked on this machine pass rows through shared memory; those that `torchrun` started, perhaps
on several machines, send them by gloo. Rows are always in CPU memory, so that several ranks can
share one GPU and sums are the same everywhere.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

# Rows are sent between machines in pieces of this many elements: 64 MiB of float32.
PIECE_ELEMENTS = 2**24
# Clients are trained in blocks, whose updates are then summed. The updates of a block have at most
# this many elements (256 MiB of float32), or one row a rank. Shared memory has room for a block.
BLOCK_ELEMENTS = 2**26


class SharedMemory:
    """Two areas of memory that forked ranks share, and use in turns.

    A rank that writes into one area again has passed the barrier of the other, which every rank
    entered after it had read the first. So one barrier an exchange is enough.
    """

    def __init__(self, elements: int) -> None:
        self._bytes = 8 * elements  # enough for the widest type
        # Anonymous and shared with forks; a page costs nothing before it is used.
        self._area = torch.frombuffer(mmap.mmap(-1, 2 * self._bytes), dtype=torch.uint8)
        self._second = False

    def next(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor at the same place on every rank, valid until the exchange after the next."""
        self._second = not self._second
        start = self._bytes if self._second else 0
        size = math.prod(shape) * dtype.itemsize
        return self._area[start : start + size].view(dtype).view(*shape)


class Group:
    """The ranks of this run; a single process unless a process group is up."""

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self._memory = memory  # of ranks that were forked on this machine

    @property
    def leader(self) -> bool:
        return self.rank == 0

    @property
    def forked(self) -> bool:
        """Whether the ranks were forked on this machine."""
        return self._memory is not None

    def shared_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """A tensor that every rank sees, valid until the one after the next.

        None without shared memory, or where it has no room.
        """
        if self.size == 1 or self._memory is None or math.prod(shape) > BLOCK_ELEMENTS:
            return None
        return self._memory.next(shape, dtype)

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

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, all of the same length."""
        if self.size == 1:
            return [text]
        own = torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8)
        texts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(texts, own)
        return [bytes(one.tolist()).decode("ascii") for one in texts]

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

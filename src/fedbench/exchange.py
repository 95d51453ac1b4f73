"""What clients send, from the ranks that trained them to all ranks, summed in client order.

Forked ranks write their rows straight into shared memory, where the others read them; each rank adds up its share of
the columns. Ranks that `torchrun` started send their rows by gloo, in pieces along the columns. Either way, memory is
bounded, and a sum has the same bits for any number of ranks: it runs in client order, and columns are cut only where
a loop over vector registers leaves no rest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from fedbench.parallel import PIECE_ELEMENTS, Group

SUM_ELEMENTS = 2**23  # of rows that are summed at a time
VECTOR = 64  # columns are cut at multiples of this many elements


class Exchange:
    """One row from every client of `owners`, which names the rank that has it.

    In shared memory there is one row more, for the sums: each column has a place of its own there, so a column can be
    summed once.
    """

    def __init__(self, group: Group, owners: list[int], width: int, dtype: torch.dtype):
        self.group, self.width = group, width
        counts = [owners.count(rank) for rank in range(group.size)]
        firsts = list(accumulate(counts, initial=0))
        taken = [0] * group.size
        self.places = []  # where each client's row stands when the rows of a rank are side by side
        for owner in owners:
            self.places.append(firsts[owner] + taken[owner])
            taken[owner] += 1
        self.counts = counts
        self.shared = group.shared_tensor((len(owners) + 1, width), dtype)
        own = slice(firsts[group.rank], firsts[group.rank + 1])
        self.mine = torch.empty(counts[group.rank], width, dtype=dtype) if self.shared is None else self.shared[own]

    def send(self) -> None:
        """Say that this rank's rows are written, and wait for the others."""
        if self.shared is not None:
            self.group.barrier()

    def rows(self, columns: slice | None = None) -> Tensor:
        """All rows in client order, or some of their columns."""
        columns = columns or slice(0, self.width)
        matrix = self._gather(columns) if self.shared is None else self.shared[:, columns]
        return matrix[self.places]

    def add_to(self, total: Tensor, columns: slice, coefficients: list[float]) -> None:
        """total += sum_i coefficients[i] * row_i on some columns, row by row.

        Clients may come in several exchanges, one after the other: the order of the additions is the same.
        """
        if self.shared is not None:
            self._add_share(total, columns, coefficients)
            return
        width = max(VECTOR, PIECE_ELEMENTS // max(len(self.places), 1) // VECTOR * VECTOR)
        for start in range(0, len(total), width):
            piece = slice(columns.start + start, min(columns.start + start + width, columns.stop))
            self._add(total[start : start + width], self._gather(piece), coefficients)

    def _add_share(self, total: Tensor, columns: slice, coefficients: list[float]) -> None:
        """Add up this rank's share of the columns in shared memory, and collect the others' shares."""
        size, width = self.group.size, len(total)
        cuts = [width * rank // size // VECTOR * VECTOR for rank in range(size)] + [width]
        share = slice(cuts[self.group.rank], cuts[self.group.rank + 1])
        self._add(total[share], self.shared[:, columns][:, share], coefficients)
        result = self.shared[-1, columns]
        result[share] = total[share]
        self.group.barrier()
        total.copy_(result)

    def _add(self, total: Tensor, matrix: Tensor, coefficients: list[float]) -> None:
        for place, coefficient in zip(self.places, coefficients, strict=True):
            total.add_(matrix[place], alpha=coefficient)

    def _gather(self, columns: slice) -> Tensor:
        """Every rank's rows side by side, on some columns, by gloo."""
        own = self.mine[:, columns]
        if self.group.size == 1:
            return own
        longest = max(self.counts)
        padded = own.new_zeros((longest, own.shape[1]))
        padded[: len(own)] = own
        everything = own.new_empty((self.group.size * longest, own.shape[1]))
        dist.all_gather_single(everything, padded)
        pieces = everything.split(longest)
        return torch.cat([piece[:count] for piece, count in zip(pieces, self.counts, strict=True)])


def weighted_sum(
    group: Group,
    owners: list[int],
    weights: list[float],
    width: int,
    dtype: torch.dtype,
    write: Callable[[int, Tensor], None],
) -> Tensor:
    """sum_i weights[i] * row_i on every rank; `write(i, row)` fills the rows that this rank owns, some at a time."""
    total = torch.zeros(width, dtype=dtype)
    block = max(group.size, SUM_ELEMENTS // max(width, 1))
    for start in range(0, len(owners), block):
        members = range(start, min(start + block, len(owners)))
        exchange = Exchange(group, [owners[i] for i in members], width, dtype)
        mine = [i for i in members if owners[i] == group.rank]
        for row, i in zip(exchange.mine, mine, strict=True):
            write(i, row)
        exchange.send()
        exchange.add_to(total, slice(0, width), [weights[i] for i in members])
    return total


def gather(group: Group, rows: Tensor, owners: list[int]) -> Tensor:
    """All ranks' rows in client order: row i comes from rank owners[i], whose own rows stand in the same order."""
    exchange = Exchange(group, owners, rows.shape[1], rows.dtype)
    exchange.mine.copy_(rows)
    exchange.send()
    return exchange.rows()

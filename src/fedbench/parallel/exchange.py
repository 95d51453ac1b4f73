"""What clients send, from the ranks that trained them to all ranks, summed in client order.

Every rank sums its share of the columns of all rows, and then all ranks have the sums:

    client 0, of rank 0   [ a | b ]     rank 0: a + c + e     all ranks: [ a + c + e | b + d + f ]
    client 1, of rank 1   [ c | d ]     rank 1: b + d + f
    client 2, of rank 0   [ e | f ]

Forked ranks read each other's rows in shared memory. Ranks that `torchrun` started send each other
the shares of their rows by gloo, in pieces along the columns: a rank receives less than
rows / ranks + 1 whole rows. Either way memory is bounded, and a sum has the same bits for any
number of ranks: it runs in client order, and columns are cut only where a loop over vector
registers leaves no rest.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from fedbench.parallel.group import PIECE_ELEMENTS, Group

SUM_ELEMENTS = 2**23  # of rows that are summed at a time
VECTOR = 64  # columns are cut at multiples of this many elements


class Exchange:
    """One row from every client of `owners`, which names the rank that has it.

    In shared memory there is one row more, for the sums: each column has a place of its own there.
    Before a column is summed again, all ranks must have met: one may still be reading.
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
        self.mine = (
            torch.empty(counts[group.rank], width, dtype=dtype)
            if self.shared is None
            else self.shared[own]
        )

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

        Clients may come in several exchanges, one after the other: the order of the additions is
        the same.
        """
        step = max(len(total), 1) if self.shared is not None else self._piece_width()
        for start in range(0, len(total), step):
            piece = total[start : start + step]
            first = columns.start + start
            self._add_piece(piece, slice(first, first + len(piece)), coefficients)

    def _piece_width(self) -> int:
        """So many columns that all rows together have at most PIECE_ELEMENTS elements there."""
        return max(VECTOR, PIECE_ELEMENTS // max(len(self.places), 1) // VECTOR * VECTOR)

    def _add_piece(self, total: Tensor, columns: slice, coefficients: list[float]) -> None:
        """Add up this rank's share of these columns, and take over the sums of the other shares."""
        cuts = share_cuts(len(total), self.group.size)
        share = slice(cuts[self.group.rank], cuts[self.group.rank + 1])
        matrix, own_sums = self._receive_share(columns, cuts), total[share]
        for place, coefficient in zip(self.places, coefficients, strict=True):
            own_sums.add_(matrix[place], alpha=coefficient)
        if self.shared is not None:
            sums = self.shared[-1, columns]
            sums[share] = own_sums
            self.group.barrier()
            total.copy_(sums)
        elif self.group.size > 1:
            self._gather_sums(total, own_sums, cuts)

    def _receive_share(self, columns: slice, cuts: list[int]) -> Tensor:
        """This rank's share of these columns of all rows; by gloo, every rank gets its own."""
        widths = [stop - start for start, stop in pairwise(cuts)]
        if self.shared is not None:
            return self.shared[:, columns].split(widths, dim=1)[self.group.rank]
        own = self.mine[:, columns]
        if self.group.size == 1:
            return own
        share_width = widths[self.group.rank]
        outgoing = torch.cat([part.flatten() for part in own.split(widths, dim=1)])
        incoming = own.new_empty(len(self.places) * share_width)
        dist.all_to_all_single(
            incoming,
            outgoing,
            output_split_sizes=[count * share_width for count in self.counts],
            input_split_sizes=[len(own) * width for width in widths],
        )
        return incoming.view(len(self.places), share_width)

    def _gather_sums(self, total: Tensor, own_sums: Tensor, cuts: list[int]) -> None:
        """Every rank's sums, side by side, by gloo. No share is wider than the first."""
        padded = total.new_zeros(cuts[1])
        padded[: len(own_sums)] = own_sums
        everything = total.new_empty(self.group.size * len(padded))
        dist.all_gather_single(everything, padded)
        total.copy_(everything[: len(total)])

    def _gather(self, columns: slice) -> Tensor:
        """Every rank's rows side by side, on some columns, by gloo."""
        own = self.mine[:, columns]
        if self.group.size == 1:
            return own
        longest = max(self.counts)
        padded = own.new_zeros((longest, own.shape[1]))
        padded[: len(own)] = own
        everything = own.new_empty((self.group.size, longest, own.shape[1]))
        dist.all_gather_single(everything.flatten(0, 1), padded)
        received = zip(everything, self.counts, strict=True)
        return torch.cat([rows[:count] for rows, count in received])


def share_cuts(width: int, ranks: int) -> list[int]:
    """Where columns are cut into a share for every rank: `share_cuts(200, 2)` is `[0, 128, 200]`.

    Shares are equally wide, but for the last ones, which may be narrower or empty.
    """
    share = -(-width // (ranks * VECTOR)) * VECTOR
    return [min(rank * share, width) for rank in range(ranks + 1)]


def weighted_sum(
    group: Group,
    owners: list[int],
    weights: list[float],
    width: int,
    dtype: torch.dtype,
    write: Callable[[int, Tensor], None],
) -> Tensor:
    """sum_i weights[i] * row_i on every rank; `write(i, row)` fills the rows that this rank owns,
    some at a time.
    """
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
    """All ranks' rows in client order: row i comes from rank owners[i], whose own rows stand in the
    same order.
    """
    exchange = Exchange(group, owners, rows.shape[1], rows.dtype)
    exchange.mine.copy_(rows)
    exchange.send()
    return exchange.rows()

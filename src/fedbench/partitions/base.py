"""What drawn partitions share: a table of how many samples of each class a client gets, and dealing
them.

Everything works on that table [clients, classes]: the check of `min_samples`, topping up small
clients and dealing. So a draw is cheap enough to repeat, and every training index is used exactly
once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedbench.core.errors import bad_value, require
from fedbench.core.seeding import numpy_generator

TRIES = 20  # draws before small clients are topped up


@dataclass(frozen=True)
class Split:
    """Sorted int64 indices into the training set, one array a client, and how they came about."""

    parts: list[np.ndarray]
    tries: int = 1  # draws made
    moved: int = 0  # samples moved between clients to reach `min_samples`
    local_tests: list[np.ndarray] | None = (
        None  # a client's own test samples, which are then not in `parts`
    )


def hold_out(split: Split, share: float, seed: int) -> Split:
    """Put a random share of every client's samples aside to test it with; at least one stays for
    training.
    """
    require(0 <= share < 1, "partition.local_test", share, "a number from 0 to below 1 is allowed")
    if share == 0:
        return split
    train, tests = [], []
    for client, own in enumerate(split.parts):
        order = numpy_generator(seed, "local test", client).permutation(own)
        count = min(max(1, round(share * len(own))), len(own) - 1) if len(own) else 0
        tests.append(np.sort(order[:count]))
        train.append(np.sort(order[count:]))
    require(
        any(map(len, tests)),
        "partition.local_test",
        share,
        "no client has two samples; only 0 is allowed",
    )
    return replace(split, parts=train, local_tests=tests)


class Draw(NamedTuple):
    """One try."""

    counts: np.ndarray  # samples, [clients, classes]
    held: np.ndarray  # the classes that a client may have, [clients, classes]


@dataclass(frozen=True)
class Partition(ABC):
    """Settings of a drawn partition: a function of (labels, settings, seed), every index used
    exactly once.

    The first of `TRIES` draws that gives every client `min_samples` is kept. If none does, the very
    first is repaired (an odd one chosen for its sizes would not follow the distribution): in client
    order, a client below the minimum gets random samples, of classes that it may have, from the
    client that is largest at that moment. None gives below the minimum. `Split.moved` counts these
    samples.
    """

    clients: int = 10
    min_samples: int = 1
    local_test: float = 0.0  # share of a client's samples that are put aside to test it with

    @abstractmethod
    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        """One try, from the number of training samples of each class."""

    def check(self, totals: np.ndarray) -> None:
        """Refuse what no draw can give. Kinds with more settings add their own checks."""
        samples = int(totals.sum())
        allowed = f"from 1 to {samples}, the training samples"
        require(1 <= self.clients <= samples, "partition.clients", self.clients, allowed)
        most = samples // self.clients
        allowed = f"from 1 to {most}, what {samples} training samples give {self.clients} clients"
        require(1 <= self.min_samples <= most, "partition.min_samples", self.min_samples, allowed)

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        """The split and how it came about."""
        totals = np.bincount(labels, minlength=classes)
        self.check(totals)
        first = None
        for attempt in range(TRIES):
            rng = numpy_generator(seed, "partition", attempt)
            table = self.draw_counts(totals, rng)
            if table.counts.sum(axis=1).min() >= self.min_samples:
                return Split(deal(labels, table.counts, rng), tries=attempt + 1)
            first = first or (table, rng)
        table, rng = first
        moved = top_up(table, self.min_samples, rng)
        return Split(deal(labels, table.counts, rng), tries=TRIES, moved=moved)

    def split(self, labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
        """The indices alone."""
        return self.draw(labels, classes, seed).parts


def top_up(table: Draw, minimum: int, rng: np.random.Generator) -> int:
    """Move samples, in place, from the largest clients to those below the minimum; how many."""
    counts = table.counts
    sizes = counts.sum(axis=1)
    lacking = int(np.maximum(minimum - sizes, 0).sum())
    for client in np.flatnonzero(sizes < minimum):
        own = np.flatnonzero(table.held[client])
        anything = len(own) == counts.shape[1]
        while sizes[client] < minimum:
            spare = sizes - minimum
            if not anything:
                spare[~counts[:, own].any(axis=1)] = 0
            donor = int(spare.argmax())
            if spare[donor] <= 0:
                raise bad_value(
                    "partition.min_samples",
                    minimum,
                    f"{TRIES} draws gave less, and who shares client {client}'s classes has none to"
                    " spare; use fewer clients, more labels a client or a smaller minimum",
                )
            give = min(minimum - sizes[client], spare[donor], counts[donor, own].sum())
            taken = rng.multivariate_hypergeometric(counts[donor, own], give)
            counts[donor, own] -= taken
            counts[client, own] += taken
            sizes[donor] -= give
            sizes[client] += give
    return lacking


def deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Random samples of each class to the clients, as many as the table says."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label, clients_counts in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(len(counts)), clients_counts)
    order = np.argsort(owner, kind="stable")  # by client, and ascending within one
    return np.split(order, np.cumsum(counts.sum(axis=1))[:-1])

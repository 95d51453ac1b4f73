"""What all drawn partitions share.

A kind of partition only draws a table [clients, classes]: how many samples of each class a client
gets. The check of `min_samples` and the repair of small clients work on that table, too, so a draw
is cheap enough to repeat. At the end, samples are dealt as the table says, each exactly once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedbench.core.errors import bad_value, require
from fedbench.core.fields import count, number
from fedbench.core.seeding import numpy_generator

TRIES = 20  # draws before small clients get samples of others


@dataclass(frozen=True)
class Split:
    """Which training samples each client has, and how they were drawn."""

    client_indices: list[np.ndarray]  # for each client, sorted int64 indices into the training set
    tries: int = 1  # draws made
    moved: int = 0  # samples moved between clients to reach `min_samples`
    # Each client's own test samples; they are not in `client_indices`.
    local_tests: list[np.ndarray] | None = None


def hold_out(split: Split, share: float, seed: int) -> Split:
    """Put a random share of every client's samples aside to test it with.

    At least one sample of every client stays for training.
    """
    if share == 0:
        return split
    train = []
    tests = []
    for client, own in enumerate(split.client_indices):
        order = numpy_generator(seed, "local test", client).permutation(own)
        count = min(max(1, round(share * len(own))), len(own) - 1) if len(own) else 0
        tests.append(np.sort(order[:count]))
        train.append(np.sort(order[count:]))
    rule = "must be 0: no client has two samples"
    require(any(map(len, tests)), "partition.local_test", share, rule)
    return replace(split, client_indices=train, local_tests=tests)


class Draw(NamedTuple):
    """One draw of a partition."""

    counts: np.ndarray  # samples, [clients, classes]
    held: np.ndarray  # the classes that a client may have, [clients, classes]


@dataclass(frozen=True)
class Partition(ABC):
    """Settings of a drawn partition, which is a function of labels, settings and seed.

    The first of `TRIES` draws that gives every client `min_samples` is kept. If none does, the
    first one is repaired; one chosen for its sizes would not follow the distribution. In client
    order, a client below the minimum gets random samples of classes that it may have, from the
    client that is largest at that moment; no client falls below the minimum by that. `Split.moved`
    counts these samples.
    """

    clients: int = count(10)
    min_samples: int = count(1)
    # Share of a client's samples that are put aside to test it with.
    local_test: float = number(0.0, at_least=0, below=1)

    @abstractmethod
    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        """One draw, from the number of training samples of each class."""

    def check(self, totals: np.ndarray) -> None:
        """Refuse settings that no draw can fulfil. Kinds with more settings add their own."""
        samples = int(totals.sum())
        rule = f"must be at most {samples}, the number of training samples"
        require(self.clients <= samples, "partition.clients", self.clients, rule)
        most = samples // self.clients
        rule = f"must be at most {most}: {self.clients} clients share {samples} training samples"
        require(self.min_samples <= most, "partition.min_samples", self.min_samples, rule)

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        """The split of a training set with these labels."""
        totals = np.bincount(labels, minlength=classes)
        self.check(totals)
        draws = []
        for attempt in range(TRIES):
            rng = numpy_generator(seed, "partition", attempt)
            table = self.draw_counts(totals, rng)
            if table.counts.sum(axis=1).min() >= self.min_samples:
                return Split(deal(labels, table.counts, rng), tries=attempt + 1)
            draws.append((table, rng))
        table, rng = draws[0]
        moved = top_up(table, self.min_samples, rng)
        return Split(deal(labels, table.counts, rng), tries=TRIES, moved=moved)


def top_up(table: Draw, minimum: int, rng: np.random.Generator) -> int:
    """Move samples from the largest clients to those below the minimum. Returns how many.

    The table is changed in place.
    """
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
                    f"must be smaller, with fewer clients or more labels a client: {TRIES} draws"
                    f" gave client {client} less, and no other client has samples of its classes to"
                    " spare",
                )
            give = min(minimum - sizes[client], spare[donor], counts[donor, own].sum())
            taken = rng.multivariate_hypergeometric(counts[donor, own], give)
            counts[donor, own] -= taken
            counts[client, own] += taken
            sizes[donor] -= give
            sizes[client] += give
    return lacking


def deal(labels: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Give the clients random samples of each class, as many as the table says."""
    owner = np.empty(len(labels), dtype=np.int64)
    for label, clients_counts in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members] = np.repeat(np.arange(len(counts)), clients_counts)
    order = np.argsort(owner, kind="stable")  # by client, and ascending within one
    return np.split(order, np.cumsum(counts.sum(axis=1))[:-1])

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

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.fields import count, number
from fedbench.core.seeding import LARGEST_SEED, numpy_generator

TRIES = 20  # draws before small clients get samples of others


@dataclass(frozen=True)
class Split:
    """Which training samples each client has, and how they were drawn."""

    client_indices: list[np.ndarray]  # for each client, sorted int64 indices into the training set
    tries: int = 1  # draws made
    moved: int = 0  # samples moved between clients to reach `min_samples`
    # Each client's own test samples; they are not in `client_indices`.
    local_tests: list[np.ndarray] | None = None
    note: str = ""  # what a user must know about it


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


@dataclass(frozen=True, kw_only=True)
class PartitionSettings(ABC):
    """The settings that every partition has. A subclass has those of one kind."""

    # Share of a client's samples that are put aside to test it with.
    local_test: float = number(0.0, at_least=0, below=1)
    seed: int | None = count(None, at_least=0, at_most=LARGEST_SEED)  # None = that of the run

    @abstractmethod
    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        """The split of a training set with these labels, a function of the arguments alone."""

    def content_hash(self) -> str:
        """What enters a run's id in place of a file's name, for kinds with a `path`."""
        raise NotImplementedError(f"{type(self).__name__} has a path and no content_hash")

    def for_run(self, labels: np.ndarray, classes: int, seed: int, fingerprint: str) -> Split:
        """The split that a run with this seed uses, with the clients' own tests put aside.

        `fingerprint` is that of the training set.
        """
        own = seed if self.seed is None else self.seed
        split = self.draw(labels, classes, own)
        self._check_indices(split.client_indices, len(labels))
        return hold_out(split, self.local_test, own)

    def _check_indices(self, client_indices: list[np.ndarray], samples: int) -> None:
        """A user's own `draw` may err, which would show in no number."""
        everything = np.concatenate([np.empty(0, dtype=np.int64), *client_indices])
        problem = ""
        if everything.dtype != np.int64 or not len(everything):
            problem = f"{len(everything)} indices of type {everything.dtype}, must be int64"
        elif everything.min() < 0 or everything.max() >= samples:
            problem = f"indices from {everything.min()} to {everything.max()}"
            problem += f", must be 0 to {samples - 1}"
        elif np.bincount(everything).max() > 1:
            problem = f"index {np.bincount(everything).argmax()} twice, must be once"
        if problem:
            raise BadInput(f"partition: {type(self).__name__}.draw gave {problem}")


class Draw(NamedTuple):
    """One draw of a partition."""

    counts: np.ndarray  # samples, [clients, classes]
    held: np.ndarray  # the classes that a client may have, [clients, classes]


@dataclass(frozen=True)
class Partition(PartitionSettings):
    """Settings of a drawn partition, which is a function of labels, settings and seed.

    The first of `TRIES` draws that gives every client `min_samples` is kept. If none does, the
    first one is repaired; one chosen for its sizes would not follow the distribution. In client
    order, a client below the minimum gets random samples of classes that it may have, from the
    client that is largest at that moment; no client falls below the minimum by that. `Split.moved`
    counts these samples.
    """

    clients: int = count(10)
    min_samples: int = count(1)

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
        least, most_draws = self.least_samples(len(labels)), self.most_draws
        smallest, draws = [], []
        for attempt in range(most_draws):
            rng = numpy_generator(seed, "partition", attempt)
            table = self.draw_counts(totals, rng)
            self._check_counts(table.counts, totals)
            smallest.append(int(table.counts.sum(axis=1).min()))
            if smallest[-1] >= least:
                return Split(deal(labels, table.counts, rng), tries=attempt + 1)
            if attempt == 0:
                draws.append((table, rng))
        table, rng = draws[0]
        moved = self.repair(table, rng, smallest)
        return Split(deal(labels, table.counts, rng), tries=most_draws, moved=moved)

    def _check_counts(self, counts: np.ndarray, totals: np.ndarray) -> None:
        """A user's own `draw_counts` may err."""
        shape = (self.clients, len(totals))
        whole = counts.dtype.kind in "iu" and counts.shape == shape and counts.min() >= 0
        if not whole or not np.array_equal(counts.sum(axis=0), totals):
            name = type(self).__name__
            raise BadInput(
                f"partition: {name}.draw_counts gave {counts.dtype} {list(counts.shape)}, must be"
                f" integers {list(shape)} whose columns sum to the samples of each class"
            )

    @property
    def most_draws(self) -> int:
        """Draws before small clients get samples of others, or before a split is refused."""
        return TRIES

    def least_samples(self, samples: int) -> int:
        """How many of all training samples the smallest client must have."""
        return self.min_samples

    def repair(self, table: Draw, rng: np.random.Generator, smallest: list[int]) -> int:
        """Make the first draw fit, because none did. Returns how many samples were moved.

        `smallest` has the size of every draw's smallest client.
        """
        return top_up(table, self.min_samples, rng)


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

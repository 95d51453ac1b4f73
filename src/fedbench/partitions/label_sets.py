"""Partitions that give each client a set of labels.

The clients that hold a class share its samples equally. Every class is held by a client, so every
index is used. Where a class has fewer samples than holders, some of them get none of it, and have
fewer labels than were dealt to them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedbench.core.errors import require
from fedbench.core.fields import count, number
from fedbench.partitions.base import Draw, Partition


@dataclass(frozen=True)
class LabelSets(Partition):
    """What these partitions share. A kind only decides how many labels each client holds."""

    @abstractmethod
    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        """How many of the `present` classes (those with training samples) each client holds."""

    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        present = np.flatnonzero(totals)
        held = np.zeros((self.clients, len(totals)), dtype=bool)
        held[:, present] = deal_labels(self.labels_per_client(len(present), rng), len(present), rng)
        return Draw(share_equally(held, totals, rng), held)


@dataclass(frozen=True)
class Labels(LabelSets):
    """The same number of random labels for every client, as FedGSNR's "Label 2"."""

    per_client: int = count(2)

    def check(self, totals: np.ndarray) -> None:
        super().check(totals)
        present = int(np.count_nonzero(totals))
        rule = f"must be at most {present}, the number of classes of the training set"
        require(self.per_client <= present, "partition.per_client", self.per_client, rule)
        least = -(-present // self.clients)
        rule = f"must be at least {least}: {self.clients} clients must hold all {present} classes"
        require(self.per_client >= least, "partition.per_client", self.per_client, rule)

    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(self.clients, self.per_client)


@dataclass(frozen=True)
class NonBalance(LabelSets):
    """FedGSNR, section VIII-A.2: some clients hold all classes, some half and some a fifth.

    They are 10 %, 40 % and 50 % of the clients, in this order. At least one client holds all
    classes, and each holds at least one label; halves are rounded up.
    """

    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        abundant = max(1, _rounded(0.1 * self.clients))
        medium = min(_rounded(0.4 * self.clients), self.clients - abundant)
        held = np.full(self.clients, max(1, _rounded(0.2 * present)))
        held[: abundant + medium] = _rounded(0.5 * present)
        held[:abundant] = present
        return held


@dataclass(frozen=True)
class Pareto(LabelSets):
    """FedGSNR, section VIII-A.3: a client draws x ~ Pareto(k) and holds x / max(x) of the classes.

    Each holds at least one label, and the client with the largest draw holds all classes. x_min
    cancels in the ratio. The paper does not give k; its "Two-Eight distribution" has
    k = log 5 / log 4 = 1.16.
    """

    shape: float = number(1.16, above=0)

    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        # log x is exponential with rate k. The ratio is a difference of logarithms, since x itself
        # overflows for a small k.
        logarithms = rng.standard_exponential(self.clients)
        with np.errstate(over="ignore"):  # a share too small for a float is 0, which is one label
            shares = np.exp((logarithms - logarithms.max()) / self.shape)
        return np.maximum(1, _rounded(shares * present))


def deal_labels(numbers: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Which classes each client holds, [clients, classes]: random sets of the given sizes.

    They are dealt from shuffled decks of all classes. A new deck starts when the last one is used
    up, so that all classes have nearly the same number of holders, and each has at least one if the
    numbers add up to the number of classes.
    """
    held = np.zeros((len(numbers), classes), dtype=bool)
    deck: list[int] = []
    for client, size in enumerate(numbers.tolist()):
        hand, deck = deck[:size], deck[size:]
        if len(hand) < size:
            # The deck is empty. A label that the client already has stays in the new deck for the
            # next client.
            fresh = rng.permutation(classes).tolist()
            in_hand = set(hand)
            drawn = [label for label in fresh if label not in in_hand][: size - len(hand)]
            hand += drawn
            taken = set(drawn)
            deck = [label for label in fresh if label not in taken]
        held[client, hand] = True
    return held


def share_equally(held: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sample counts [clients, classes]: equal shares of a class for its holders.

    What is left over goes to the smallest of them.
    """
    counts = np.zeros(held.shape, dtype=np.int64)
    sizes = np.zeros(len(held), dtype=np.int64)
    for label in np.flatnonzero(totals):
        holders = np.flatnonzero(held[:, label])
        share, left_over = divmod(int(totals[label]), len(holders))
        by_size = np.lexsort((rng.random(len(holders)), sizes[holders]))  # ties in random order
        counts[holders, label] = share
        counts[holders[by_size[:left_over]], label] += 1
        sizes += counts[:, label]
    return counts


def _rounded(value: Any) -> Any:
    """The nearest integer, with halves rounded up; numpy rounds them to the even neighbour."""
    return np.floor(value + 0.5).astype(np.int64)

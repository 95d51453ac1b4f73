"""Partitions that give each client a set of labels and share a class equally among the clients that
hold it.

Every class is held by some client, so every index is used. Where a class has fewer samples than
holders, some of them get none of it and end up with fewer labels than were dealt to them.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from fedbench.core.errors import require
from fedbench.partitions.base import Draw, Partition


@dataclass(frozen=True)
class LabelSets(Partition):
    """The common part. A kind only says how many labels each client holds."""

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

    per_client: int = 2

    def check(self, totals: np.ndarray) -> None:
        super().check(totals)
        present = int(np.count_nonzero(totals))
        allowed = f"from 1 to {present}, the classes of the training set"
        require(1 <= self.per_client <= present, "partition.per_client", self.per_client, allowed)
        covered = self.clients * self.per_client
        allowed = (
            f"{self.clients} clients then hold at most {covered} of {present} classes, all must be"
            " held"
        )
        require(covered >= present, "partition.per_client", self.per_client, allowed)

    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(self.clients, self.per_client)


@dataclass(frozen=True)
class NonBalance(LabelSets):
    """FedGSNR section VIII-A.2: 10 % of the clients hold all classes, 40 % half of them and 50 % a
    fifth.

    In this order, at least one client with all classes and at least one label each; halves are
    rounded up.
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
    """FedGSNR section VIII-A.3: a client draws x ~ Pareto(k); x / max(x) of the classes, at least
    one label.

    The client with the largest draw holds all classes. x_min cancels in the ratio. The paper names
    no k: its "Two-Eight distribution" is k = log 5 / log 4 = 1.16.
    """

    shape: float = 1.16

    def check(self, totals: np.ndarray) -> None:
        super().check(totals)
        require(0 < self.shape < np.inf, "partition.shape", self.shape, "a finite number above 0")

    def labels_per_client(self, present: int, rng: np.random.Generator) -> np.ndarray:
        # log x is exponential with rate k: the ratio is taken there, since x itself overflows for a
        # small k.
        logarithms = rng.standard_exponential(self.clients)
        with np.errstate(
            over="ignore"
        ):  # a share that is too small for a float is 0, then one label
            shares = np.exp((logarithms - logarithms.max()) / self.shape)
        return np.maximum(1, _rounded(shares * present))


def deal_labels(numbers: np.ndarray, classes: int, rng: np.random.Generator) -> np.ndarray:
    """[clients, classes]: random sets of the given sizes, dealt from shuffled decks of all classes.

    A new deck starts when the last one is used up, so that classes have nearly as many holders as
    each other, and every class has one as soon as the numbers add up to the classes.
    """
    held = np.zeros((len(numbers), classes), dtype=bool)
    deck: list[int] = []
    for client, number in enumerate(numbers.tolist()):
        hand, deck = deck[:number], deck[number:]
        if len(hand) < number:
            # The deck is empty. A label that the client has already stays in the new one for the
            # next client.
            fresh = rng.permutation(classes).tolist()
            in_hand = set(hand)
            drawn = [label for label in fresh if label not in in_hand][: number - len(hand)]
            hand += drawn
            taken = set(drawn)
            deck = [label for label in fresh if label not in taken]
        held[client, hand] = True
    return held


def share_equally(held: np.ndarray, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Sample counts [clients, classes]: a class in equal shares to its holders, leftovers to the
    smallest.
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


def _rounded(number: np.ndarray | float) -> np.ndarray | np.int64:
    """To the nearest whole number, halves up: numpy rounds 2.5 (10 % of 25 clients) to 2 and 3.5 to
    4.
    """
    return np.floor(number + 0.5).astype(np.int64)

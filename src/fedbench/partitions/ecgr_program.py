"""The split that ECGR's released program draws: its five seeds are those of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.errors import bad_value, require
from fedbench.core.fields import count, number
from fedbench.partitions.base import PartitionSettings, Split


@dataclass(frozen=True)
class EcgrProgram(PartitionSettings):
    """Dirichlet shares drawn by numpy's generator of old, as the program has them, to the sample.

    It differs from `Dirichlet` in three ways. Shares are rounded down, so that some samples belong
    to no client. It never draws again: a client below `min_samples` is filled up at once. And what
    it gets are the first samples of the largest clients, which are mostly of one class.
    """

    clients: int = count(10)
    alpha: float = number(0.01, above=0)
    min_samples: int = count(256)

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        generator = np.random.RandomState(seed)
        own: list[list[int]] = [[] for _ in range(self.clients)]
        for label in range(classes):
            samples = np.flatnonzero(labels == label)
            generator.shuffle(samples)
            shares = generator.dirichlet(np.full(self.clients, self.alpha))
            rule = "must be larger: all shares of a class are zero in floating point"
            require(bool(np.isfinite(shares).all()), "partition.alpha", self.alpha, rule)
            ends = np.cumsum((shares / shares.sum() * len(samples)).astype(int))
            for client, part in enumerate(np.split(samples, ends)[: self.clients]):
                own[client].extend(part.tolist())
        moved = self._fill_up(own)
        return Split([np.sort(np.array(part, dtype=np.int64)) for part in own], moved=moved)

    def _fill_up(self, own: list[list[int]]) -> int:
        """Small clients get samples from the largest ones, which keep `min_samples`."""
        least, kept = self.min_samples, sum(map(len, own))
        if kept < least * self.clients:
            rule = f"must be at most {kept // self.clients}: {self.clients} clients share {kept}"
            raise bad_value("partition.min_samples", least, f"{rule} training samples")
        moved = 0
        for small in [part for part in own if len(part) < least]:
            for large in sorted(own, key=len, reverse=True):
                give = min(least - len(small), len(large) - least)
                if give > 0:
                    small.extend(large[:give])
                    del large[:give]
                    moved += give
        return moved

"""Clients without heterogeneity, as a reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.partitions.base import Draw, Partition


@dataclass(frozen=True)
class Iid(Partition):
    """Every client has a random share of the training set; sizes differ by one at most."""

    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        # Shuffled labels, cut into equal pieces: class counts vary as those of random samples do.
        labels = rng.permutation(np.repeat(np.arange(len(totals)), totals))
        owner = np.arange(len(labels)) * self.clients // len(labels)
        cells = np.bincount(owner * len(totals) + labels, minlength=self.clients * len(totals))
        counts = cells.reshape(self.clients, len(totals))
        return Draw(counts, held=np.ones_like(counts, dtype=bool))

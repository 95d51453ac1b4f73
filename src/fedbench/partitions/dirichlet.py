"""Label skew by Dirichlet proportions, the partition of most federated-learning papers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedbench.core.errors import bad_value
from fedbench.core.fields import number
from fedbench.core.rounding import largest_remainder
from fedbench.partitions.base import Draw, Partition

MOST_DRAWS = 5000  # with `least_share`: seconds, not minutes


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared among the clients as Dirichlet(alpha, ..., alpha) says (Yurochkin et
    al.).

    Large alpha tends to iid, small alpha puts each class on one client. Many papers draw again
    until every client has enough samples, which for a small alpha never ends; here small clients
    get samples of others (see `Partition`), as in ECGR's code, which so gives each client two
    batches at alpha 0.01.

    `cap` and `least_share` are the rules of Lin et al. (2020, their released program; FL-bench has
    the first): classes are shared out in their order, and a client that holds the mean number of
    samples gets nothing of the classes that follow; a split is drawn again until the smallest
    client has `least_share` of the mean. What `MOST_DRAWS` draws do not reach is refused, so
    nothing is ever moved between clients then.
    """

    # Below 1e-6 every class is on one client anyway, and the logarithms below would overflow.
    alpha: float = number(0.5, at_least=1e-6)
    cap: bool = False
    least_share: float = number(0.0, at_least=0, at_most=1)

    @property
    def most_draws(self) -> int:
        return MOST_DRAWS if self.least_share else super().most_draws

    def least_samples(self, samples: int) -> int:
        return max(self.min_samples, math.ceil(self.least_share * samples / self.clients))

    def repair(self, table: Draw, rng: np.random.Generator, smallest: list[int]) -> int:
        if not self.least_share:
            return super().repair(table, rng, smallest)
        mean = table.counts.sum() / self.clients
        best = max(smallest) / mean
        raise bad_value(
            "partition.least_share",
            self.least_share,
            f"must be smaller, or partition.alpha larger: of {MOST_DRAWS} draws none gave every"
            f" client that share of the mean; the best gave {best:.2g}",
        )

    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        shape = (len(totals), self.clients)
        # Dirichlet shares are normalised Gamma(alpha) draws. For a small alpha all of those
        # underflow to 0 and the shares to NaN, so their logarithms are drawn: Gamma(alpha) =
        # Gamma(alpha + 1) * U^(1/alpha).
        logarithms = np.log(rng.standard_gamma(self.alpha + 1, shape))
        logarithms -= rng.standard_exponential(shape) / self.alpha
        counts = np.zeros((self.clients, len(totals)), dtype=np.int64)
        sizes, mean = np.zeros(self.clients, dtype=np.int64), totals.sum() / self.clients
        for label in np.flatnonzero(totals):
            own = logarithms[label]
            if self.cap:  # as long as samples are left, some client has less than the mean
                own = np.where(sizes < mean, own, -np.inf)
            share = np.exp(own - own.max())
            counts[:, label] = largest_remainder(share / share.sum(), int(totals[label]))
            sizes += counts[:, label]
        return Draw(counts, held=np.ones_like(counts, dtype=bool))

"""Label skew by Dirichlet proportions, the partition of most federated-learning papers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.core.fields import number
from fedbench.core.rounding import largest_remainder
from fedbench.partitions.base import Draw, Partition


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Each class is shared among the clients as Dirichlet(alpha, ..., alpha) says (Yurochkin et
    al.).

    Large alpha tends to iid, small alpha puts each class on one client. Many papers draw again
    until every client has enough samples, which for a small alpha never ends; here small clients
    get samples of others (see `Partition`), as in ECGR's code, which so gives each client two
    batches at alpha 0.01.
    """

    # Below 1e-6 every class is on one client anyway, and the logarithms below would overflow.
    alpha: float = number(0.5, at_least=1e-6)

    def draw_counts(self, totals: np.ndarray, rng: np.random.Generator) -> Draw:
        shape = (len(totals), self.clients)
        # Dirichlet shares are normalised Gamma(alpha) draws. For a small alpha all of those
        # underflow to 0 and the shares to NaN, so their logarithms are drawn: Gamma(alpha) =
        # Gamma(alpha + 1) * U^(1/alpha).
        logarithms = np.log(rng.standard_gamma(self.alpha + 1, shape))
        logarithms -= rng.standard_exponential(shape) / self.alpha
        shares = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        rows = [
            largest_remainder(share, int(total))
            for share, total in zip(shares, totals, strict=True)
        ]
        counts = np.stack(rows, axis=1)
        return Draw(counts, held=np.ones_like(counts, dtype=bool))

"""Federated training in numpy, part 2: the equations of PGVC, PMVR, ECGR, FedNCV, FedGSNR and
pFedSim, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import floor

import numpy as np

from support.independent import Client, Matrix, Network, Vector


@dataclass
class Pgvc:
    rho: str = "norm"
    sigma: float = 1.0
    layers: int = 2

    def direction(self, network: Network, losses: Vector, each: Matrix) -> Vector:
        """The gradient, replaced in the masked layers; rho = mean_b l_b * grad l_b (Eq. 14)."""
        g = each.mean(axis=0)
        rho = (losses[:, None] * each).mean(axis=0)
        result = g.copy()
        for layer in network.layers[len(network.layers) - self.layers :]:
            result[layer] = self.masked(g[layer], rho[layer], losses.mean())
        return result

    def masked(self, g: Vector, rho: Vector, loss: float) -> Vector:
        equations = {
            "norm": lambda: (
                self.sigma * g / np.linalg.norm(g)
            ),  # Eq. 8-10: a step of constant length
            "eq15": lambda: rho * g,
            "layer_norm": lambda: np.linalg.norm(rho) * g,
            "layer_mean": lambda: rho.mean() * g,
            "wdro": lambda: rho,
            "add": lambda: g + rho,
            "loss": lambda: loss * g,
            "gradient_norm": lambda: np.linalg.norm(g) * g,
            "code": lambda: g,  # the released program trains as usual and rescales afterwards
        }
        return equations[self.rho]()

    def rescaled(self, client: Client, w: Vector, rate: float) -> Vector:
        """The released program: layer <- (1 - rate * s) * layer, s from loss number l and tensor
        number l.
        """
        losses, each = client.per_example(w)
        summed = list(client.network.named(each.sum(axis=0)).values())
        result, count = w.copy(), len(client.network.layers)
        for number in range(count - self.layers, count):
            scalar = losses[number] * summed[number].mean()
            result[client.network.layers[number]] *= 1.0 - rate * scalar
        return result


@dataclass
class Pmvr:
    alpha: float = 0.1
    variant: str = "shrink"
    layers: int = 2

    def corrected(self, update: Vector, head: Vector, memory: Vector) -> tuple[Vector, Vector]:
        """The update that is sent and the client's new momentum (Eq. 5 and 6)."""
        if self.variant in ("eq12", "alg1"):  # they change the steps, not the update
            return update, memory
        kept = {"shrink": 0.0, "ema": 1.0 - self.alpha, "accum": 1.0}[self.variant]
        memory = self.alpha * update + kept * memory
        return np.where(head, update - memory, update), memory


@dataclass
class Ecgr:
    beta: float = 0.2
    ratio: float = 0.5
    select: str = "greedy"

    def update(self, path: Matrix) -> Vector:
        """gamma * (sum of the selected steps + beta * sum of the rest), as long as the plain
        sum.
        """
        moves = np.diff(path, axis=0)
        count = max(1, floor(self.ratio * len(moves)))
        coefficients = np.full(len(moves), self.beta)
        coefficients[self.selected(moves, count)] = 1.0
        plain, combined = moves.sum(axis=0), coefficients @ moves
        return np.linalg.norm(plain) / np.linalg.norm(combined) * combined

    def selected(self, moves: Matrix, count: int) -> list[int]:
        if self.select == "norm_topk":
            return list(np.argsort(np.linalg.norm(moves, axis=1), kind="stable")[:count])
        if self.select == "exact":
            subsets = [list(subset) for subset in combinations(range(len(moves)), count)]
            return min(subsets, key=lambda subset: np.linalg.norm(moves[subset].sum(axis=0)))
        return greedy(moves - moves.mean(axis=0) if self.select == "centred" else moves, count)


def greedy(moves: Matrix, count: int) -> list[int]:
    """Again and again the unused step that keeps the running sum shortest."""
    chosen: list[int] = []
    for _ in range(count):
        unused = [j for j in range(len(moves)) if j not in chosen]
        chosen.append(min(unused, key=lambda j: np.linalg.norm(moves[[*chosen, j]].sum(axis=0))))
    return chosen


@dataclass
class Ncv:
    variant: str = "unbiased"
    beta: float = 0.5
    normalise: bool = True
    alpha: float = 0.0
    alpha_mode: str = "none"
    alpha_rate: float = 0.01
    alpha_max: float = 0.9

    def weights(self, p: Vector) -> Vector:
        """q_v = p_v * (1 - b * sum_{u != v} o_u), o = p / (1 - p); b = 0 is FedAvg, b = 1 the
        printed rule.
        """
        b = {"unbiased": 0.0, "literal": 1.0, "beta": self.beta}[self.variant]
        odds = p / (1.0 - p)
        q = p * (1.0 - b * (odds.sum() - odds))
        return q / (1.0 - b) if self.variant == "beta" and self.normalise else q

    def next_alpha(
        self, alpha: float, moved: Vector, previous: float | None
    ) -> tuple[float, float]:
        """The client's alpha of the next round, and the squared norm of what it sent in this
        one.
        """
        squared = float(((1.0 - alpha) * moved) @ ((1.0 - alpha) * moved))
        change = 0.0
        if self.alpha_mode == "derivative":
            change = 2.0 * (1.0 - alpha) * float(moved @ moved)
        if self.alpha_mode == "difference" and previous is not None:
            change = squared - previous
        return float(np.clip(alpha + self.alpha_rate * change, 0.0, self.alpha_max)), squared


@dataclass
class Gsnr:
    steps: int = 4
    batch: int | None = (
        None  # null, and the statistic over all samples, in every case followed here
    )
    variant: str = "redistribute"
    rounding: str = "largest"

    def allocate(self, p: Vector, means: Matrix, variances: Matrix, sizes: Vector) -> list[int]:
        """Every client's local steps; none for a client whose gradient points away."""
        useful = self.coefficients(p, means, variances, sizes)
        if self.variant == "alg1":
            return [floor(self.steps * n + 0.5) for n in useful]
        exact = len(useful) * self.steps * useful / useful.sum()
        half = 0.5 if self.rounding == "round" else 0.0
        counts = [
            max(1, floor(value + half)) if n > 0 else 0
            for n, value in zip(useful, exact, strict=True)
        ]
        return (
            largest_remainder(counts, exact, len(useful) * self.steps)
            if self.rounding == "largest"
            else counts
        )

    def coefficients(self, p: Vector, means: Matrix, variances: Matrix, sizes: Vector) -> Vector:
        """n_k = max(0, I_k / Q_k) from the means and diagonal variances of the per-example
        gradients.
        """
        m = p @ means
        s = p @ variances + p @ (means - m) ** 2
        divisors = sizes if self.batch is None else np.minimum(self.batch, sizes)
        numerator = means @ m + np.sqrt(variances * s).sum(axis=1) / divisors
        denominator = (means**2).sum(axis=1) + variances.sum(axis=1) / divisors
        return np.maximum(0.0, numerator / denominator)


def largest_remainder(counts: list[int], exact: Vector, total: int) -> list[int]:
    """Single steps to who lacks most (from who has most too many) until the total is right; ties to
    the first.
    """
    counts = list(counts)
    while sum(counts) < total:
        counts[
            max(
                (k for k in range(len(counts)) if counts[k] > 0), key=lambda k: exact[k] - counts[k]
            )
        ] += 1
    while sum(counts) > total:
        counts[
            max(
                (k for k in range(len(counts)) if counts[k] > 1), key=lambda k: counts[k] - exact[k]
            )
        ] -= 1
    return counts


def similarity_weights(classifiers: list[Matrix]) -> Matrix:
    """pFedSim: a_ij ~ -log(1 - sim_ij), sim = mean cosine of the classes' rows, at least 0 and at
    most 0.9999.
    """
    unit = np.array([rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in classifiers])
    similarity = np.clip(np.einsum("icf,jcf->ijc", unit, unit).mean(axis=2), 0.0, 0.9999)
    np.fill_diagonal(similarity, 0.9999)
    weights = -np.log(1.0 - similarity)
    return weights / weights.sum(axis=1, keepdims=True)

"""FedGSNR: local steps in proportion to how well a client's gradient points along the global one.

FedGSNR paper, Theorem 1, Proposition 1 and Algorithm 1; section VIII-B for the redistribution of
steps, its interpolation with equal steps (figure 10) and the multiple of one gradient that it is
compared with (figure 8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.algorithms.context import BindContext, Clients, LocalRun, Memory, RoundPlan, StepPlan
from fedbench.algorithms.modifier import Modifier, Needs
from fedbench.core.errors import require
from fedbench.core.fields import choice, count, number
from fedbench.parallel.exchange import gather, weighted_sum

MOST_STEPS = 10**6
ONE_STEP = "with variant=first there is one step a round and nothing to sum up"


@dataclass
class Gsnr(Modifier):
    """With m_k and s_k the mean and variance of single examples' gradients at the received model,
    over the cohort

    m = sum p_k m_k,    s = sum p_k s_k + sum p_k (m_k - m)^2
    I_k = m_k.m + sum_j sqrt(s_kj s_j) / B,    Q_k = |m_k|^2 + sum_j s_kj / B,    Q alike
    n_k = max(0, I_k / Q_k),    r_k = max(0, I_k / sqrt(Q_k Q - I_k^2))

    r_k is the client's GSNR. `redistribute` shares N * steps local steps out in proportion to n_k,
    at least one for each n_k > 0; `alg1` gives steps * n_k to each. A client without steps sits the
    round out. `first` is figure 8's strategy g-hat (Lemma 2): instead of steps * n_k steps a client
    takes one, along the gradient of its first training batch at the received model (weight decay
    and corrections included), and sends steps * n_k times that displacement; n_k = 0 sits the round
    out. `interpolation`, the lambda of figure 10, makes the steps (1 - lambda) E_k + lambda *
    steps: 0 is the allocation above, 1 the same steps for all. B is the size of the statistic's
    batch (null: the training batch), drawn anew every round; with `samples: full` the statistic
    takes all of the client's examples and B remains the divisor.
    """

    order = 70
    steps: int = count(20, at_most=MOST_STEPS)
    batch: int | None = count(None, at_most=MOST_STEPS)
    samples: str = choice("batch", ("batch", "full"))
    variant: str = choice("redistribute", ("redistribute", "alg1", "first"))
    rounding: str = choice("largest", ("largest", "round", "floor"))
    interpolation: float = number(0.0, at_least=0, at_most=1)

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        words = "must be 0 with variant=first: it mixes numbers of steps, and that takes one"
        fits = self.variant != "first" or self.interpolation == 0
        require(fits, f"{key}.interpolation", self.interpolation, words)
        return bound

    @property
    def needs(self) -> Needs:
        if self.variant != "first":
            return Needs(global_model=True)
        return Needs(linear_solver=True, global_model=True, no_momentum=ONE_STEP)

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """null stands for the training batch."""
        return {**fields, "batch": None if self.batch == self.context.batch_size else self.batch}

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        """A number of steps down, mean and variance up, for all who were invited."""
        return len(plan.invited), 2 * self.where.size * len(plan.invited)

    def extra_gradients(self, plan: RoundPlan) -> int:
        return int(sum(plan.notes["gsnr_examples"]))

    def num_steps(
        self, clients: Clients, index: int, cohort: list[int], steps: list[int]
    ) -> StepPlan:
        sizes = [clients.sizes[k] for k in cohort]
        batches = [self.batch or clients.batch_size(k) for k in cohort]
        divisors = [min(batch, size) for batch, size in zip(batches, sizes, strict=True)]
        examples = divisors if self.samples == "batch" else sizes
        ratios, scores = self._ratios(clients, index, cohort, divisors, examples)
        taken = self._allocate(ratios)
        if not any(taken):  # every gradient is zero, or every alg1 share rounds to nothing
            taken = [1 if self.variant == "first" else self.steps] * len(cohort)
        notes = {
            "gsnr": scores,
            "gsnr_ratio": ratios,
            "gsnr_examples": [float(used) for used in examples],
        }
        return StepPlan(taken, notes)

    def _allocate(self, ratios: list[float]) -> list[int]:
        if self.variant == "first":
            return [int(ratio > 0) for ratio in ratios]
        if self.variant == "alg1":
            shares = mixed([self.steps * ratio for ratio in ratios], self.steps, self.interpolation)
            return [math.floor(share + 0.5) for share in shares]
        return allocate(ratios, self.steps, self.rounding, self.interpolation)

    def update(self, local: LocalRun, memory: Memory) -> None:
        """`first`: steps * n_k times one step; n_k of all clients may be 0, and then one step."""
        if self.variant == "first" and "gsnr_ratio" in local.notes:
            local.update.mul_(self.steps * (local.notes["gsnr_ratio"] or 1.0))

    def _ratios(
        self,
        clients: Clients,
        index: int,
        cohort: list[int],
        divisors: list[int],
        examples: list[int],
    ) -> tuple[list[float], list[float]]:
        """n_k and r_k. Every rank has the moments of its own clients and exchanges only sums."""
        size, group, kind = self.where.size, clients.group, clients.weights.dtype
        weights = clients.cohort_weights(cohort)
        owners = [clients.owners[k] for k in cohort]
        mine = [i for i, owner in enumerate(owners) if owner == group.rank]
        moments = {}
        for i in mine:
            mean, variance = clients.gradient_moments(cohort[i], examples[i], index)
            moments[i] = self.where.read(mean).to("cpu"), self.where.read(variance).to("cpu")

        def write_moments(i: int, row: Tensor) -> None:
            row[:size], row[size:] = moments[i]

        def write_spread(i: int, row: Tensor) -> None:
            row[:] = (moments[i][0] - mean_of_all).square()

        both = weighted_sum(group, owners, weights, 2 * size, kind, write_moments)
        mean_of_all, within = both[:size], both[size:]
        between = weighted_sum(group, owners, weights, size, kind, write_spread)
        rows = [statistic(*moments[i], mean_of_all, within + between, divisors[i]) for i in mine]
        found = gather(group, torch.tensor(rows, dtype=torch.float64).reshape(len(mine), 2), owners)
        return found[:, 0].tolist(), found[:, 1].tolist()


def statistic(
    m: Tensor, s: Tensor, mean: Tensor, variance: Tensor, batch: int
) -> tuple[float, float]:
    """n_k and r_k of a client with moments m, s."""
    m, s, mean, variance = (vector.to(torch.float64) for vector in (m, s, mean, variance))
    inner = float(m @ mean + (s * variance).sqrt().sum() / batch)
    own, whole = float(m @ m + s.sum() / batch), float(mean @ mean + variance.sum() / batch)
    ratio = (
        max(0.0, inner / own) if own > 0 and math.isfinite(inner) and math.isfinite(own) else 0.0
    )
    rest = own * whole - inner * inner
    score = max(0.0, inner / math.sqrt(rest)) if rest > 0 else math.inf if inner > 0 else 0.0
    return ratio, score


def mixed(shares: list[float], steps: int, interpolation: float) -> list[float]:
    """(1 - lambda) E_k + lambda E of figure 10; the shares themselves, to the last bit, with lambda
    0.
    """
    return [(1.0 - interpolation) * share + interpolation * steps for share in shares]


def allocate(
    ratios: list[float], steps: int, rounding: str = "largest", interpolation: float = 0.0
) -> list[int]:
    """Whole steps in proportion to the ratios, or between that and equality; N * steps in all with
    `largest`.
    """
    total, budget = math.fsum(ratios), len(ratios) * steps
    if total <= 0:
        return [0] * len(ratios)
    shares = mixed([budget * ratio / total for ratio in ratios], steps, interpolation)
    up = 0.5 if rounding == "round" else 0.0
    active = [i for i, ratio in enumerate(ratios) if ratio > 0 or interpolation > 0]
    taken = [max(1, math.floor(share + up)) if i in active else 0 for i, share in enumerate(shares)]
    if rounding == "largest":
        while sum(taken) < budget:
            taken[max(active, key=lambda i: (shares[i] - taken[i], -i))] += 1
        while sum(taken) > budget:
            taken[
                max((i for i in active if taken[i] > 1), key=lambda i: (taken[i] - shares[i], -i))
            ] -= 1
    return taken

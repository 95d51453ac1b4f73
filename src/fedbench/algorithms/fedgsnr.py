"""FedGSNR: local steps in proportion to how well a client's gradient points along the global one.

FedGSNR paper, Theorem 1, Proposition 1 and Algorithm 1; section VIII-B for the redistribution of
steps, its interpolation with equal steps (figure 10) and the multiple of one gradient that it is
compared with (figure 8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbench.algorithms.modifier import Allocation, Local, Memory, Modifier, Round, Scene
from fedbench.core.errors import nearest, require
from fedbench.core.seeding import torch_generator
from fedbench.parallel.exchange import gather, weighted_sum

if TYPE_CHECKING:
    from fedbench.training.federation import Federation

MOST_STEPS = 10**6
CHOICES = {
    "samples": ("batch", "full"),
    "variant": ("redistribute", "alg1", "first"),
    "rounding": ("largest", "round", "floor"),
}


@dataclass
class Gsnr(Modifier):
    """m_k and s_k, mean and variance of the gradients of single examples at the received model;
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
    needs_global_model = True
    steps: int = 20
    batch: int | None = None
    samples: str = "batch"
    variant: str = "redistribute"
    rounding: str = "largest"
    interpolation: float = 0.0

    def bind(self, scene: Scene, key: str) -> None:
        for field, allowed in CHOICES.items():
            value = getattr(self, field)
            require(value in allowed, f"{key}.{field}", value, nearest(str(value), allowed))
        for field in ("steps", "batch"):
            value = getattr(self, field)
            allowed = f"an integer from 1 to {MOST_STEPS} is allowed"
            require(value is None or 1 <= value <= MOST_STEPS, f"{key}.{field}", value, allowed)
        share, name = self.interpolation, f"{key}.interpolation"
        require(0 <= share <= 1, name, share, "a number from 0 to 1 is allowed")
        allowed = "it mixes numbers of steps, of which variant=first takes one; only 0 is allowed"
        require(self.variant != "first" or share == 0, name, share, allowed)
        super().bind(scene, key)
        self.training_batch = scene.batch_size

    @property
    def needs_linear_solver(self) -> bool:
        return self.variant == "first"

    @property
    def needs_plain_sgd(self) -> str:
        return (
            "with variant=first there is one step a round and nothing to sum up"
            if self.variant == "first"
            else ""
        )

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """A run without interpolation is what it was before there was one; null stands for the
        training batch.
        """
        fields = {**fields, "batch": None if self.batch == self.training_batch else self.batch}
        return {key: value for key, value in fields.items() if key != "interpolation" or value != 0}

    def traffic(self, facts: Round) -> tuple[int, int]:
        """Mean and variance up, a number of steps down, for all who were asked, the left out,
        too.
        """
        return len(facts.asked), 2 * self.where.size * len(facts.asked)

    def extra_gradients(self, facts: Round) -> int:
        return int(sum(facts.notes["gsnr_examples"]))

    def num_steps(
        self, federation: Federation, index: int, cohort: list[int], steps: list[int]
    ) -> Allocation:
        divisors = [
            min(self.batch or federation.sampler.size(federation.sizes[k]), federation.sizes[k])
            for k in cohort
        ]
        examples = divisors if self.samples == "batch" else [federation.sizes[k] for k in cohort]
        ratios, scores = self._ratios(federation, index, cohort, divisors, examples)
        taken = self._allocate(ratios)
        if not any(
            taken
        ):  # every gradient is zero (or every alg1 share rounds to nothing): train as planned
            taken = [1 if self.variant == "first" else self.steps] * len(cohort)
        return Allocation(
            taken,
            {"gsnr": scores, "gsnr_ratio": ratios, "gsnr_examples": [float(n) for n in examples]},
        )

    def _allocate(self, ratios: list[float]) -> list[int]:
        if self.variant == "first":
            return [int(ratio > 0) for ratio in ratios]
        if self.variant == "alg1":
            shares = mixed([self.steps * ratio for ratio in ratios], self.steps, self.interpolation)
            return [math.floor(share + 0.5) for share in shares]
        return allocate(ratios, self.steps, self.rounding, self.interpolation)

    def update(self, local: Local, memory: Memory) -> None:
        """`first`: steps * n_k times one step. Outside a round nothing is known, and n_k = 0 here
        if it is all's.
        """
        if self.variant == "first" and "gsnr_ratio" in local.notes:
            local.update.mul_(self.steps * (local.notes["gsnr_ratio"] or 1.0))

    def _ratios(
        self,
        federation: Federation,
        index: int,
        cohort: list[int],
        divisors: list[int],
        examples: list[int],
    ) -> tuple[list[float], list[float]]:
        """n_k and r_k. Every rank has the moments of its own clients; only sums and a few numbers
        are exchanged.
        """
        size, group, kind = self.where.size, federation.group, federation.state.w.dtype
        weights, owners = federation.weights(cohort, cohort), [federation.owners[k] for k in cohort]
        mine = [i for i, owner in enumerate(owners) if owner == group.rank]
        moments = {i: self._moments(federation, index, cohort[i], examples[i]) for i in mine}

        def write_moments(i: int, row: Tensor) -> None:
            row[:size], row[size:] = moments[i]

        def write_spread(i: int, row: Tensor) -> None:
            row[:] = (moments[i][0].cpu() - mean).square()

        both = weighted_sum(group, owners, weights, 2 * size, kind, write_moments)
        mean, within = both[:size], both[size:]
        variance = within + weighted_sum(group, owners, weights, size, kind, write_spread)
        rows = [statistic(*moments[i], mean, variance, divisors[i]) for i in mine]
        found = gather(group, torch.tensor(rows, dtype=torch.float64).reshape(len(mine), 2), owners)
        return found[:, 0].tolist(), found[:, 1].tolist()

    def _moments(
        self, federation: Federation, index: int, client: int, count: int
    ) -> tuple[Tensor, Tensor]:
        """Of the gradients of the data loss, with weight decay and control variates, at what the
        client receives.
        """
        own = federation.shards[client]
        before, memories = federation.state.receive(client)
        if count < len(own):
            generator = torch_generator(
                federation.settings.seed, "gradient statistics", index, client
            )
            own = own[torch.randperm(len(own), generator=generator)[:count].to(own.device)]
        mean, variance = federation.trainer.gradient_moments(own)
        mean.add_(before, alpha=federation.settings.client.weight_decay)
        for name, piece in federation.algorithm.modifiers.items():
            piece.shift(memories[name], mean)
        return self.where.read(mean), self.where.read(variance)


def statistic(
    m: Tensor, s: Tensor, mean: Tensor, variance: Tensor, batch: int
) -> tuple[float, float]:
    """n_k and r_k of a client with moments m, s."""
    m, s, mean, variance = (vector.to("cpu", torch.float64) for vector in (m, s, mean, variance))
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

"""FedNCV: leave-one-out control variates over a client's examples and over clients.

FedNCV paper, Eqs. 2-14. The mean of g_i - alpha * mean_{j != i} g_j over a client's examples is
(1 - alpha) times the mean gradient, whatever the data: what is left of it is a scale for the
client's update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.context import (
    BindContext,
    ClientResult,
    LocalRun,
    Memory,
    RoundPlan,
    State,
)
from fedbench.algorithms.modifier import Modifier
from fedbench.core.errors import require
from fedbench.core.fields import choice, number
from fedbench.core.flat_model import FlatModel


@dataclass
class LeaveOneOut(Modifier):
    """update <- (1 - alpha_k) * update, and alpha_k <- alpha_k - rate * (change of ||(1 - alpha_k)
    update||^2).

    The paper does not say what the change is. `derivative`: by alpha, which is -2 (1 - alpha_k)
    ||update||^2, so alpha rises; `difference`: the squared norm of the client's last round minus
    this one's. alpha is clipped to [0, alpha_max], else it reaches 1 and the client stops; start,
    rate and clip are our choice.
    """

    order = 60
    records = ("ncv_alpha",)
    alpha: float = number(0.0, at_least=0)
    alpha_mode: str = choice("derivative", ("none", "derivative", "difference"))
    alpha_rate: float = number(0.01, at_least=0, at_most=1e30)
    alpha_max: float = number(0.9, at_least=0, at_most=1)

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        words = f"must be at most alpha_max, {self.alpha_max:g}"
        require(self.alpha <= self.alpha_max, f"{key}.alpha", self.alpha, words)
        return bound

    @property
    def active(self) -> bool:
        return self.alpha != 0.0 or (self.alpha_mode != "none" and self.alpha_rate != 0.0)

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        return len(plan.invited), 0

    def init_client(self, model: FlatModel) -> State:
        """`square` is the squared norm that a client sent last; below zero: it has not sent any."""
        return {"alpha": model.w.new_full((1,), self.alpha), "square": model.w.new_full((1,), -1.0)}

    def update(self, local: LocalRun, memory: Memory) -> None:
        memory.scratch["square"] = self.where.read(local.update).square().sum().reshape(1)
        local.update.mul_(1.0 - self._alpha(local, memory))

    def _alpha(self, local: LocalRun, memory: Memory) -> Tensor:
        """One example has no others to leave it out of."""
        alpha = memory.client["alpha"]
        return alpha if local.samples > 1 else alpha.new_zeros(1)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        alpha, before = memory.client["alpha"], memory.client["square"]
        sent = memory.scratch["square"] * (1.0 - alpha) ** 2
        change = alpha.new_zeros(1)
        if self.alpha_mode == "derivative":
            change = -2.0 * (1.0 - alpha) * memory.scratch["square"]
        elif self.alpha_mode == "difference":
            change = torch.where(before >= 0, before - sent, change)
        new = (alpha - self.alpha_rate * change).clamp(0.0, self.alpha_max)
        state = {"alpha": new, "square": sent}
        return ClientResult(client=state, numbers=[self._alpha(local, memory)])


@dataclass
class LeaveOthersOut(Mean):
    """The server (Eqs. 9-12): every client's gradient minus the mean of the others', averaged.

    Written out, the update is sum_k q_k update_k with q_k = p_k (1 - b sum_{j != k} o_j), o_j = p_j
    / (1 - p_j), b = 1 as printed (`literal`): the q_k sum to zero, clients of equal size do not
    move at all. `unbiased` is the result that the paper's Proposition 1 claims, the plain mean;
    `beta` puts b = beta between them and, with `normalise`, divides by 1 - b.
    """

    variant: str = choice("unbiased", ("unbiased", "literal", "beta"))
    beta: float = number(0.5, at_least=0, below=1)  # 1 would be `literal`
    normalise: bool = True

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Only the variant `beta` reads beta and normalise."""
        if self.variant == "beta":
            return fields
        return {**fields, "beta": None, "normalise": None}

    def coefficients(self, plan: RoundPlan) -> list[float]:
        p = plan.weights
        if self.variant == "unbiased" or len(p) == 1:  # without others there is no control variate
            return p
        odds = [weight / (1.0 - weight) for weight in p]
        total = math.fsum(odds)
        b = 1.0 if self.variant == "literal" else self.beta
        scale = 1.0 / (1.0 - b) if self.variant == "beta" and self.normalise else 1.0
        return [
            scale * weight * (1.0 - b * (total - own)) for weight, own in zip(p, odds, strict=True)
        ]

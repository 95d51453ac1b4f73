"""The server_opt slot: how the aggregated update is applied to the global model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbench.algorithms.context import RoundPlan, State
from fedbench.core.fields import choice, number


@dataclass
class Add:
    """w <- w + lr * update."""

    def init(self, weights: Tensor) -> State:
        return {}

    def step(
        self, plan: RoundPlan, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """The direction to move along from the shared `weights`, and the new state."""
        return update, state

    def identity(self, fields: dict[str, Any], lr: float) -> dict[str, Any]:
        """The settings as they enter a run's id: without those that cannot change a number."""
        return fields

    def also_score(self, state: State) -> dict[str, Tensor]:
        """Other models that a method's authors report, by name, beside the server's."""
        return {}


@dataclass
class Momentum(Add):
    """FedAvgM (Hsu et al. 2019): v <- beta * v + update, w <- w + lr * v.

    `nesterov` moves along update + beta * v; `ema` (as in the MOON authors' program) keeps
    v <- beta * v + (1 - beta) * update, whose steps are 1 / (1 - beta) times smaller.
    """

    momentum: float = number(0.9, at_least=0, below=1)
    variant: str = choice("heavy-ball", ("heavy-ball", "nesterov", "ema"))

    def init(self, weights: Tensor) -> State:
        return {"v": weights.new_zeros(weights.shape)}

    def step(
        self, plan: RoundPlan, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        fresh = 1.0 - self.momentum if self.variant == "ema" else 1.0
        v = self.momentum * state["v"] + fresh * update
        direction = update + self.momentum * v if self.variant == "nesterov" else v
        return direction, {"v": v}

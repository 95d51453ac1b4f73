"""The server_opt slot: how the aggregated update is applied to the global model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.base import State
from fedbench.errors import nearest, require

VARIANTS = ("heavy-ball", "nesterov", "ema")


@dataclass
class Add:
    """w <- w + lr * update."""

    def init(self, weights: Tensor) -> State:
        return {}

    def step(self, update: Tensor, state: State) -> tuple[Tensor, State]:
        """The direction to move along, and the new state."""
        return update, state


@dataclass
class Momentum:
    """FedAvgM (Hsu et al. 2019): v <- beta * v + update, w <- w + lr * v.

    `nesterov` moves along update + beta * v; `ema` (as in the MOON authors' program) keeps
    v <- beta * v + (1 - beta) * update, whose steps are 1 / (1 - beta) times smaller.
    """

    momentum: float = 0.9
    variant: str = "heavy-ball"

    def __post_init__(self) -> None:
        require(
            0.0 <= self.momentum < 1.0,
            "algo.momentum",
            self.momentum,
            "a number from 0 to below 1 is allowed",
        )
        require(self.variant in VARIANTS, "algo.variant", self.variant, nearest(self.variant, VARIANTS))

    def init(self, weights: Tensor) -> State:
        return {"v": weights.new_zeros(weights.shape)}

    def step(self, update: Tensor, state: State) -> tuple[Tensor, State]:
        fresh = 1.0 - self.momentum if self.variant == "ema" else 1.0
        v = self.momentum * state["v"] + fresh * update
        direction = update + self.momentum * v if self.variant == "nesterov" else v
        return direction, {"v": v}

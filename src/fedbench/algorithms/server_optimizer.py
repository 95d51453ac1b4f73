"""The server_opt slot: how the aggregated update is applied to the global model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbench.algorithms.modifier import Round, State
from fedbench.core.errors import nearest, require

VARIANTS = ("heavy-ball", "nesterov", "ema")


@dataclass
class Add:
    """w <- w + lr * update."""

    def init(self, weights: Tensor) -> State:
        return {}

    def step(
        self, facts: Round, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """The direction to move along from the shared `weights`, and the new state."""
        return update, state

    def identity(self, fields: dict[str, Any], lr: float) -> dict[str, Any]:
        """The settings as they enter a run's identity: those that cannot change a number at their
        defaults.
        """
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

    momentum: float = 0.9
    variant: str = "heavy-ball"

    def __post_init__(self) -> None:
        require(
            0.0 <= self.momentum < 1.0,
            "algo.momentum",
            self.momentum,
            "a number from 0 to below 1 is allowed",
        )
        require(
            self.variant in VARIANTS, "algo.variant", self.variant, nearest(self.variant, VARIANTS)
        )

    def init(self, weights: Tensor) -> State:
        return {"v": weights.new_zeros(weights.shape)}

    def step(
        self, facts: Round, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        fresh = 1.0 - self.momentum if self.variant == "ema" else 1.0
        v = self.momentum * state["v"] + fresh * update
        direction = update + self.momentum * v if self.variant == "nesterov" else v
        return direction, {"v": v}


@dataclass
class Dynamic(Add):
    """FedDyn's server (Acar et al. 2021): h <- h - alpha/m * sum_S (y_k - w), w <- mean_S(y_k) - h
    / alpha.

    m counts all clients, so with the mean update D and the cohort's share s of all weights (|S|/m
    when they are uniform) h <- h - alpha * s * D. The authors report the plain mean of the active
    models, which is scored, too.
    """

    alpha: float = 0.01

    def init(self, weights: Tensor) -> State:
        return {"h": weights.new_zeros(weights.shape), "mean_active": weights.clone()}

    def step(
        self, facts: Round, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        h = state["h"] - self.alpha * math.fsum(facts.shares) * update
        return update - h / self.alpha, {"h": h, "mean_active": weights + update}

    def also_score(self, state: State) -> dict[str, Tensor]:
        return {"mean_active": state["mean_active"]}


@dataclass
class Eq16(Add):
    """FedPGVC's server. Eq. 16 as printed (`literal`) is w <- (1 - lr) w + mean y_k with lr =
    eta_g.

    Its coefficients sum to 2 - lr, so the model grows every round unless lr = 1; the convex
    reading, (1 - lr) w + lr mean y_k, is the default.
    """

    literal: bool = False

    def identity(self, fields: dict[str, Any], lr: float) -> dict[str, Any]:
        return {**fields, "literal": self.literal and lr != 1.0}

    def step(
        self, facts: Round, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if not self.literal or facts.server_lr == 1.0:  # the readings agree then, to the last bit
            return update, state
        return ((1.0 - facts.server_lr) * weights + update) / facts.server_lr, state

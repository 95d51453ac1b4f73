"""FedDyn: a dynamic regulariser on every client, and a server that undoes the drift.

Acar et al., "Federated learning based on dynamic regularization", 2021.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.context import ClientResult, LocalRun, Memory, RoundPlan, State, zeros_like
from fedbench.algorithms.modifier import Modifier, Needs
from fedbench.algorithms.server_optimizer import Add
from fedbench.core.fields import SMALLEST, number
from fedbench.core.flat_model import FlatModel


@dataclass
class Dynamic(Modifier):
    """y <- y - eta * (g_k(y) - s_k + alpha * (y - w)), then s_k <- s_k - alpha * (y_k - w).

    s_k is zero at the start. alpha is the same for all clients: the authors' program divides it by
    a client's relative size and clips gradients, which is not in the paper.
    """

    order = 25
    capturable = True
    needs = Needs(global_model=True)
    records = ("gradient_state_norm",)
    alpha: float = number(0.01, at_least=SMALLEST)

    @property
    def proximal(self) -> float:
        return self.alpha

    def init_client(self, model: FlatModel) -> State:
        return {"s": zeros_like(self.where, model)}

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        self.where.add(gradient, memory.client["s"], -1.0)

    def begin(self, local: LocalRun, memory: Memory) -> None:
        """-s_k - alpha * w does not change during the round; alpha * y is added in every step."""
        before = self.where.read(local.before)
        memory.scratch["constant"] = memory.client["s"].neg().sub_(before, alpha=self.alpha)

    def grad(self, local: LocalRun, memory: Memory) -> None:
        self.where.add(local.model.g, memory.scratch["constant"])
        self.where.add(local.model.g, self.where.read(local.model.w), self.alpha)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        new = memory.client["s"] - self.alpha * self.where.read(local.raw_update)
        return ClientResult(client={"s": new}, numbers=[new.norm()])


@dataclass
class DynamicServer(Add):
    """h <- h - alpha/m * sum_S (y_k - w), then w <- mean_S(y_k) - h / alpha.

    m counts all clients, so with the mean update D and the cohort's share s of all weights (|S|/m
    when they are uniform) h <- h - alpha * s * D. The authors report the plain mean of the active
    models, which is scored, too.
    """

    alpha: float = number(0.01, at_least=SMALLEST)

    def init(self, weights: Tensor) -> State:
        return {"h": weights.new_zeros(weights.shape), "mean_active": weights.clone()}

    def step(
        self, plan: RoundPlan, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        h = state["h"] - self.alpha * math.fsum(plan.population_weights) * update
        return update - h / self.alpha, {"h": h, "mean_active": weights + update}

    def also_score(self, state: State) -> dict[str, Tensor]:
        return {"mean_active": state["mean_active"]}

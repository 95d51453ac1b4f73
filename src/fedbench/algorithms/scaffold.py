"""Control variates: SCAFFOLD on all layers, FedPVR on the last ones.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020 (option
II); Li et al., "On the effectiveness of partial variance reduction in federated learning", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from fedbench.algorithms.context import (
    BindContext,
    ClientResult,
    LocalRun,
    Memory,
    RoundPlan,
    State,
    zeros_like,
)
from fedbench.algorithms.modifier import Modifier, Needs, last_layers
from fedbench.core.fields import choice, count
from fedbench.core.flat_model import FlatModel


@dataclass
class ControlVariate(Modifier):
    """y <- y - eta * (g_k(y) - c_k + c), then c_k <- c_k - c + (w - y) / (eta * ||a_k||_1).

    All variates are zero at the start. The divisor is eta * K for plain SGD. With momentum there
    are two consistent pairs: `inside`, the correction is part of the gradient and passes through
    the buffer, so the divisor is what the buffer accumulates, ||a||_1; `outside`, the correction is
    applied after the optimizer's step and the divisor is K. (The mixed pair makes c_k - c grow
    without bound.) c_k comes from the local steps themselves, even when another modifier changes
    what is uploaded.
    """

    order = 30
    needs = Needs(linear_solver=True, global_model=True)
    records = ("control_variate_norm",)
    layers: int | None = count(None, at_least=0)
    correction: str = choice("inside", ("inside", "outside"))

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        bound.where = last_layers(context, self.layers, key)
        return bound

    @property
    def active(self) -> bool:
        return self.layers != 0

    @property
    def capturable(self) -> bool:
        """Outside of the momentum buffer, a step reads the round's rate."""
        return self.correction == "inside"

    @property
    def upload_size(self) -> int:
        return self.where.size

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        return self.where.size * len(plan.invited), self.where.size * len(plan.cohort)

    def init_server(self, model: FlatModel) -> State:
        return {"c": zeros_like(self.where, model)}

    def init_client(self, model: FlatModel) -> State:
        return {"c": zeros_like(self.where, model)}

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        self.where.add(gradient, memory.server["c"] - memory.client["c"])

    def begin(self, local: LocalRun, memory: Memory) -> None:
        memory.scratch["correction"] = memory.server["c"] - memory.client["c"]

    def grad(self, local: LocalRun, memory: Memory) -> None:
        if self.correction == "inside":
            self.where.add(local.model.g, memory.scratch["correction"])

    def stepped(self, local: LocalRun, memory: Memory) -> None:
        if self.correction == "outside" and not local.shared_frozen:
            self.where.add(local.model.w, memory.scratch["correction"], -local.lr)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        divisor = local.norm if self.correction == "inside" else local.shared_steps
        mean_gradient = self.where.read(local.raw_update) / (-local.lr * divisor)
        new = mean_gradient - memory.scratch["correction"]
        change = new - memory.client["c"]
        return ClientResult(client={"c": new}, upload=change, numbers=[new.norm()])

    def upload_weights(self, plan: RoundPlan) -> list[float]:
        """Over all clients: that keeps c the mean of all c_k under partial participation."""
        return plan.population_weights

    def server(self, plan: RoundPlan, state: State, uploaded: Tensor) -> State:
        return {"c": state["c"] + uploaded}

"""Control variates: SCAFFOLD on all layers, FedPVR on the last ones.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020 (option
II); Li et al., "On the effectiveness of partial variance reduction in federated learning", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.modifier import (
    Finished,
    Local,
    Memory,
    Modifier,
    Round,
    Scene,
    State,
    masked,
)
from fedbench.core.errors import nearest, require
from fedbench.core.flat_model import FlatModel

CORRECTIONS = ("inside", "outside")


@dataclass
class ControlVariate(Modifier):
    """y <- y - eta * (g_k(y) - c_k + c), then c_k <- c_k - c + (w - y) / (eta * ||a_k||_1), all
    zero at the start.

    The divisor is eta * K for plain SGD. With momentum there are two consistent pairs: `inside`,
    the correction is part of the gradient and passes through the buffer, so the divisor is what the
    buffer accumulates, ||a||_1; `outside`, the correction is applied after the optimizer's step and
    the divisor is K. (The mixed pair makes c_k - c grow without bound.) c_k comes from the local
    path itself, even when another modifier changes what is uploaded.
    """

    order = 30
    needs_linear_solver = True
    needs_global_model = True
    records = ("control_variate_norm",)
    layers: int | None = None
    correction: str = "inside"

    def bind(self, scene: Scene, key: str) -> None:
        require(
            self.correction in CORRECTIONS,
            f"{key}.correction",
            self.correction,
            nearest(self.correction, CORRECTIONS),
        )
        self.where = masked(scene, self.layers, key)

    @property
    def active(self) -> bool:
        return self.layers != 0

    def extra_floats(self) -> tuple[int, int]:
        return self.where.size, self.where.size

    def upload_size(self) -> int:
        return self.where.size

    def init_server(self, model: FlatModel) -> State:
        return {"c": model.w.new_zeros(self.where.size)}

    def init_client(self, model: FlatModel) -> State:
        return {"c": model.w.new_zeros(self.where.size)}

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        self.where.add(gradient, memory.server["c"] - memory.client["c"])

    def begin(self, local: Local, memory: Memory) -> None:
        memory.scratch["correction"] = memory.server["c"] - memory.client["c"]

    def grad(self, local: Local, memory: Memory) -> None:
        if self.correction == "inside":
            self.where.add(local.model.g, memory.scratch["correction"])

    def stepped(self, local: Local, memory: Memory) -> None:
        if self.correction == "outside" and not local.shared_frozen:
            self.where.add(local.model.w, memory.scratch["correction"], -local.lr)

    def finish(self, local: Local, memory: Memory) -> Finished:
        divisor = local.norm if self.correction == "inside" else local.shared_steps
        mean_gradient = self.where.read(local.path) / (-local.lr * divisor)
        new = mean_gradient - memory.scratch["correction"]
        return Finished(client={"c": new}, upload=new - memory.client["c"], numbers=[new.norm()])

    def upload_weights(self, facts: Round) -> list[float]:
        """Over all clients, not over the cohort: that keeps c = mean of all c_k under partial
        participation.
        """
        return facts.shares

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        return {"c": state["c"] + uploaded}

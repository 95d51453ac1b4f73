"""FedDyn's clients. Acar et al., "Federated learning based on dynamic regularization", 2021."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Scene, State
from fedbench.core.errors import require
from fedbench.core.flat_model import FlatModel


@dataclass
class Dynamic(Modifier):
    """y <- y - eta * (g_k(y) - s_k + alpha * (y - w)), then s_k <- s_k - alpha * (y_k - w), zero at
    the start.

    The server's part is `server.Dynamic`. alpha is the same for all clients: the authors' program
    divides it by a client's relative size and clips gradients, which is not in the paper.
    """

    order = 25
    needs_global_model = True
    records = ("gradient_state_norm",)
    alpha: float = 0.01

    @property
    def proximal(self) -> float:
        return self.alpha

    def bind(self, scene: Scene, key: str) -> None:
        require(
            1e-30 <= self.alpha <= 1e38,
            f"{key}.alpha",
            self.alpha,
            "a number from 1e-30 to 1e38 is allowed",
        )
        super().bind(scene, key)

    def init_client(self, model: FlatModel) -> State:
        return {"s": model.w.new_zeros(self.where.size)}

    def shift(self, memory: Memory, gradient: Tensor) -> None:
        self.where.add(gradient, memory.client["s"], -1.0)

    def begin(self, local: Local, memory: Memory) -> None:
        """-s_k - alpha * w does not change during the round; alpha * y is added in every step."""
        memory.scratch["constant"] = (
            memory.client["s"].neg().sub_(self.where.read(local.before), alpha=self.alpha)
        )

    def grad(self, local: Local, memory: Memory) -> None:
        self.where.add(local.model.g, memory.scratch["constant"])
        self.where.add(local.model.g, self.where.read(local.model.w), self.alpha)

    def finish(self, local: Local, memory: Memory) -> Finished:
        new = memory.client["s"] - self.alpha * self.where.read(local.path)
        return Finished(client={"s": new}, numbers=[new.norm()])

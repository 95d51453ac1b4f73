"""Control variates: SCAFFOLD on all layers, FedPVR on the last ones.

Karimireddy et al., "SCAFFOLD: stochastic controlled averaging for federated learning", 2020 (option II);
Li et al., "On the effectiveness of partial variance reduction in federated learning", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.base import Finished, Local, Memory, Modifier, Round, State
from fedbench.flat import FlatModel, Selection


@dataclass
class ControlVariate(Modifier):
    """y <- y - eta * (g_k(y) - c_k + c), then c_k <- c_k - c + (w - y) / (eta * ||a_k||_1), all zero at the start.

    The divisor is eta * K for plain SGD. With momentum the correction passes through the buffer, so dividing by what
    the buffer accumulates, ||a||_1, is the consistent choice; dividing by K makes c_k - c grow without bound.
    c_k comes from the local path itself, even when another modifier changes what is uploaded.
    """

    order = 30
    needs_linear_solver = True
    records = ("control_variate_norm",)
    layers: int | None = None

    def bind(self, model: FlatModel, shared: Selection, key: str) -> None:
        chosen = model.everything() if self.layers is None else model.last(self.layers, f"{key}.layers")
        self.where = model.without(chosen, model.without(model.everything(), shared))

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

    def begin(self, local: Local, memory: Memory) -> None:
        memory.scratch["correction"] = memory.server["c"] - memory.client["c"]

    def grad(self, local: Local, memory: Memory) -> None:
        self.where.add(local.model.g, memory.scratch["correction"])

    def finish(self, local: Local, memory: Memory) -> Finished:
        mean_gradient = self.where.read(local.path) / (-local.lr * local.norm)
        new = mean_gradient - memory.scratch["correction"]
        return Finished(client={"c": new}, upload=new - memory.client["c"], numbers=[new.norm()])

    def upload_weights(self, facts: Round) -> list[float]:
        """Over all clients, not over the cohort: that keeps c = mean of all c_k under partial participation."""
        return facts.shares

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        return {"c": state["c"] + uploaded}

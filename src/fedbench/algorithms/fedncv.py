"""FedNCV's clients: a leave-one-out control variate over their own examples. FedNCV paper, Eqs.
2-9, 14.

The mean of g_i - alpha * mean_{j != i} g_j over a client's examples is (1 - alpha) times the mean
gradient, whatever the data: what is left of it is a scale for the client's update.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Scene, State
from fedbench.core.errors import nearest, require
from fedbench.core.flat_model import FlatModel

MODES = ("none", "derivative", "difference")


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
    alpha: float = 0.0
    alpha_mode: str = "derivative"
    alpha_rate: float = 0.01
    alpha_max: float = 0.9

    def bind(self, scene: Scene, key: str) -> None:
        require(
            self.alpha_mode in MODES,
            f"{key}.alpha_mode",
            self.alpha_mode,
            nearest(str(self.alpha_mode), MODES),
        )
        require(
            0 <= self.alpha_max <= 1,
            f"{key}.alpha_max",
            self.alpha_max,
            "a number from 0 to 1 is allowed",
        )
        allowed = f"a number from 0 to alpha_max, {self.alpha_max:g}, is allowed"
        require(0 <= self.alpha <= self.alpha_max, f"{key}.alpha", self.alpha, allowed)
        require(
            0 <= self.alpha_rate <= 1e30,
            f"{key}.alpha_rate",
            self.alpha_rate,
            "a number from 0 to 1e30 is allowed",
        )
        super().bind(scene, key)

    @property
    def active(self) -> bool:
        return self.alpha != 0.0 or (self.alpha_mode != "none" and self.alpha_rate != 0.0)

    def extra_floats(self) -> tuple[int, int]:
        return 1, 0

    def init_client(self, model: FlatModel) -> State:
        """`square` is the squared norm that a client sent last; below zero: it has not sent any."""
        return {"alpha": model.w.new_full((1,), self.alpha), "square": model.w.new_full((1,), -1.0)}

    def update(self, local: Local, memory: Memory) -> None:
        memory.scratch["square"] = self.where.read(local.update).square().sum().reshape(1)
        local.update.mul_(1.0 - self._alpha(local, memory))

    def _alpha(self, local: Local, memory: Memory) -> Tensor:
        """One example has no others to leave it out of."""
        alpha = memory.client["alpha"]
        return alpha if local.samples > 1 else alpha.new_zeros(1)

    def finish(self, local: Local, memory: Memory) -> Finished:
        alpha, before = memory.client["alpha"], memory.client["square"]
        sent = memory.scratch["square"] * (1.0 - alpha) ** 2
        change = alpha.new_zeros(1)
        if self.alpha_mode == "derivative":
            change = -2.0 * (1.0 - alpha) * memory.scratch["square"]
        elif self.alpha_mode == "difference" and bool(before >= 0):
            change = before - sent
        new = (alpha - self.alpha_rate * change).clamp(0.0, self.alpha_max)
        return Finished(client={"alpha": new, "square": sent}, numbers=[self._alpha(local, memory)])

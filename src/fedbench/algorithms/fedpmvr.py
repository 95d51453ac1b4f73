"""FedPMVR: partial momentum on the last layers. FedPMVR paper, Eqs. 5, 6 and 12, and its algorithm
box.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

VARIANTS = ("shrink", "ema", "accum", "eq12", "alg1", "code")


@dataclass
class Pmvr(Modifier):
    """With D the client's update of the last layers, after training:

    shrink  D <- (1 - alpha) D: Eqs. 5 and 6 with the momentum zeroed every round;
            a smaller server step for the head
    ema     m_k <- alpha D + (1 - alpha) m_k, D <- D - m_k, with m_k kept between rounds (Eq. 5)
    accum   m_k <- alpha D + m_k, D <- D - m_k (the released program's recursion,
            if its test were ever true)
    eq12    in every step m <- alpha m + (1 - alpha) g instead of g, from zero every round (Eq. 12)
    alg1    one step more along the gradient of all own data: alpha on the last layers,
            eta elsewhere (the box)
    code    nothing: what the released program does, because its test is never true
    """

    order = 50
    alpha: float = 0.1
    variant: str = "shrink"
    layers: int = 2
    skip: int = 0  # layers at the end that are left out before `layers` are counted

    def bind(self, scene: Scene, key: str) -> None:
        require(
            self.variant in VARIANTS,
            f"{key}.variant",
            self.variant,
            nearest(str(self.variant), VARIANTS),
        )
        require(0 <= self.alpha <= 1, f"{key}.alpha", self.alpha, "a number from 0 to 1 is allowed")
        count = len(scene.model.layers)
        allowed = f"the model has {count} layers with weights, so 0 to {count} are allowed"
        require(0 <= self.skip <= count, f"{key}.skip", self.skip, allowed)
        self.where = masked(scene, self.layers, key, self.skip)
        self.rest = scene.model.without(scene.model.everything(), self.where)

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        return (
            fields if self.skip else {key: value for key, value in fields.items() if key != "skip"}
        )  # a later field

    @property
    def active(self) -> bool:
        """With alpha 0, `alg1` still takes its step outside the last layers."""
        return self.variant == "alg1" or (
            self.layers != 0 and self.alpha != 0 and self.variant != "code"
        )

    @property
    def remembers(self) -> bool:
        return self.variant in ("ema", "accum")

    def extra_gradients(self, facts: Round) -> int:
        return sum(facts.samples) if self.variant == "alg1" else 0

    def init_client(self, model: FlatModel) -> State:
        return {"m": model.w.new_zeros(self.where.size)} if self.remembers else {}

    def begin(self, local: Local, memory: Memory) -> None:
        if self.variant == "eq12":
            memory.scratch["m"] = local.model.w.new_zeros(self.where.size)

    def grad(self, local: Local, memory: Memory) -> None:
        if self.variant == "eq12":
            m = (
                memory.scratch["m"]
                .mul_(self.alpha)
                .add_(self.where.read(local.model.g), alpha=1 - self.alpha)
            )
            self.where.write(local.model.g, m)

    def update(self, local: Local, memory: Memory) -> None:
        if self.variant == "shrink":
            self.where.add(local.update, self.where.read(local.update), -self.alpha)
        elif self.remembers:
            old = 1 - self.alpha if self.variant == "ema" else 1.0
            m = old * memory.client["m"] + self.alpha * self.where.read(local.update)
            memory.scratch["m"] = m
            self.where.add(local.update, m, -1.0)
        elif self.variant == "alg1":
            gradient = local.trainer.gradient(local.own)
            self.where.add(local.update, self.where.read(gradient), -self.alpha)
            self.rest.add(local.update, self.rest.read(gradient), -local.lr)

    def finish(self, local: Local, memory: Memory) -> Finished:
        return Finished(client={"m": memory.scratch["m"]}) if self.remembers else Finished()

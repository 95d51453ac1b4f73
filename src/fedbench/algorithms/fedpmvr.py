"""FedPMVR: partial momentum on the last layers.

FedPMVR paper, Eqs. 5, 6 and 12, and its algorithm box.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from fedbench.algorithms.context import (
    BindContext,
    ClientResult,
    LocalRun,
    Memory,
    RoundPlan,
    State,
    zeros_like,
)
from fedbench.algorithms.modifier import Modifier, last_layers
from fedbench.core.fields import choice, count, number
from fedbench.core.flat_model import FlatModel, Selection

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
    alpha: float = number(0.1, at_least=0, at_most=1)
    variant: str = choice("shrink", VARIANTS)
    layers: int = count(2, at_least=0)
    skip: int = count(0, at_least=0)  # layers at the end that are left out before `layers`

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        bound.where = last_layers(context, self.layers, key, self.skip)
        return bound

    @cached_property
    def rest(self) -> Selection:
        """All parameters outside the last layers."""
        model = self.context.model
        return model.without(model.everything(), self.where)

    @property
    def active(self) -> bool:
        """With alpha 0, `alg1` still takes its step outside the last layers."""
        does_something = self.layers != 0 and self.alpha != 0 and self.variant != "code"
        return self.variant == "alg1" or does_something

    @property
    def remembers(self) -> bool:
        return self.variant in ("ema", "accum")

    def extra_gradients(self, plan: RoundPlan) -> int:
        return sum(plan.samples) if self.variant == "alg1" else 0

    def init_client(self, model: FlatModel) -> State:
        return {"m": zeros_like(self.where, model)} if self.remembers else {}

    def begin(self, local: LocalRun, memory: Memory) -> None:
        if self.variant == "eq12":
            memory.scratch["m"] = zeros_like(self.where, local.model)

    def grad(self, local: LocalRun, memory: Memory) -> None:
        if self.variant == "eq12":
            m, g = memory.scratch["m"], self.where.read(local.model.g)
            m.mul_(self.alpha).add_(g, alpha=1 - self.alpha)
            self.where.write(local.model.g, m)

    def update(self, local: LocalRun, memory: Memory) -> None:
        if self.variant == "shrink":
            self.where.add(local.update, self.where.read(local.update), -self.alpha)
        elif self.remembers:
            old = 1 - self.alpha if self.variant == "ema" else 1.0
            m = old * memory.client["m"] + self.alpha * self.where.read(local.update)
            memory.scratch["m"] = m
            self.where.add(local.update, m, -1.0)
        elif self.variant == "alg1":
            gradient = local.own.gradient()
            self.where.add(local.update, self.where.read(gradient), -self.alpha)
            self.rest.add(local.update, self.rest.read(gradient), -local.lr)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        return ClientResult(client={"m": memory.scratch["m"]} if self.remembers else {})

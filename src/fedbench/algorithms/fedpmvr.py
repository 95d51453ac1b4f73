"""FedPMVR: partial momentum on the last layers.

FedPMVR paper, Eqs. 5, 6 and 12, and its algorithm box.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fedbench.algorithms.context import (
    ClientResult,
    LocalRun,
    Memory,
    RoundPlan,
    State,
    zeros_like,
)
from fedbench.algorithms.modifier import OnLastLayers
from fedbench.core.fields import choice, number
from fedbench.core.flat_model import FlatModel, Selection

VARIANTS = ("shrink", "ema", "accum", "eq12", "eq12_plain", "alg1", "code")
AVERAGING = ("eq12", "eq12_plain")  # in every step


@dataclass
class Pmvr(OnLastLayers):
    """With D the client's update of the last layers, after training:

    shrink  D <- (1 - alpha) D: Eqs. 5 and 6 with the momentum zeroed every round;
            a smaller server step for the head
    ema     m_k <- alpha D + (1 - alpha) m_k, D <- D - m_k, with m_k kept between rounds (Eq. 5)
    accum   m_k <- alpha D + m_k, D <- D - m_k (the released program's recursion,
            if its test were ever true)
    eq12    in every step m <- alpha m + (1 - alpha) g instead of g, from zero every round (Eq. 12);
            the optimizer gets m, so client momentum averages once more
    eq12_plain  the same, and the step itself is w <- w - eta (m + decay w), whatever the
            optimizer: Eq. 13 with no other momentum than Eq. 12's
    alg1    one step more along the gradient of all own data: alpha on the last layers,
            eta elsewhere (the box)
    code    nothing: what the released program does, because its test is never true
    """

    order = 34  # ECGR and a rate of the head see the steps after that
    alpha: float = number(0.1, at_least=0, at_most=1)
    variant: str = choice("shrink", VARIANTS)

    @cached_property
    def rest(self) -> Selection:
        """All parameters outside the last layers."""
        model = self.context.model
        return model.without(model.everything(), self.where)

    @property
    def capturable(self) -> bool:
        """A step of `eq12_plain` reads the round's rate."""
        return self.variant != "eq12_plain"

    @property
    def active(self) -> bool:
        """With alpha 0, `alg1` still takes its step outside the last layers."""
        does_something = self.layers != 0 and self.alpha != 0 and self.variant != "code"
        return self.variant == "alg1" or does_something

    @property
    def own_steps(self) -> bool:
        return self.variant == "eq12_plain"

    @property
    def remembers(self) -> bool:
        return self.variant in ("ema", "accum")

    def extra_gradients(self, plan: RoundPlan) -> int:
        return sum(plan.samples) if self.variant == "alg1" else 0

    def init_client(self, model: FlatModel) -> State:
        return {"m": zeros_like(self.where, model)} if self.remembers else {}

    def begin(self, local: LocalRun, memory: Memory) -> None:
        if self.variant in AVERAGING:
            memory.scratch["m"] = zeros_like(self.where, local.model)

    def grad(self, local: LocalRun, memory: Memory) -> None:
        if self.variant not in AVERAGING:
            return
        m, g = memory.scratch["m"], self.where.read(local.model.g)
        m.mul_(self.alpha).add_(g, alpha=1 - self.alpha)
        if self.variant == "eq12":
            self.where.write(local.model.g, m)
        else:
            memory.scratch["before"] = self.where.read(local.model.w).clone()

    def stepped(self, local: LocalRun, memory: Memory) -> None:
        """`eq12_plain`: the optimizer's step on the last layers is replaced."""
        if self.variant == "eq12_plain" and not local.shared_frozen:
            before, m = memory.scratch["before"], memory.scratch["m"]
            direction = (m * local.share).add_(before, alpha=self.context.weight_decay)
            self.where.write(local.model.w, before.add_(direction, alpha=-local.lr))

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

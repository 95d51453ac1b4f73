"""A learning rate of their own for the last layers: a control for methods that act on them.

FedPGVC's `norm` moves the selected layers by eta * sigma in every step, so it is a learning rate of
the head, too. Whether a method does more than that shows beside FedAvg with this modifier.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.algorithms.context import LocalRun, Memory
from fedbench.algorithms.modifier import OnLastLayers
from fedbench.core.fields import number


@dataclass
class HeadRate(OnLastLayers):
    """In every step the last layers move `factor` times as far as the optimizer moves them.

    That is what a rate of factor * eta means for every optimizer: SGD with its momentum and weight
    decay, and Adam, whose step does not depend on the length of gradients. Corrections that are
    applied after the optimizer's step (SCAFFOLD's `outside`) come before and would be scaled, but
    methods that read a mean gradient off the local update need one rate for all and are refused.
    """

    order = 35  # ECGR notes the steps after that
    capturable = True
    factor: float = number(2.0, at_least=0, at_most=1e6)

    @property
    def own_steps(self) -> bool:
        return True

    @property
    def active(self) -> bool:
        return self.factor != 1.0 and self.layers != 0

    def grad(self, local: LocalRun, memory: Memory) -> None:
        """The optimizer's step begins here."""
        memory.scratch["before"] = self.where.read(local.model.w).clone()

    def stepped(self, local: LocalRun, memory: Memory) -> None:
        before, after = memory.scratch["before"], self.where.read(local.model.w)
        self.where.write(local.model.w, before.lerp_(after, self.factor))

"""FedProx: a pull towards the received model.

Li et al., "Federated optimization in heterogeneous networks", 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedbench.algorithms.context import LocalRun, Memory
from fedbench.algorithms.modifier import Modifier
from fedbench.core.fields import number


@dataclass
class Prox(Modifier):
    """w_k <- w_k - eta * (g_k(w_k) + mu * (w_k - w)).

    The pull is part of the gradient, so it passes through the optimizer's momentum. (The FedNova
    authors' program adds it to the momentum buffer after the step, from where it leaks into the
    next one; that is not copied.)
    """

    order = 20
    capturable = True
    mu: float = number(0.01, at_least=0)

    @property
    def active(self) -> bool:
        return self.mu != 0.0

    @property
    def proximal(self) -> float:
        return self.mu

    def grad(self, local: LocalRun, memory: Memory) -> None:
        model, where = local.model, self.where
        where.add(model.g, where.read(model.w) - where.read(local.before), self.mu)

"""The aggregate slot: the coefficients with which client updates are summed into one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.algorithms.context import RoundPlan
from fedbench.core.fields import choice


@dataclass
class Mean:
    """FedAvg: sum_k p_k * update_k, weights over the cohort."""

    needs_linear_solver: ClassVar[bool] = False
    extra_scalars: ClassVar[int] = 0  # uploaded by every client beside its update

    def coefficients(self, plan: RoundPlan) -> list[float]:
        return plan.weights

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The settings as they enter a run's id: without those that cannot change a number."""
        return fields


@dataclass
class Nova(Mean):
    """FedNova (Wang et al. 2020): tau_eff * sum_k p_k * update_k / ||a_k||_1.

    tau_eff is sum_k p_k ||a_k||_1, except (effective `auto`) for the proximal solver without
    momentum, where the authors' program takes sum_k p_k tau_k. With plain SGD both are the mean
    number of steps. The normaliser `steps` divides by tau_k although the solver has momentum, as
    ECGR's program does: wrong as soon as the tau_k differ.
    """

    needs_linear_solver: ClassVar[bool] = True
    extra_scalars: ClassVar[int] = 2  # tau_k and ||a_k||_1
    normaliser: str = choice("norm", ("norm", "steps"))
    effective: str = choice("auto", ("auto", "norms"))

    def coefficients(self, plan: RoundPlan) -> list[float]:
        norms = plan.norms
        if self.normaliser == "steps":
            norms = [float(steps) for steps in plan.steps]
        official_prox = self.effective == "auto" and plan.proximal > 0 and plan.momentum == 0
        lengths = plan.lengths if official_prox else norms
        if len({*norms, *lengths}) == 1:  # FedAvg, to the last bit
            return plan.weights
        effective = math.fsum(p * length for p, length in zip(plan.weights, lengths, strict=True))
        return [p * (effective / norm) for p, norm in zip(plan.weights, norms, strict=True)]


def solver_norm(
    steps: int,
    lr: float,
    momentum: float = 0.0,
    proximal: float = 0.0,
    nesterov: bool = False,
    shares: Sequence[float] = (),
) -> float:
    """||a||_1 of a linear local solver, found by feeding it unit gradients.

    For plain SGD it is the number of steps; the recursion reproduces the closed forms of FedNova's
    paper for momentum and for the proximal term, and covers both together. `shares` are factors of
    the steps' gradients, where they are not all 1.
    """
    if momentum == 0.0 and proximal == 0.0:
        return math.fsum(shares) if shares else float(steps)
    moved, buffer = 0.0, 0.0
    for share in shares or [1.0] * steps:
        gradient = share * (1.0 - lr * proximal * moved)
        buffer = momentum * buffer + gradient
        moved += gradient + momentum * buffer if nesterov else buffer
    return moved

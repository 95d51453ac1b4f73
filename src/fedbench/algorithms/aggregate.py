"""The aggregate slot: the coefficients with which client updates are summed into one server
update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedbench.algorithms.modifier import Round
from fedbench.core.errors import nearest, require


@dataclass
class Mean:
    """FedAvg: sum_k p_k * update_k, weights over the cohort."""

    needs_linear_solver: ClassVar[bool] = False
    extra_scalars: ClassVar[int] = 0  # uploaded by every client beside its update

    def coefficients(self, facts: Round) -> list[float]:
        return facts.weights

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """The settings as they enter a run's identity: those that cannot change a number at their
        defaults.
        """
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
    normaliser: str = "norm"
    effective: str = "auto"

    def __post_init__(self) -> None:
        for key, value, choices in (
            ("algo.normaliser", self.normaliser, ("norm", "steps")),
            ("algo.effective", self.effective, ("auto", "norms")),
        ):
            require(value in choices, key, value, nearest(str(value), choices))

    def coefficients(self, facts: Round) -> list[float]:
        norms = (
            facts.norms if self.normaliser == "norm" else [float(steps) for steps in facts.steps]
        )
        official_prox = self.effective == "auto" and facts.proximal > 0 and facts.momentum == 0
        lengths = facts.steps if official_prox else norms
        effective = math.fsum(p * length for p, length in zip(facts.weights, lengths, strict=True))
        return [p * (effective / norm) for p, norm in zip(facts.weights, norms, strict=True)]


@dataclass
class LeaveOthersOut(Mean):
    """FedNCV's server (Eqs. 9-12): every client's gradient minus the mean of the others', averaged.

    Written out, the update is sum_k q_k update_k with q_k = p_k (1 - b sum_{j != k} o_j), o_j = p_j
    / (1 - p_j), b = 1 as printed (`literal`): the q_k sum to zero, clients of equal size do not
    move at all. `unbiased` is the result that the paper's Proposition 1 claims, the plain mean;
    `beta` puts b = beta between them and, with `normalise`, divides by 1 - b.
    """

    variant: str = "unbiased"
    beta: float = 0.5
    normalise: bool = True

    def __post_init__(self) -> None:
        variants = ("unbiased", "literal", "beta")
        require(
            self.variant in variants,
            "algo.variant",
            self.variant,
            nearest(str(self.variant), variants),
        )
        require(
            0 <= self.beta < 1,
            "algo.beta",
            self.beta,
            "a number from 0 to below 1 is allowed (literal is 1)",
        )

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Only the variant `beta` reads beta and normalise."""
        defaults = LeaveOthersOut()
        return (
            fields
            if self.variant == "beta"
            else {**fields, "beta": defaults.beta, "normalise": defaults.normalise}
        )

    def coefficients(self, facts: Round) -> list[float]:
        p = facts.weights
        if self.variant == "unbiased" or len(p) == 1:  # without others there is no control variate
            return p
        odds = [weight / (1.0 - weight) for weight in p]
        total, b = math.fsum(odds), 1.0 if self.variant == "literal" else self.beta
        scale = 1.0 / (1.0 - b) if self.variant == "beta" and self.normalise else 1.0
        return [
            scale * weight * (1.0 - b * (total - own)) for weight, own in zip(p, odds, strict=True)
        ]


def solver_norm(
    steps: int, lr: float, momentum: float = 0.0, proximal: float = 0.0, nesterov: bool = False
) -> float:
    """||a||_1 of a linear local solver, found by feeding it unit gradients.

    For plain SGD it is the number of steps; the recursion reproduces the closed forms of FedNova's
    paper for momentum and for the proximal term, and covers both together.
    """
    if momentum == 0.0 and proximal == 0.0:
        return float(steps)
    moved, buffer = 0.0, 0.0
    for _ in range(steps):
        gradient = 1.0 - lr * proximal * moved
        buffer = momentum * buffer + gradient
        moved += gradient + momentum * buffer if nesterov else buffer
    return moved

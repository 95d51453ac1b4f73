"""Worked numbers of control variates: SCAFFOLD, with momentum and partial participation, and
FedPVR.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from support import least_squares
from support.least_squares import FixedCohorts, close

from fedbench.algorithms.aggregate import solver_norm
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import ClientResult
from fedbench.algorithms.fedpmvr import Pmvr
from fedbench.algorithms.scaffold import ControlVariate

MANY_STEPS = {"steps": 20, "lr": 0.001, "momentum": 0.9}


def scaffold(weights="uniform", variate=None, **extra) -> Algorithm:
    return Algorithm(
        weights=weights, modifiers={"control_variate": variate or ControlVariate(), **extra}
    )


def variates(state) -> list[list[float]]:
    """c_A, c_B and c."""
    clients = [state.clients[k]["control_variate"]["c"].tolist() for k in (0, 1)]
    return [*clients, state.server["control_variate"]["c"].tolist()]


def test_scaffold():
    expected = [(0.9075, 0.44875), (0.8432515625, 0.4310578125), (0.796076341797, 0.427398734375)]
    close(least_squares.trajectory(scaffold(), 3), expected)
    close(least_squares.trajectory(scaffold("samples")), [(0.801, 0.313), (0.672782, 0.192876)])


def test_the_variates_of_scaffold():
    expected = [
        [(-0.425, -0.875), (1.35, 1.3875), (0.4625, 0.25625)],
        [(-0.65275, -1.2008125), (1.295234375, 1.377734375), (0.3212421875, 0.0884609375)],
        [
            (-0.737837734375, -1.30651195313),
            (1.20958994141, 1.34310273437),
            (0.235876103516, 0.018295390625),
        ],
    ]
    for state, wanted in zip(
        least_squares.states(least_squares.federation(scaffold(), rounds=3)), expected, strict=True
    ):
        close(variates(state), wanted)


def test_scaffold_with_partial_participation():
    algorithm = scaffold(cohorts=FixedCohorts(((0,), (1,), (0,))))
    made = least_squares.federation(algorithm, rounds=3)
    expected = [(-0.2125, -0.4375), (0.57265625, 0.37046875), (0.4068328125, 0.15086328125)]
    models = [(1.085, 0.675), (0.8134375, 0.4393125), (0.765235625, 0.4530609375)]
    for state, model, variate in zip(least_squares.states(made), models, expected, strict=True):
        close(state.w.tolist(), model)
        close(state.server["control_variate"]["c"].tolist(), variate)


@pytest.mark.parametrize(
    ("correction", "second", "many"),
    [
        ("inside", (0.786837661638, 0.417407489224), (0.774875184251, 0.434262989294)),
        ("outside", (0.7871140625, 0.4210734375), (0.774423860549, 0.439406790809)),
    ],
)
def test_scaffold_with_momentum(correction, second, many):
    """Each place of the correction has a divisor of its own that is consistent with it."""
    algorithm = scaffold(variate=ControlVariate(correction=correction))
    close(
        least_squares.trajectory(algorithm, client={"momentum": 0.9}), [(0.8625, 0.42625), second]
    )
    close(least_squares.trajectory(algorithm, 6, client=MANY_STEPS)[-1:], [many])


@dataclass
class MixedPair(ControlVariate):
    """The correction passes through the buffer, but the divisor counts steps: what the engine must
    not do.
    """

    def finish(self, local, memory):
        return super().finish(replace(local, norm=float(local.steps)), memory)


def test_the_mixed_pair_would_diverge():
    """In the fifth round the loss is a thousand times that of guessing: the engine stops there."""
    made = least_squares.federation(scaffold(variate=MixedPair()), rounds=6, client=MANY_STEPS)
    apart, diverged = [], []
    for record in made.rounds():
        own, _, mean = variates(made.state)
        apart.append(math.dist(own, mean))
        diverged.append(bool(record.diverged))
    assert apart == pytest.approx([9.088, 33.17, 163.8, 753.7, 3521.0], rel=5e-4)
    assert diverged == [False] * 4 + [True]
    kappa = [solver_norm(steps, 0.001, 0.9) / steps for steps in (2, 3, 4, 20)]
    close(kappa, [1.45, 1.87, 2.2622, 6.0471], 1e-4)


@dataclass
class NeverStored(ControlVariate):
    """Clients forget their variates, as in a well-known benchmark."""

    def finish(self, local, memory):
        return ClientResult(upload=super().finish(local, memory).upload, numbers=[0.0])


def test_variates_that_are_never_stored_are_another_method():
    expected = [(0.9075, 0.44875), (0.7578453125, 0.3792453125), (0.598287826172, 0.332945765625)]
    close(least_squares.trajectory(scaffold(variate=NeverStored()), 3), expected)


def test_scaffold_converges_to_the_optimum():
    close(least_squares.trajectory(scaffold(), 300)[-1:], [(0.571428571429, 0.547619047619)])


def test_fedpvr_masks_the_head():
    expected = [(0.9075, 0.44875), (0.8454703125, 0.4288390625), (0.800427767578, 0.422889222656)]
    close(least_squares.trajectory(scaffold(variate=ControlVariate(layers=1)), 3), expected)


def test_variates_come_from_the_path_and_not_from_what_is_sent():
    algorithm = scaffold(pmvr=Pmvr(alpha=0.5, layers=1))
    for state in least_squares.states(least_squares.federation(algorithm, rounds=1)):
        close(variates(state)[0], (-0.425, -0.875))
        close(state.w.tolist(), (0.9075, 0.5 - 0.5 * (0.5 - 0.44875)))

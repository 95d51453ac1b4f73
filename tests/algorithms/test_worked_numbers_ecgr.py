"""Worked numbers of ECGR on given batches, alone and with FedProx, FedNova and SCAFFOLD."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from support import least_squares
from support.least_squares import FixedCohorts, FixedSteps, close

from fedbench.algorithms.aggregate import Nova
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.ecgr import Ecgr
from fedbench.algorithms.fedprox import Prox
from fedbench.algorithms.modifier import Modifier
from fedbench.algorithms.scaffold import ControlVariate

BATCHES = (((0,), (1,), (0,), (1,)), ((0, 1), (2, 3), (4, 5), (6, 7)))
FOUR = {"client": {"steps": 4}, "batches": BATCHES}
FIRST = (0.688712065633, 0.162174938432)


def ecgr(beta: float = 0.2, select: str = "greedy", aggregate=None, **extra) -> Algorithm:
    modifiers = {"ecgr": Ecgr(beta, select=select), **extra}
    return (
        Algorithm(modifiers=modifiers)
        if aggregate is None
        else Algorithm(aggregate=aggregate, modifiers=modifiers)
    )


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        (ecgr(beta=1.0), [(0.6850625, 0.16848), (0.562862935862, 0.0167008742125)]),
        (ecgr(), [FIRST, (0.595125122568, -0.00797754701201)]),
        (ecgr(select="exact"), [FIRST, (0.595125122568, -0.00797754701201)]),
        (
            ecgr(prox=Prox(1.0)),
            [(0.729201753167, 0.206093067345), (0.638203186738, 0.0326404561224)],
        ),
        (
            ecgr(aggregate=Nova(), steps=FixedSteps((2, 4))),
            [(0.736812913349, 0.211062002929), (0.652207110913, 0.0621143775291)],
        ),
        (
            ecgr(variate=ControlVariate()),
            [FIRST, (0.571004866857, 0.0451218156955), (0.527304127701, 0.0132124286724)],
        ),
    ],
    ids=["fedavg", "ecgr", "exact", "fedprox", "fednova", "scaffold"],
)
def test_ecgr(algorithm, expected):
    close(least_squares.trajectory(algorithm, len(expected), **FOUR), expected)


def test_what_ecgr_picks():
    picks = [["0 2", "2 3"], ["2 0", "2 3"]]
    gammas = [(5.23320839401, 1.90681922294), (4.40602199657, 1.89348671682)]
    made = least_squares.federation(ecgr(), rounds=2, **FOUR)
    for record, chosen, gamma in zip(made.rounds(), picks, gammas, strict=True):
        assert least_squares.column(record, "ecgr_selected") == chosen
        close(least_squares.column(record, "ecgr_gamma"), gamma)


def test_what_each_client_sends():
    """A client alone moves the server by what it sends: in the first round, that of the sum of
    both.
    """
    sent = [(-0.105710809559, -0.316085786998), (0.415537620348, 0.50130277371)]
    for client, expected in enumerate(sent):
        algorithm = ecgr(cohorts=FixedCohorts(((client,),)))
        ((u, v),) = least_squares.trajectory(algorithm, 1, **FOUR)
        close([1.0 - u, 0.5 - v], expected)


@dataclass
class FixedGradients(Modifier):
    """The gradients of the local steps, as given."""

    gradients: tuple[tuple[float, float], ...] = ()

    def grad(self, local, memory):
        local.model.g.copy_(torch.tensor(self.gradients[local.step], dtype=torch.float64))


def test_an_odd_number_of_steps():
    gradients = FixedGradients(((1.0, 0.0), (0.0, 1.0), (-1.0, 0.5)))
    made = least_squares.federation(ecgr(given=gradients), rounds=1, client={"steps": 3, "lr": 1.0})
    (record,) = made.rounds()
    assert least_squares.column(record, "ecgr_selected") == ["0", "0"]
    u, v = made.state.w.tolist()
    close([1.0 - u, 0.5 - v], (1.40449376635, 0.526685162383))

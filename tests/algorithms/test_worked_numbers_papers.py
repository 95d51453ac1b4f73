"""Worked numbers of FedPGVC, FedPMVR and FedNCV, in every reading that has them."""

from __future__ import annotations

import pytest
from support import least_squares
from support.least_squares import FixedCohorts, FixedSteps, close

from fedbench.algorithms.aggregate import Nova
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import RoundPlan
from fedbench.algorithms.fedncv import LeaveOneOut, LeaveOthersOut
from fedbench.algorithms.fedpgvc import Eq16, Pgvc
from fedbench.algorithms.fedpmvr import Pmvr
from fedbench.algorithms.fedprox import Prox

EQ15 = [(0.927421875, 0.0813568181586), (0.950798884232, -2.82848324399)]
SINGLE = {"steps": 1}  # with a full batch: one gradient of all the client's data


def pgvc(rho: str = "eq15", weights: str = "uniform", literal: bool = False, **extra) -> Algorithm:
    return Algorithm(
        weights=weights,
        server_opt=Eq16(literal),
        modifiers={"pgvc": Pgvc(rho=rho, layers=1), **extra},
    )


@pytest.mark.parametrize(
    ("rho", "expected"),
    [
        ("eq15", EQ15),
        ("wdro", [(0.91703125, 0.23972666626), (0.878139147581, 0.184042995299)]),
        ("add", [(0.91578125, 0.220729058838), (0.873609471947, 0.19861729488)]),
        ("norm", [(0.90625, 0.5), (0.8344140625, 0.5)]),
        ("code", [(0.9075, 0.425582897383), (0.845624951962, 0.393406881999)]),
    ],
)
def test_fedpgvc(rho, expected):
    close(least_squares.trajectory(pgvc(rho)), expected)


def test_fedpgvc_weighted_by_samples():
    expected = [(0.823875, -0.103363903446), (0.769988095452, -9.54206118734)]
    close(least_squares.trajectory(pgvc(weights="samples")), expected)


@pytest.mark.parametrize(
    ("literal", "server_lr", "expected"),
    [
        (True, 0.5, [(1.427421875, 0.331356818159), (2.00147503273, -0.0695925374005)]),
        (False, 0.5, [(0.9637109375, 0.290678409079), (0.947553372291, -0.0247401611557)]),
        (True, 1.0, EQ15),
        (False, 1.0, EQ15),
    ],
)
def test_the_server_of_fedpgvc(literal, server_lr, expected):
    close(least_squares.trajectory(pgvc(literal=literal), server_lr=server_lr), expected)


def test_fedprox_with_pgvc():
    expected = [(0.932421875, 0.116200568159), (0.946678805958, -1.99074944039)]
    close(least_squares.trajectory(pgvc(prox=Prox(1.0))), expected)


def test_fednova_with_pgvc():
    algorithm = pgvc(weights="samples", steps=FixedSteps((1, 3)))
    algorithm.aggregate = Nova()
    expected = [(0.802706966441, -0.057325839029), (0.710929276767, -0.923836893104)]
    close(least_squares.trajectory(algorithm), expected)


@pytest.mark.parametrize(("client", "rho"), [(0, (-0.25, -0.5)), (1, (5.4375, 4.3125))])
def test_rho_at_the_start(client, rho):
    """Under `wdro` on all layers, one step is eta * rho."""
    modifiers = {"pgvc": Pgvc(rho="wdro", layers=2), "cohorts": FixedCohorts(((client,),))}
    ((u, v),) = least_squares.trajectory(Algorithm(modifiers=modifiers), 1, client=SINGLE)
    close([(1.0 - u) / 0.1, (0.5 - v) / 0.1], rho)


FEDPMVR = {
    "shrink": [
        (0.9075, 0.453875),
        (0.84198234375, 0.429624921875),
        (0.794492151855, 0.418832189814),
    ],
    "ema": [(0.9075, 0.453875), (0.84198234375, 0.434237421875), (0.79389829248, 0.428905299189)],
    "accum": [
        (0.9075, 0.453875),
        (0.84198234375, 0.434749921875),
        (0.793832308105, 0.430537033564),
    ],
    "eq12": [(0.907625, 0.45185), (0.842582546875, 0.42753605), (0.795538716869, 0.417534984943)],
    "alg1": [
        (0.8716875, 0.422625),
        (0.796315496094, 0.394754351563),
        (0.749114152622, 0.389569348229),
    ],
    "code": [(0.9075, 0.44875), (0.8426421875, 0.4231828125), (0.795831302734, 0.41283725)],
}


@pytest.mark.parametrize(("variant", "expected"), FEDPMVR.items(), ids=FEDPMVR)
def test_fedpmvr(variant, expected):
    algorithm = Algorithm(weights="uniform", modifiers={"pmvr": Pmvr(0.1, variant, layers=1)})
    close(least_squares.trajectory(algorithm, 3), expected)


def test_fedpmvr_weighted_by_samples():
    algorithm = Algorithm(modifiers={"pmvr": Pmvr(0.1, layers=1)})
    close(least_squares.trajectory(algorithm), [(0.801, 0.3317), (0.6704472, 0.2153498)])


def ncv(variant: str = "unbiased", weights: str = "samples", **settings) -> Algorithm:
    piece = LeaveOneOut(alpha=0.5, **{"alpha_mode": "none", **settings})
    return Algorithm(
        weights=weights, aggregate=LeaveOthersOut(variant), modifiers={"leave_one_out": piece}
    )


@pytest.mark.parametrize(
    ("variant", "weights", "expected"),
    [
        ("unbiased", "samples", [(0.945, 0.45), (0.89535, 0.40465)]),
        ("literal", "samples", [(0.94, 0.425), (0.879775, 0.34685)]),
        ("literal", "uniform", [(1.0, 0.5), (1.0, 0.5)]),
        ("beta", "samples", [(0.885, 0.375), (0.78165, 0.255475)]),
    ],
)
def test_fedncv_with_a_single_gradient(variant, weights, expected):
    close(least_squares.trajectory(ncv(variant, weights), client=SINGLE), expected)


def test_fedncv_with_local_training():
    close(least_squares.trajectory(ncv()), [(0.9005, 0.4065), (0.818598, 0.328459)])


def test_fedncv_moves_alpha_along_the_derivative():
    """The engine's gradient is w - w_k = eta g, so a rate of .1 for g is one of .1 / eta^2 for
    it.
    """
    algorithm = ncv(alpha_mode="derivative", alpha_rate=0.1 / 0.1**2, alpha_max=1.0)
    made = least_squares.federation(algorithm, rounds=2, client=SINGLE)
    models, alphas = (
        [(0.945, 0.45), (0.9439675, 0.4529725)],
        [(0.5, 0.5), (0.625, 0.95), (0.75250375, 0.989625625)],
    )
    for record, model, used, left in zip(made.rounds(), models, alphas, alphas[1:], strict=False):
        close(made.state.w.tolist(), model)
        close(least_squares.column(record, "ncv_alpha"), used)
        close([made.state.clients[k]["leave_one_out"]["alpha"].item() for k in (0, 1)], left)


@pytest.mark.parametrize(
    ("sizes", "server", "expected"),
    [
        ((1, 1), LeaveOthersOut("literal"), (0.0, 0.0)),
        ((2, 8), LeaveOthersOut("literal"), (-0.6, 0.6)),
        (
            (1, 2, 3, 4),
            LeaveOthersOut("literal"),
            (-0.0345238095238, -0.0412698412698, -0.00833333333333, 0.084126984127),
        ),
        ((10, 10, 10, 70), LeaveOthersOut("literal"), (*[-0.155555555556] * 3, 0.466666666667)),
        ((2, 8), LeaveOthersOut("beta", 0.5), (-0.4, 1.4)),
        ((2, 8), LeaveOthersOut("beta", 0.5, normalise=False), (-0.2, 0.7)),
    ],
)
def test_weights_of_fedncv(sizes, server, expected):
    p = [size / sum(sizes) for size in sizes]
    close(
        server.coefficients(
            RoundPlan(0, list(range(len(p))), list(sizes), p, p, 0.1, [1] * len(p), [1.0] * len(p))
        ),
        expected,
    )

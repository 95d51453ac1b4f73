"""The engine reproduces, in float64, numbers that were computed independently for the two-client
problem: baselines.

The other methods follow in the files test_worked_numbers_*.py.
"""

from __future__ import annotations

import pytest
import torch
from support import least_squares
from support.least_squares import FixedCohorts, FixedSteps, close

from fedbench.algorithms.aggregate import Mean, Nova, solver_norm
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.feddyn import Dynamic, DynamicServer
from fedbench.algorithms.fedprox import Prox
from fedbench.algorithms.server_optimizer import Momentum

TAU = (1, 3)
UNIFORM_OPTIMUM = (0.571428571429, 0.547619047619)


def test_the_problem_itself():
    """Gradients and losses at the start, and what each client makes of it alone."""
    gradients, losses, models = (
        [(-0.5, -1.0), (1.5, 1.5)],
        [0.25, 1.875],
        [(1.085, 0.675), (0.73, 0.2225)],
    )
    for client in (0, 1):
        made = least_squares.federation(
            Algorithm(modifiers={"cohorts": FixedCohorts(((client,),))}), rounds=1
        )
        close(made.trainer.gradient(made.shards[client]).tolist(), gradients[client])
        x, y = made.trainer.train.batch(made.shards[client])
        assert least_squares.half_squared(made.model.module(x), y).item() == losses[client]
        close([state.w.tolist() for state in least_squares.states(made)], [models[client]])


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("samples", [(0.801, 0.313), (0.672392, 0.187836)]),
        ("uniform", [(0.9075, 0.44875), (0.8426421875, 0.4231828125)]),
    ],
)
def test_fedavg(weights, expected):
    close(least_squares.trajectory(Algorithm(weights=weights)), expected)


def test_fedavg_does_not_converge_to_the_optimum():
    close(
        least_squares.trajectory(Algorithm(weights="uniform"), 300)[-1:],
        [(0.590231759055, 0.505609901476)],
    )


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("heavy-ball", [(0.801, 0.313), (0.493292, 0.019536)]),
        ("nesterov", [(0.6219, 0.1447), (0.33672512, -0.13884204)]),
        ("ema", [(0.9801, 0.4813), (0.94299392, 0.44638836)]),
    ],
)
def test_fedavgm(variant, expected):
    close(least_squares.trajectory(Algorithm(server_opt=Momentum(0.9, variant))), expected)


def test_fedprox():
    close(
        least_squares.trajectory(Algorithm(modifiers={"prox": Prox(1.0)})),
        [(0.812, 0.323), (0.686842, 0.20124)],
    )


def nova(rho: float = 0.0, mu: float = 0.0, aggregate=None) -> list[list[float]]:
    modifiers = {"steps": FixedSteps(TAU)} | ({"prox": Prox(mu)} if mu else {})
    return least_squares.trajectory(
        Algorithm(aggregate=aggregate or Nova(), modifiers=modifiers), client={"momentum": rho}
    )


def test_fednova_reference_is_fedavg_with_the_same_steps():
    close(nova(aggregate=Mean()), [(0.7175, 0.211), (0.55875675, 0.0263235)])


@pytest.mark.parametrize(
    ("rho", "mu", "settings", "expected"),
    [
        (0.0, 0.0, {}, [(0.7725, 0.2842), (0.645098136667, 0.160368673333)]),
        (0.5, 0.0, {}, [(0.681505882353, 0.198447058824), (0.558323359446, 0.0758737804844)]),
        (0.5, 0.0, {"normaliser": "steps"}, [(0.6633, 0.1698), (0.52555187, 0.01624894)]),
        (0.0, 1.0, {}, [(0.77415498155, 0.28547601476), (0.647256477336, 0.162027577184)]),
        (
            0.0,
            1.0,
            {"effective": "norms"},
            [(0.794307306273, 0.304618154982), (0.670690804653, 0.184783530641)],
        ),
    ],
)
def test_fednova(rho, mu, settings, expected):
    close(nova(rho, mu, Nova(**settings)), expected)


def test_solver_norms():
    close([solver_norm(tau, 0.1, 0.5) for tau in TAU], [1.0, 4.25])
    close([solver_norm(tau, 0.1, 0.0, 1.0) for tau in TAU], [1.0, 2.71])
    close([solver_norm(3, 0.1, 0.5, 1.0)], [3.86])
    for tau in range(1, 8):
        momentum = (tau - 0.9 * (1 - 0.9**tau) / 0.1) / 0.1
        assert solver_norm(tau, 0.1, 0.9) == pytest.approx(momentum)
        assert solver_norm(tau, 0.1, 0.0, 2.0) == pytest.approx((1 - 0.8**tau) / 0.2)
        assert solver_norm(tau, 0.1) == tau


def test_solver_norm_with_nesterov_is_what_torch_accumulates():
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(5):
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert solver_norm(5, 0.1, 0.9, nesterov=True) == pytest.approx(-parameter.item() / 0.1)


def feddyn(**extra) -> Algorithm:
    modifiers = {"dynamic": Dynamic(0.5), **extra}
    return Algorithm(weights="uniform", server_opt=DynamicServer(0.5), modifiers=modifiers)


def feddyn_numbers(algorithm: Algorithm) -> list[tuple[list[float], list[float], list[float]]]:
    """The server's model, h and the mean of the active models, round by round."""
    made = least_squares.federation(algorithm, rounds=3)
    return [
        (state.w.tolist(), state.server_opt["h"].tolist(), state.server_opt["mean_active"].tolist())
        for state in least_squares.states(made)
    ]


def test_feddyn():
    models, h, means = zip(*feddyn_numbers(feddyn()), strict=True)
    close(models, [(0.82, 0.4), (0.67081875, 0.35710625), (0.574365890625, 0.378073125)])
    close(means, [(0.91, 0.45), (0.790409375, 0.403553125), (0.682387632812, 0.390813125)])
    close(h, [(0.045, 0.025), (0.0597953125, 0.0232234375), (0.0540108710937, 0.00637)])


def test_feddyn_with_partial_participation():
    numbers = feddyn_numbers(feddyn(cohorts=FixedCohorts(((0,), (1,), (0,)))))
    models, h, means = zip(*numbers, strict=True)
    close(models, [(1.12375, 0.755), (0.6890828125, 0.349415625), (0.804157269531, 0.657943785156)])
    close(
        h,
        [(-0.020625, -0.0425), (0.05869453125, 0.0392640625), (0.0199506113281, -0.0252453183594)],
    )
    close(means, [(1.0825, 0.67), (0.806471875, 0.42794375), (0.844058492188, 0.607453148437)])


def test_feddyn_remembers_gradient_estimates():
    states = list(least_squares.states(made := least_squares.federation(feddyn(), rounds=1)))
    assert len(states) == 1
    close(
        [made.state.clients[k]["dynamic"]["s"].tolist() for k in (0, 1)],
        [(-0.04125, -0.085), (0.13125, 0.135)],
    )


def test_feddyn_converges_to_the_optimum():
    close(least_squares.trajectory(feddyn(), 300)[-1:], [UNIFORM_OPTIMUM])

"""The engine reproduces, in float64, numbers that were computed independently for the two-client problem."""

from __future__ import annotations

from dataclasses import dataclass

import ls2
import pytest
from ls2 import FixedCohorts, FixedSteps

from fedbench.algorithms.aggregate import Mean, Nova, solver_norm
from fedbench.algorithms.base import Modifier
from fedbench.algorithms.build import Algorithm
from fedbench.algorithms.control_variate import ControlVariate
from fedbench.algorithms.prox import Prox
from fedbench.algorithms.server import Momentum

TAU = (1, 3)


def close(measured, expected, tolerance=1e-9):
    assert len(measured) == len(expected)
    for got, wanted in zip(measured, expected, strict=True):
        assert got == pytest.approx(wanted, abs=tolerance)


def nova(rho: float = 0.0, mu: float = 0.0, aggregate=None) -> list[list[float]]:
    modifiers = {"steps": FixedSteps(TAU)} | ({"prox": Prox(mu)} if mu else {})
    return ls2.trajectory(Algorithm(aggregate=aggregate or Nova(), modifiers=modifiers), client={"momentum": rho})


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("samples", [(0.801, 0.313), (0.672392, 0.187836)]),
        ("uniform", [(0.9075, 0.44875), (0.8426421875, 0.4231828125)]),
    ],
)
def test_fedavg(weights, expected):
    close(ls2.trajectory(Algorithm(weights=weights)), expected)


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("heavy-ball", [(0.801, 0.313), (0.493292, 0.019536)]),
        ("nesterov", [(0.6219, 0.1447), (0.33672512, -0.13884204)]),
        ("ema", [(0.9801, 0.4813), (0.94299392, 0.44638836)]),
    ],
)
def test_fedavgm(variant, expected):
    close(ls2.trajectory(Algorithm(server_opt=Momentum(0.9, variant))), expected)


def test_fedprox():
    close(ls2.trajectory(Algorithm(modifiers={"prox": Prox(1.0)})), [(0.812, 0.323), (0.686842, 0.20124)])


def test_fednova_reference_is_fedavg_with_the_same_steps():
    close(nova(aggregate=Mean()), [(0.7175, 0.211), (0.55875675, 0.0263235)])


@pytest.mark.parametrize(
    ("rho", "mu", "expected"),
    [
        (0.0, 0.0, [(0.7725, 0.2842), (0.645098136667, 0.160368673333)]),
        (0.5, 0.0, [(0.681505882353, 0.198447058824), (0.558323359446, 0.0758737804844)]),
        (0.0, 1.0, [(0.77415498155, 0.28547601476), (0.647256477336, 0.162027577184)]),
    ],
)
def test_fednova(rho, mu, expected):
    close(nova(rho, mu), expected)


def test_solver_norms():
    assert solver_norm(3, 0.1, 0.5, 1.0) == pytest.approx(3.86)
    for tau in range(1, 8):
        momentum = (tau - 0.9 * (1 - 0.9**tau) / 0.1) / 0.1
        assert solver_norm(tau, 0.1, 0.9) == pytest.approx(momentum)
        assert solver_norm(tau, 0.1, 0.0, 2.0) == pytest.approx((1 - 0.8**tau) / 0.2)
        assert solver_norm(tau, 0.1) == tau


def test_solver_norm_with_nesterov_is_what_torch_accumulates():
    import torch

    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(5):
        parameter.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert solver_norm(5, 0.1, 0.9, nesterov=True) == pytest.approx(-parameter.item() / 0.1)


SCAFFOLD_UNIFORM = [(0.9075, 0.44875), (0.8432515625, 0.4310578125), (0.796076341797, 0.427398734375)]


def scaffold(weights="uniform", layers=None, **extra) -> Algorithm:
    return Algorithm(weights=weights, modifiers={"control_variate": ControlVariate(layers), **extra})


def test_scaffold():
    close(ls2.trajectory(scaffold(), 3), SCAFFOLD_UNIFORM)
    close(ls2.trajectory(scaffold("samples")), [(0.801, 0.313), (0.672782, 0.192876)])


def test_scaffold_variates_after_the_first_round():
    made = ls2.federation(scaffold(), rounds=1)
    for state in ls2.states(made):
        assert state.clients[0]["control_variate"]["c"].tolist() == pytest.approx([-0.425, -0.875])
        assert state.clients[1]["control_variate"]["c"].tolist() == pytest.approx([1.35, 1.3875])
        assert state.server["control_variate"]["c"].tolist() == pytest.approx([0.4625, 0.25625])


def test_scaffold_with_partial_participation():
    algorithm = scaffold(cohorts=FixedCohorts(((0,), (1,), (0,))))
    made = ls2.federation(algorithm, rounds=3)
    variates = [(-0.2125, -0.4375), (0.57265625, 0.37046875), (0.4068328125, 0.15086328125)]
    models = [(1.085, 0.675), (0.8134375, 0.4393125), (0.765235625, 0.4530609375)]
    for state, model, variate in zip(ls2.states(made), models, variates, strict=True):
        assert state.w.tolist() == pytest.approx(model, abs=1e-9)
        assert state.server["control_variate"]["c"].tolist() == pytest.approx(variate, abs=1e-9)


def test_scaffold_with_momentum_divides_by_what_the_buffer_accumulates():
    expected = [(0.8625, 0.42625), (0.786837661638, 0.417407489224)]
    close(ls2.trajectory(scaffold(), client={"momentum": 0.9}), expected)


def test_scaffold_converges_to_the_optimum_and_fedavg_does_not():
    close(ls2.trajectory(scaffold(), 500)[-1:], [(0.571428571429, 0.547619047619)])
    close(ls2.trajectory(Algorithm(weights="uniform"), 2000)[-1:], [(0.590231759055, 0.505609901476)])


def test_fedpvr_masks_the_head():
    expected = [(0.9075, 0.44875), (0.8454703125, 0.4288390625), (0.800427767578, 0.422889222656)]
    close(ls2.trajectory(scaffold(layers=1), 3), expected)


@dataclass
class ShrinkHead(Modifier):
    """FedPMVR's published reading, to try the `update` hook: the head's update shrinks by 1 - alpha."""

    alpha: float = 0.1

    def update(self, local, memory):
        local.update[1] *= 1 - self.alpha


def test_what_is_sent_can_be_changed_after_training():
    algorithm = Algorithm(weights="uniform", modifiers={"shrink": ShrinkHead()})
    expected = [(0.9075, 0.453875), (0.84198234375, 0.429624921875), (0.794492151855, 0.418832189814)]
    close(ls2.trajectory(algorithm, 3), expected)


def test_control_variates_come_from_the_path_and_not_from_what_is_sent():
    for state in ls2.states(ls2.federation(scaffold(shrink=ShrinkHead(0.5)), rounds=1)):
        assert state.clients[0]["control_variate"]["c"].tolist() == pytest.approx([-0.425, -0.875])
        assert state.w.tolist() == pytest.approx([0.9075, 0.5 - 0.5 * (0.5 - 0.44875)])


def test_a_part_that_clients_keep():
    made = ls2.federation(Algorithm(local="head"), rounds=2)
    expected = [(0.801, 0.675, 0.2225), (0.666419, 0.82258, 0.01444375)]
    for state, (body, head_a, head_b) in zip(ls2.states(made), expected, strict=True):
        assert state.w[0].item() == pytest.approx(body, abs=1e-9)
        assert state.w[1].item() == 0.5  # the server's copy of the head is never touched
        heads = [state.clients[k]["local"]["w"].item() for k in (0, 1)]
        assert heads == pytest.approx([head_a, head_b], abs=1e-9)

"""Worked numbers of FedGSNR: who takes how many steps, and where that leads with each base method."""

from __future__ import annotations

import itertools
import math

import ls2
import pytest
import small
import torch
from ls2 import close

from fedbench.algorithms.aggregate import Mean, Nova
from fedbench.algorithms.build import Algorithm
from fedbench.algorithms.control_variate import ControlVariate
from fedbench.algorithms.gsnr import Gsnr, allocate
from fedbench.algorithms.prox import Prox
from fedbench.runs import identity, run_id

FIRST = (0.350759057434, -0.3252163349)
FIRST_RATIOS, FIRST_SCORES = (0.0, 0.845037913994), (0.0, 4.69631579981)


def gsnr(weights: str = "samples", aggregate=None, variant: str = "redistribute", **extra) -> Algorithm:
    piece = Gsnr(steps=5, batch=2, samples="full", variant=variant)
    return Algorithm(weights=weights, aggregate=aggregate or Mean(), modifiers={"gsnr": piece, **extra})


def check(algorithm: Algorithm, models, ratios, steps, scores=None) -> None:
    """Round by round: the server's model, and n, E and r of both clients."""
    made = ls2.federation(algorithm, rounds=len(models))
    records = []
    for record, model in zip(made.rounds(), models, strict=True):
        close(made.state.w.tolist(), model)
        records.append(record)
    close([ls2.column(record, "gsnr_ratio") for record in records], ratios)
    assert [ls2.column(record, "steps") for record in records] == steps
    if scores is not None:
        close([ls2.column(record, "gsnr") for record in records], scores)


def test_with_fedavg():
    check(
        gsnr(),
        models=[FIRST, (0.398218595243, -0.364697325662), (0.423932665993, -0.392236088698)],
        ratios=[FIRST_RATIOS, (0.306293189044, 1.47927082163), (0.305234525415, 1.48548026987)],
        steps=[[0, 10], [2, 8], [2, 8]],
        scores=[FIRST_SCORES, (1.08297100216, 1.34019585658), (1.08176779232, 1.32283789172)],
    )


def test_with_fedprox():
    check(
        gsnr(prox=Prox(1.0)),
        models=[
            (0.525663878199, -0.0788355295003),
            (0.461333759585, -0.200820869113),
            (0.44216865727, -0.267774177347),
        ],
        ratios=[FIRST_RATIOS, (0.243018566937, 0.986818992512), (0.273770723685, 1.13804399515)],
        steps=[[0, 10], [2, 8], [2, 8]],
        scores=[FIRST_SCORES, (0.579481785871, 1.36855996362), (0.787561029269, 1.25894109967)],
    )


def test_with_fednova():
    check(
        gsnr(aggregate=Nova()),
        models=[FIRST, (0.565596239335, -0.0659348715473), (0.59377610472, -0.011293538956)],
        ratios=[FIRST_RATIOS, (0.306293189044, 1.47927082163), (0.234471882036, 0.960624688914)],
        steps=[[0, 10], [2, 8], [2, 8]],
        scores=[FIRST_SCORES, (1.08297100216, 1.34019585658), (0.530922777598, 1.41885738601)],
    )


def test_with_scaffold():
    check(
        gsnr("uniform", variate=ControlVariate()),
        models=[
            (0.788413867187, 0.322980859375),
            (0.737256421855, 0.370144572449),
            (0.702367407135, 0.424864919251),
        ],
        ratios=[(0.453392021229, 0.563512074323), (0.872018193864, 0.785036401992), (1.05111765597, 0.842662130811)],
        steps=[[4, 6], [5, 5], [6, 4]],
        scores=[(0.33536151166, 1.50016335186), (1.40273128375, 2.04234408059), (1.91311691062, 3.66118252211)],
    )


def test_with_scaffold_weighted_by_samples():
    check(
        gsnr(variate=ControlVariate()),
        models=[FIRST, (0.419816615745, -0.319885870516), (0.480582873267, -0.189820741161)],
        ratios=[FIRST_RATIOS, (0.365669492831, 1.56424400924), (0.566484119158, 1.38934967418)],
        steps=[[0, 10], [2, 8], [3, 7]],
        scores=[FIRST_SCORES, (1.43661686651, 1.88793619746), (6.39639833144, 4.97812800505)],
    )


def test_the_steps_of_the_algorithm_box():
    check(
        gsnr(variant="alg1"),
        models=[(0.55853125, 0.02065625), (0.433286916992, -0.176215455078)],
        ratios=[FIRST_RATIOS, (0.216521170367, 0.923166646975)],
        steps=[[0, 4], [1, 5]],
    )


@pytest.mark.parametrize(
    ("rounding", "expected"), [("largest", [15, 4, 0, 1]), ("round", [15, 5, 0, 1]), ("floor", [15, 4, 0, 1])]
)
def test_rounding(rounding, expected):
    assert allocate([1.0, 0.3, 0.0, 0.02], 5, rounding) == expected


RATIOS = [[1.0, 0.3, 0.0, 0.02], [0.7, 0.7, 0.7, 0.7], [0.0, 5.0, 0.0, 0.0], [0.31, 0.29, 1.7, 0.05]]


@pytest.mark.parametrize("ratios", RATIOS)
def test_interpolation_keeps_the_total_and_goes_from_one_allocation_to_the_other(ratios):
    steps = {share: allocate(ratios, 5, interpolation=share) for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)}
    assert all(sum(taken) == 20 for taken in steps.values())
    assert steps[0.0] == allocate(ratios, 5)
    assert steps[1.0] == [5, 5, 5, 5]
    assert all(min(taken) > 0 for share, taken in steps.items() if share > 0)
    spreads = [max(taken) - min(taken) for taken in steps.values()]
    assert all(later <= earlier for earlier, later in itertools.pairwise(spreads))


def test_interpolated_steps_by_hand():
    """Shares 1 : 0.3 : 0 : 0.02 of 20 are 15.15, 4.55, 0, 0.30; half of the way to 5: 10.08, 4.77, 2.5, 2.65."""
    assert allocate([1.0, 0.3, 0.0, 0.02], 5, interpolation=0.5) == [10, 5, 2, 3]


def test_interpolation_brings_back_a_client_without_steps():
    """Round 1: [0, 10] in proportion, [5, 5] when equal, so [2.5, 7.5] half of the way; the tie goes to the first."""
    piece = Gsnr(steps=5, batch=2, samples="full", interpolation=0.5)
    made = ls2.federation(Algorithm(modifiers={"gsnr": piece}), rounds=1)
    (record,) = made.rounds()
    assert ls2.column(record, "steps") == [3, 7]
    close(ls2.column(record, "gsnr_ratio"), FIRST_RATIOS)


def gradient_a(u: float, v: float) -> tuple[float, float]:
    """A: (1, 0) -> 1 and (1, 2) -> 3, the mean over both of (prediction - target) x."""
    first, second = u - 1, u + 2 * v - 3
    return (first + second) / 2, second


def gradient_b(u: float, v: float) -> tuple[float, float]:
    """B: (1, 1) -> -1, (0, 1) -> 1, (1, -1) -> 2, (2, 1) -> 0, each twice."""
    e = [u + v + 1, v - 1, u - v - 2, 2 * u + v]
    return (e[0] + e[2] + 2 * e[3]) / 4, (e[0] + e[1] - e[2] + e[3]) / 4


def scaled_path(gradient, w: tuple[float, float], factor: float, decay: float, steps: int = 5) -> tuple[float, float]:
    u, v = w
    for _ in range(steps):
        du, dv = gradient(u, v)
        u, v = u - 0.1 * factor * (du + decay * u), v - 0.1 * factor * (dv + decay * v)
    return u, v


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_scaled_gradient(decay):
    """Both clients take five steps along n_k times their gradient; the mean counts a client that stands still."""
    made = ls2.federation(gsnr(variant="scaled"), rounds=2, client={"weight_decay": decay})
    before = (1.0, 0.5)
    for record in made.rounds():
        ratios = ls2.column(record, "gsnr_ratio")
        assert ls2.column(record, "steps") == [5, 5]
        a, b = scaled_path(gradient_a, before, ratios[0], decay), scaled_path(gradient_b, before, ratios[1], decay)
        close(made.state.w.tolist(), [0.2 * a[i] + 0.8 * b[i] for i in range(2)], tolerance=1e-12)
        if record.round == 1 and decay == 0:
            close(ratios, FIRST_RATIOS)
            assert a == before
        before = made.state.w.tolist()
    assert math.dist(before, (1.0, 0.5)) > 0.1


def test_scaled_leaves_alone_what_the_client_keeps():
    """FedPer's head never leaves the client: n_k, a fact about the shared part, does not scale its gradient."""
    piece = Gsnr(steps=1, batch=2, samples="full", variant="scaled")
    made = ls2.federation(Algorithm(local="head", modifiers={"gsnr": piece}), rounds=1)
    (record,) = made.rounds()
    ratio = ls2.column(record, "gsnr_ratio")[1]
    heads = [made.state.receive(k)[0][1].item() for k in range(2)]
    close(heads, [0.5 + 0.1, 0.5 - 0.15])  # gradients of v: A -1, B 1.5
    body = 0.2 * (1 + 0.05 * ls2.column(record, "gsnr_ratio")[0]) + 0.8 * (1 - 0.15 * ratio)
    assert made.state.w[0].item() == pytest.approx(body, abs=1e-12)
    assert ratio != pytest.approx(1.0)
    assert torch.isfinite(made.state.w).all()


def test_a_run_without_interpolation_has_the_id_that_it_always_had():
    def number(*words: str) -> str:
        made = small.parts("algo=fedgsnr", *words)
        return run_id(identity(made.config, made.algorithm, "cpu", "fingerprint"))

    tree = identity(small.parts("algo=fedgsnr").config, small.parts("algo=fedgsnr").algorithm, "cpu", "fingerprint")
    assert "interpolation" not in tree["algo"]["modifiers"]["gsnr"]
    assert number() == number("algo.interpolation=0") != number("algo.interpolation=0.5")

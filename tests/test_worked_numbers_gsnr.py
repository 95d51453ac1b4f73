"""Worked numbers of FedGSNR: who takes how many steps, and where that leads with each base method."""

from __future__ import annotations

import ls2
import pytest
from ls2 import close

from fedbench.algorithms.aggregate import Mean, Nova
from fedbench.algorithms.build import Algorithm
from fedbench.algorithms.control_variate import ControlVariate
from fedbench.algorithms.gsnr import Gsnr, allocate
from fedbench.algorithms.prox import Prox

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

"""Worked numbers of FedGSNR: who takes how many steps, and where that leads with each base
method.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support import experiments, least_squares
from support.least_squares import close

from fedbench.algorithms.aggregate import Mean, Nova
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.fedgsnr import Gsnr, allocate
from fedbench.algorithms.fedprox import Prox
from fedbench.algorithms.scaffold import ControlVariate
from fedbench.runs.identity import identity, run_id

FIRST = (0.350759057434, -0.3252163349)
FIRST_RATIOS, FIRST_SCORES = (0.0, 0.845037913994), (0.0, 4.69631579981)


def gsnr(
    weights: str = "samples", aggregate=None, variant: str = "redistribute", **extra
) -> Algorithm:
    piece = Gsnr(steps=5, batch=2, samples="full", variant=variant)
    return Algorithm(
        weights=weights, aggregate=aggregate or Mean(), modifiers={"gsnr": piece, **extra}
    )


def check(algorithm: Algorithm, models, ratios, steps, scores=None) -> None:
    """Round by round: the server's model, and n, E and r of both clients."""
    made = least_squares.federation(algorithm, rounds=len(models))
    records = []
    for record, model in zip(made.rounds(), models, strict=True):
        close(made.state.w.tolist(), model)
        records.append(record)
    close([least_squares.column(record, "gsnr_ratio") for record in records], ratios)
    assert [least_squares.column(record, "steps") for record in records] == steps
    if scores is not None:
        close([least_squares.column(record, "gsnr") for record in records], scores)


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
        ratios=[
            (0.453392021229, 0.563512074323),
            (0.872018193864, 0.785036401992),
            (1.05111765597, 0.842662130811),
        ],
        steps=[[4, 6], [5, 5], [6, 4]],
        scores=[
            (0.33536151166, 1.50016335186),
            (1.40273128375, 2.04234408059),
            (1.91311691062, 3.66118252211),
        ],
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


def test_the_divisor_is_at_most_the_number_of_the_clients_examples():
    """B = min(B, n_k), here 2 and 8 of a batch of 20; numpy computes the ratios anew."""
    piece = Gsnr(steps=5, batch=20, samples="full")
    made = least_squares.federation(Algorithm(modifiers={"gsnr": piece}), rounds=2)
    sets = [(np.array(least_squares.X_A), np.array(least_squares.Y_A))]
    sets += [(np.array(least_squares.X_B), np.array(least_squares.Y_B))]
    model = made.state.w.numpy().copy()
    for record in made.rounds():
        gradients = [(x @ model - y)[:, None] * x for x, y in sets]
        means = np.stack([own.mean(axis=0) for own in gradients])
        variances = np.stack([own.var(axis=0) for own in gradients])
        shares = np.array([0.2, 0.8])
        mean = shares @ means
        variance = shares @ (variances + (means - mean) ** 2)
        expected = []
        for m, s, divisor in zip(means, variances, (2, 8), strict=True):
            inner = m @ mean + np.sqrt(s * variance).sum() / divisor
            expected.append(max(0.0, inner / (m @ m + s.sum() / divisor)))
        close(least_squares.column(record, "gsnr_ratio"), expected)
        model = made.state.w.numpy().copy()
    drawn = Gsnr(steps=5, batch=20)
    made = least_squares.federation(Algorithm(modifiers={"gsnr": drawn}), rounds=1)
    assert least_squares.column(next(iter(made.rounds())), "gsnr_examples") == [2, 8]


@pytest.mark.parametrize(
    ("rounding", "expected"),
    [("largest", [15, 4, 0, 1]), ("round", [15, 5, 0, 1]), ("floor", [15, 4, 0, 1])],
)
def test_rounding(rounding, expected):
    assert allocate([1.0, 0.3, 0.0, 0.02], 5, rounding) == expected


RATIOS = [
    [1.0, 0.3, 0.0, 0.02],
    [0.7, 0.7, 0.7, 0.7],
    [0.0, 5.0, 0.0, 0.0],
    [0.31, 0.29, 1.7, 0.05],
]


@pytest.mark.parametrize("ratios", RATIOS)
def test_interpolation_keeps_the_total_and_goes_from_one_allocation_to_the_other(ratios):
    steps = {
        share: allocate(ratios, 5, interpolation=share)
        for share in (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    }
    assert all(sum(taken) == 20 for taken in steps.values())
    assert steps[0.0] == allocate(ratios, 5)
    assert steps[1.0] == [5, 5, 5, 5]
    assert all(min(taken) > 0 for share, taken in steps.items() if share > 0)
    spreads = [max(taken) - min(taken) for taken in steps.values()]
    assert all(later <= earlier for earlier, later in itertools.pairwise(spreads))


def test_interpolated_steps_by_hand():
    """Shares 1 : 0.3 : 0 : 0.02 of 20 are 15.15, 4.55, 0, 0.30; half of the way to 5: 10.08, 4.77,
    2.5, 2.65.
    """
    assert allocate([1.0, 0.3, 0.0, 0.02], 5, interpolation=0.5) == [10, 5, 2, 3]


def test_interpolation_brings_back_a_client_without_steps():
    """Round 1: [0, 10] in proportion, [5, 5] when equal, so [2.5, 7.5] half of the way; the tie
    goes to the first.
    """
    piece = Gsnr(steps=5, batch=2, samples="full", interpolation=0.5)
    made = least_squares.federation(Algorithm(modifiers={"gsnr": piece}), rounds=1)
    (record,) = made.rounds()
    assert least_squares.column(record, "steps") == [3, 7]
    close(least_squares.column(record, "gsnr_ratio"), FIRST_RATIOS)


def gradient_a(u: float, v: float) -> tuple[float, float]:
    """A: (1, 0) -> 1 and (1, 2) -> 3, the mean over both of (prediction - target) x."""
    first, second = u - 1, u + 2 * v - 3
    return (first + second) / 2, second


def gradient_b(u: float, v: float) -> tuple[float, float]:
    """B: (1, 1) -> -1, (0, 1) -> 1, (1, -1) -> 2, (2, 1) -> 0, each twice."""
    e = [u + v + 1, v - 1, u - v - 2, 2 * u + v]
    return (e[0] + e[2] + 2 * e[3]) / 4, (e[0] + e[1] - e[2] + e[3]) / 4


def multiple_of_one_step(
    gradient, w: tuple[float, float], factor: float, decay: float = 0.0
) -> list[float]:
    """Where a client is that goes `factor` times the rate, 0.1, against its gradient at w."""
    return [w[i] - 0.1 * factor * (part + decay * w[i]) for i, part in enumerate(gradient(*w))]


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_the_first_gradient(decay):
    """Each goes E n_k times the rate along its gradient at w; who has n_k = 0 is left out, as with
    other variants.
    """
    made = least_squares.federation(gsnr(variant="first"), rounds=3, client={"weight_decay": decay})
    before, left_out = (1.0, 0.5), []
    for record in made.rounds():
        ratios, weights = (
            least_squares.column(record, "gsnr_ratio"),
            least_squares.column(record, "weight"),
        )
        assert least_squares.column(record, "steps") == [int(ratio > 0) for ratio in ratios]
        ends = [
            multiple_of_one_step(g, before, 5 * n, decay)
            for g, n in zip((gradient_a, gradient_b), ratios, strict=True)
        ]
        close(
            made.state.w.tolist(),
            [weights[0] * ends[0][i] + weights[1] * ends[1][i] for i in range(2)],
            1e-12,
        )
        before = made.state.w.tolist()
        left_out.append(ratios[0] == 0)
    assert left_out == ([True, False, False] if decay == 0 else [False, False, False])


def test_the_first_gradient_by_hand():
    """Round 1: A is left out, and B, whose gradient at (1, 0.5) is (1.5, 1.5), goes 5 *
    0.845037913994 * 0.1 along.
    """
    made = least_squares.federation(gsnr(variant="first"), rounds=1)
    (record,) = made.rounds()
    close(made.state.w.tolist(), (0.366221564504, -0.133778435495), tolerance=1e-11)
    close(least_squares.column(record, "gsnr_ratio"), FIRST_RATIOS)
    # Ten gradients for the statistic, and B's eight examples once; two numbers of eight bytes are a
    # model.
    books = [record.numbers[name] for name in ("gradients", "bytes_down", "bytes_up")]
    assert books == [10 + 8, 8 * 2 * (2 + 1), 8 * (2 * 2 * 2 + 2)]


def test_the_first_gradient_is_that_of_the_first_batch():
    """B's first batch is its second example, (0, 1) -> 1, alone: gradient (0, -0.5) at (1, 0.5)."""
    batches = (((0,), (1,)), ((1,), (0,), (2,)))
    made = least_squares.federation(
        gsnr(variant="first"), rounds=1, client={"batch_size": 1}, batches=batches
    )
    (record,) = made.rounds()
    ratios, weights = (
        least_squares.column(record, "gsnr_ratio"),
        least_squares.column(record, "weight"),
    )
    moved = (
        weights[1] * 0.1 * 5 * ratios[1] * 0.5 + weights[0] * 0.0
    )  # A's (1, 0) -> 1 has no gradient
    close(made.state.w.tolist(), (1.0, 0.5 + moved), tolerance=1e-12)
    assert ratios[1] > 0


def test_control_variates_are_those_of_the_one_step():
    """c_k is the gradient at w, not E n_k times it."""
    made = least_squares.federation(gsnr(variant="first", variate=ControlVariate()), rounds=1)
    (record,) = made.rounds()
    assert least_squares.column(record, "steps") == [0, 1]
    close(made.state.receive(1)[1]["variate"].client["c"].tolist(), (1.5, 1.5))


def test_one_step_with_a_ratio_of_one_is_fedavg(monkeypatch):
    monkeypatch.setattr(
        Gsnr, "_ratios", lambda self, federation, index, cohort, *more: ([1.0] * len(cohort),) * 2
    )
    words = ("algo=fedgsnr", "algo.variant=first", "rounds=2", *experiments.PLAIN)
    plain = experiments.final_digest(
        experiments.federation("client.steps=1", "rounds=2", *experiments.PLAIN)
    )
    assert experiments.final_digest(experiments.federation(*words, "algo.steps=1")) == plain
    assert experiments.final_digest(experiments.federation(*words, "algo.steps=2")) != plain


def test_first_leaves_alone_what_the_client_keeps():
    """FedPer's head never leaves the client, which takes one step: E n_k multiplies what is
    sent.
    """
    piece = Gsnr(steps=3, batch=2, samples="full", variant="first")
    made = least_squares.federation(Algorithm(local="head", modifiers={"gsnr": piece}), rounds=1)
    (record,) = made.rounds()
    ratios, weights = (
        least_squares.column(record, "gsnr_ratio"),
        least_squares.column(record, "weight"),
    )
    heads = [made.state.receive(k)[0][1].item() for k in range(2)]
    steps = [0.1, -0.15]  # gradients of v: A -1, B 1.5; of u: A -0.5, B 1.5
    close(heads, [0.5 + step * (ratio > 0) for step, ratio in zip(steps, ratios, strict=True)])
    body = 1 + weights[0] * 3 * 0.05 * ratios[0] - weights[1] * 3 * 0.15 * ratios[1]
    assert made.state.w[0].item() == pytest.approx(body, abs=1e-12)
    assert ratios[1] > 0


def test_interpolation_is_part_of_a_runs_identity():
    def number(*words: str) -> str:
        made = experiments.parts("algo=fedgsnr", *words)
        return run_id(identity(made.config, made.algorithm, "cpu", "fingerprint"))

    assert number() == number("algo.interpolation=0") != number("algo.interpolation=0.5")

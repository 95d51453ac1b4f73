"""Verdicts on measured against published numbers: by hand, and their symmetries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import Tolerance, as_measure
from fedbench.report.judgement.verdict import compare, tolerance_for
from fedbench.report.numbers.statistics import censored, speed_up
from fedbench.report.output.model import VERDICTS

ACCURACY = as_measure("Best", "best_accuracy")
P_VALUE = as_measure("p", {"name": "mcnemar", "against": {"method": "FedAvg"}})
POINTS = tolerance_for(ACCURACY)
ROUNDS = tolerance_for(as_measure("Rounds", {"name": "rounds_to", "target": 0.99}))


def printed(text: str, value: float | None, std: float | None = None, flag: str = "") -> Published:
    return Published({"method": "FedAvg"}, "Accuracy", text, value, std, flag)


# Tolerances


@pytest.mark.parametrize(
    ("measure", "std", "expected"),
    [
        ("best_accuracy", None, Tolerance(1.0, 3.0, False)),
        ("final_accuracy", 0.2, Tolerance(1.0, 3.0, False)),
        ("area", 0.9, Tolerance(1.8, 3.0, False)),
        ({"name": "mean_accuracy_last", "rounds": 10}, 2.5, Tolerance(5.0, 5.0, False)),
        (
            {"name": "metric", "column": "local_before_mean", "at": "final", "percent": True},
            None,
            POINTS,
        ),
        ({"name": "metric", "column": "test_loss", "at": "final"}, None, Tolerance(0.1, 0.5, True)),
        ({"name": "rounds_to", "target": 0.9}, None, Tolerance(0.25, 1.0, True)),
        ({"name": "bytes_to", "target": 0.9}, 3.0, Tolerance(0.25, 1.0, True)),
        ({"name": "gradients_to", "target": 0.9}, None, Tolerance(0.25, 1.0, True)),
        (
            {"name": "speed_up", "of": "Rounds", "baseline": {"method": "FedAvg"}},
            None,
            Tolerance(0.25, 1.0, True),
        ),
        ("seconds", None, Tolerance(0.1, 0.5, True)),
        (
            {"name": "mcnemar", "against": {"method": "FedAvg"}},
            None,
            Tolerance(0.0, 0.0, False, 0.05),
        ),
        (
            {"name": "rounds_to", "target": 0.9, "tolerance": {"match": 5, "near": 20}},
            None,
            Tolerance(5.0, 20.0, False),
        ),
        ({"name": "best_accuracy", "tolerance": {"match": 2}}, 9.0, Tolerance(2.0, 2.0, False)),
    ],
)
def test_default_and_own_tolerances(measure, std, expected):
    assert tolerance_for(as_measure("M", measure), std) == expected


# Numbers against numbers


@pytest.mark.parametrize(
    ("value", "published", "expected"),
    [
        (99.35, printed("99.00 (±0.03)", 99.0, 0.03), ("match", "+0.35")),
        (98.0, printed("99.00", 99.0), ("match", "-1.00")),
        (64.4, printed("63.4", 63.4), ("match", "+1.0")),  # 1.000000000000007 by float
        (97.8, printed("99.0", 99.0), ("near", "-1.2")),
        (96.0, printed("99", 99.0), ("near", "-3")),
        (95.99, printed("99.00", 99.0), ("miss", "-3.01")),
        (98.999, printed("99.00", 99.0), ("match", "+0.00")),  # not -0.00
    ],
)
def test_accuracies_by_hand(value, published, expected):
    assert compare(value, published, POINTS) == expected


def test_a_large_published_deviation_widens_the_match():
    published = printed("60.0 (±2.0)", 60.0, 2.0)
    assert compare(64.0, published, tolerance_for(ACCURACY, published.std)) == (
        "match",
        "+4.0",
    )
    assert compare(64.1, published, tolerance_for(ACCURACY, published.std)) == (
        "miss",
        "+4.1",
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (80.0, ("match", "x0.8")),
        (125.0, ("match", "x1.25")),
        (79.0, ("near", "x0.79")),
        (200.0, ("near", "x2")),
        (50.0, ("near", "x0.5")),
        (201.0, ("miss", "x2.01")),
        (49.0, ("miss", "x0.49")),
        (1234.0, ("miss", "x12.3")),
        (0.0, ("miss", "x0")),
    ],
)
def test_rounds_are_compared_by_factors(value, expected):
    assert compare(value, printed("100 (1.0x)", 100.0), ROUNDS) == expected


def test_the_printed_decimals_are_those_of_the_value_not_of_its_neighbour():
    own = Tolerance(1.0, 3.0, relative=False)
    assert compare(25.0, printed("23 (4.31x)", 23.0), own) == ("near", "+2")
    assert compare(4.0, printed("23 (4.31x)", 4.31), own) == ("match", "-0.31")
    assert compare(1200.0, printed("1,201.5", 1201.5), own) == ("near", "-1.5")


def test_a_published_zero_has_no_factor():
    assert compare(0.0, printed("0.0", 0.0), ROUNDS) == ("match", "+0.0")
    assert compare(0.5, printed("0.0", 0.0), ROUNDS) == ("miss", "+0.5")


@pytest.mark.parametrize(
    ("value", "published", "expected"),
    [
        (0.049, 0.0001, ("match", "same side of 0.05")),
        (0.7, 0.05, ("match", "same side of 0.05")),
        (0.05, 0.049, ("miss", "other side of 0.05")),
        (0.01, 0.2, ("miss", "other side of 0.05")),
    ],
)
def test_p_values_only_by_the_side_of_the_threshold(value, published, expected):
    assert compare(value, printed(str(published), published), tolerance_for(P_VALUE)) == expected


# Stars, dashes, bounds

STAR, DASH, OVER = (
    printed("*", None, flag="star"),
    printed("-", None, flag="none"),
    printed(">1K", 1000.0, flag="over"),
)
NUMBER = printed("80 (1.2x)", 80.0)


@pytest.mark.parametrize(
    ("published", "measured", "expected"),
    [
        (STAR, {"value": None, "failed": True}, "match"),
        (STAR, {"value": 100.0, "sign": ">", "failed": True}, "match"),
        (STAR, {"value": 60.0}, "miss"),
        (
            STAR,
            {"value": 2.1, "sign": ">"},
            "miss",
        ),  # a speed-up: the baseline did not get there, this one did
        (STAR, {"value": None}, "unmeasured"),
        (DASH, {"value": 60.0}, "unpublished"),
        (None, {"value": None}, "unpublished"),
        (printed("see text", None), {"value": 60.0}, "unpublished"),
        (NUMBER, {"value": None}, "unmeasured"),
        (NUMBER, {"value": None, "failed": True}, "miss"),
        (NUMBER, {"value": 80.0, "failed": True}, "miss"),  # of the seeds that did not diverge
        (NUMBER, {"value": 101.0, "sign": ">", "failed": True}, "miss"),
        (
            NUMBER,
            {"value": 100.0, "sign": ">", "failed": True},
            "unmeasured",
        ),  # a factor of 1.25 would match
        (
            NUMBER,
            {"value": 20.0, "sign": ">", "failed": True},
            "unmeasured",
        ),  # only 20 rounds were run
        (NUMBER, {"value": 63.0, "sign": "<", "failed": True}, "miss"),
        (NUMBER, {"value": 70.0, "sign": "<", "failed": True}, "unmeasured"),
        (NUMBER, {"value": 90.0, "sign": "<", "failed": True}, "unmeasured"),
        (OVER, {"value": 1001.0}, "match"),
        (OVER, {"value": 1000.0, "sign": ">", "failed": True}, "match"),
        (OVER, {"value": 100.0, "sign": ">", "failed": True}, "unmeasured"),
        (OVER, {"value": 1000.0}, "near"),
        (OVER, {"value": 500.0}, "near"),
        (OVER, {"value": 400.0}, "miss"),
        (OVER, {"value": 400.0, "sign": "<"}, "miss"),
        (OVER, {"value": 4000.0, "sign": "<"}, "unmeasured"),
        (OVER, {"value": None, "failed": True}, "miss"),
    ],
)
def test_what_is_not_two_numbers(published, measured, expected):
    verdict, _ = compare(published=published, tolerance=ROUNDS, **measured)
    assert verdict == expected


def test_the_difference_of_a_bound_is_a_bound_and_of_a_star_nothing():
    assert compare(100.0, NUMBER, ROUNDS, sign=">", failed=True)[1] == "> x1.25"
    assert compare(None, NUMBER, ROUNDS, failed=True)[1] == ""
    assert compare(60.0, STAR, ROUNDS)[1] == ""
    assert compare(1500.0, OVER, ROUNDS)[1] == "x1.5"


def test_a_censored_measurement_and_its_speed_up_fit():
    never, own = censored([None, None], [100, 100]), censored([40, 60], [100, 100])
    assert compare(never.value, NUMBER, ROUNDS, never.sign, never.failed) == (
        "unmeasured",
        "> x1.25",
    )
    ratio = speed_up(never, own)
    assert compare(ratio.value, printed("80 (1.2x)", 1.2), ROUNDS, ratio.sign, ratio.failed) == (
        "miss",
        "> x1.67",
    )
    both = speed_up(never, never)
    assert compare(both.value, STAR, ROUNDS, both.sign, both.failed)[0] == "match"


@given(st.floats(0.01, 1000), st.floats(0.01, 1000), st.booleans())
def test_measured_and_published_may_change_places(one, two, relative):
    tolerance = ROUNDS if relative else POINTS
    verdict, _ = compare(one, printed(str(two), two), tolerance)
    assert compare(two, printed(str(one), one), tolerance)[0] == verdict
    assert compare(one, printed(str(one), one), tolerance)[0] == "match"


@given(
    st.none() | st.floats(0, 2000),
    st.sampled_from(["", "<", ">"]),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3, 4]),
)
def test_every_case_has_a_verdict(value, sign, failed, which):
    published = [STAR, DASH, OVER, NUMBER, None][which]
    for tolerance in (POINTS, ROUNDS, tolerance_for(P_VALUE)):
        assert compare(value, published, tolerance, sign, failed)[0] in VERDICTS


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_farther_is_never_better(published, near, far):
    rank = VERDICTS.index
    near, far = sorted([near, far], key=lambda value: abs(value - published))
    number = printed(str(published), published)
    assert rank(compare(near, number, POINTS)[0]) <= rank(compare(far, number, POINTS)[0])


# Claims

"""Statistics over seeds: by hand, and the properties that censoring must keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbench.report.numbers.statistics import (
    SpeedUp,
    accuracy_at,
    censored,
    equal_budget,
    first_reaching,
    plain,
    speed_up,
    summarise,
)

percents = st.floats(0, 100, allow_subnormal=False)
rounds = st.integers(1, 100)
LIMIT = 100.0
maybe_rounds = st.lists(st.none() | rounds, min_size=1, max_size=7)


def to_target(values, **more):
    return censored(values, [LIMIT] * len(values), **more)


# Summaries


def test_a_summary_by_hand():
    found = summarise([88.0, 90.0, 92.0], wanted=3)
    assert (found.mean, found.std, found.low, found.high) == (90.0, 2.0, 88.0, 92.0)
    assert (found.count, found.wanted, found.diverged) == (3, 3, 0)


def test_one_seed_has_no_spread_and_no_seed_has_no_mean():
    one = summarise([90.0], wanted=3, diverged=1)
    assert (one.mean, one.std, one.count, one.wanted, one.diverged) == (90.0, None, 1, 3, 1)
    none = summarise([], wanted=2, diverged=2)
    assert (none.mean, none.std, none.low, none.high, none.count, none.diverged) == (
        None,
        None,
        None,
        None,
        0,
        2,
    )


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf])
def test_what_is_not_a_number_does_not_count(nothing):
    found = summarise([80.0, nothing], wanted=2)
    assert (found.mean, found.count, found.wanted) == (80.0, 1, 2)


def test_more_values_than_seeds_is_an_error():
    with pytest.raises(ValueError, match="2 values and 1 diverged seeds, but 2"):
        summarise([1.0, 2.0], wanted=2, diverged=1)


@given(st.lists(percents, min_size=1, max_size=6), st.randoms())
def test_a_summary_does_not_depend_on_the_order_of_seeds(values, random):
    shuffled = random.sample(values, len(values))
    found = summarise(values, wanted=len(values))
    assert summarise(shuffled, wanted=len(values)) == found
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    if len(values) > 1:
        assert found.std == pytest.approx(np.std(values, ddof=1), abs=1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (23.0, "23"),
        (102.5, "102.5"),
        (0.0, "0"),
        (1234567.8, "1234568"),
        (0.01234567, "0.01235"),
        (-1.5, "-1.5"),
    ],
)
def test_plain_numbers(value, text):
    assert plain(value) == text


# Costs to a target


def test_the_first_round_that_reaches_a_target():
    accuracies = [0.5, 0.7, 0.9, 0.8, 0.95]
    assert first_reaching([2, 4, 6, 8, 10], accuracies, 0.9) == 6
    assert (
        first_reaching([1e6, 2e6, 3e6, 4e6, 5e6], accuracies, 0.85, window=2) == 3e6 + 1e6
    )  # (0.9 + 0.8) / 2
    assert first_reaching([2, 4, 6, 8, 10], accuracies, 0.96) is None
    assert first_reaching([1, 2], [0.9, 0.9], 0.2, window=3) is None  # no mean over three yet
    assert first_reaching([], [], 0.5) is None


def test_float_noise_does_not_hide_a_reached_target():
    assert 0.1 + 0.7 < 0.8
    assert first_reaching([1], [0.1 + 0.7], 0.8) == 1
    assert first_reaching([1], [0.8 - 1e-6], 0.8) is None


def test_an_accuracy_that_is_no_number_reaches_nothing():
    assert first_reaching([1, 2, 3], [math.nan, 0.9, 0.9], 0.9) == 2
    assert first_reaching([1, 2, 3], [math.nan, 0.9, 0.9], 0.9, window=2) == 3


def test_series_of_different_lengths_and_empty_windows_are_errors():
    with pytest.raises(ValueError, match="shorter"):
        first_reaching([1, 2], [0.5], 0.9)
    with pytest.raises(ValueError, match="window=0"):
        first_reaching([1], [0.5], 0.9, window=0)


@given(st.lists(percents, min_size=1, max_size=10), percents, percents)
def test_a_higher_target_is_never_reached_earlier(accuracies, one, two):
    count = range(1, len(accuracies) + 1)
    low, high = (
        first_reaching(count, accuracies, target) or math.inf for target in sorted([one, two])
    )
    assert low <= high


def test_accuracy_at_a_budget_by_hand():
    costs, accuracies = [10, 20, 30], [0.5, 0.8, 0.7]
    assert accuracy_at(costs, accuracies, 9) is None
    assert accuracy_at(costs, accuracies, 10) == 0.5
    assert accuracy_at(costs, accuracies, 1000) == 0.8
    assert accuracy_at([0.1 + 0.2], [0.6], 0.3) == 0.6
    assert accuracy_at([1, 2], [math.nan, 0.4], 2) == 0.4


def test_the_equal_budget_is_the_least_final_cost():
    assert equal_budget([[1, 5, 9], [2, 7], [3, 30]]) == 7
    assert equal_budget([]) is None
    assert equal_budget([[1, 2], []]) is None


# Censoring


@pytest.mark.parametrize(
    ("values", "text", "extent"),
    [
        ([30, 20, 45], "30", "20 to 45"),
        ([20, 45, None], "45", "20 to > 100"),
        ([20, None, None], "> 100", "20 to > 100"),
        ([20, 31], "25.5", "20 to 31"),
        ([20, None], "> 60", "20 to > 100"),  # halfway between 20 and something above 100
        ([7], "7", "7 to 7"),
        ([None], "> 100", ""),
        ([], "-", ""),
    ],
)
def test_censored_medians_by_hand(values, text, extent):
    found = to_target(values)
    assert (found.text, found.range) == (text, extent)
    assert found.failed == text.startswith(">")
    assert (found.reached, found.count) == (sum(value is not None for value in values), len(values))


def test_diverged_seeds_count_as_never_reached():
    found = censored([20, 5, None], [100, 12, 3], diverged=[False, True, True], wanted=4)
    assert (found.text, found.reached, found.count, found.wanted, found.diverged) == (
        "> 100",
        1,
        3,
        4,
        2,
    )
    lost = censored([None, 4], [3, 9], diverged=[True, True])
    assert (lost.text, lost.failed, lost.value, lost.limit) == ("*", True, None, None)


def test_more_seeds_than_asked_for_and_unequal_lists_are_errors():
    with pytest.raises(ValueError, match="2 seeds, but 1"):
        to_target([1, 2], wanted=1)
    with pytest.raises(ValueError, match="shorter"):
        censored([1, 2], [100])


def ordered(found) -> float:
    return math.inf if found.failed else found.value


@given(maybe_rounds, st.data())
def test_a_seed_that_is_not_reached_never_lowers_the_median(values, data):
    worse = list(values)
    worse[data.draw(st.integers(0, len(values) - 1))] = None
    before, after = to_target(values), to_target(worse)
    assert ordered(after) >= ordered(before)
    assert after.value >= before.value  # the bounds, too
    index = data.draw(st.integers(0, len(values) - 1))
    diverged = to_target(values, diverged=[place == index for place in range(len(values))])
    assert ordered(diverged) >= ordered(before)


@given(maybe_rounds, st.randoms())
def test_a_censored_median_does_not_depend_on_the_order_of_seeds(values, random):
    assert to_target(random.sample(values, len(values))) == to_target(values)


@given(st.lists(rounds, min_size=1, max_size=7))
def test_without_censoring_it_is_the_ordinary_median(values):
    assert to_target(values).value == np.median(values)


# Speed-ups


@pytest.mark.parametrize(
    ("baseline", "own", "text"),
    [
        ([100], [23], "4.3x"),
        ([23], [100], "0.23x"),
        ([50], [50], "1.0x"),
        ([None], [46], "> 2.1x"),  # 2.17: rounded down, so that it is true
        ([43], [None], "< 0.43x"),
        ([99.9], [None], "< 1.00x"),
        ([None], [None], "-"),
        ([], [20], "-"),
        ([20], [], "-"),
        ([20], [0], "-"),
    ],
)
def test_speed_ups_by_hand(baseline, own, text):
    found = speed_up(to_target(baseline), to_target(own))
    assert found.text == text
    assert found.failed == (own == [None])


def test_nothing_is_said_of_a_speed_up_when_all_seeds_of_a_side_diverged():
    lost = censored([None], [4], diverged=[True])
    own, baseline = speed_up(to_target([20]), lost), speed_up(lost, to_target([20]))
    assert (own.text, own.failed) == ("-", True)
    assert (baseline.text, baseline.failed) == ("-", False)


@given(maybe_rounds, maybe_rounds)
def test_speed_ups_are_inverse(one, two):
    there, back = speed_up(to_target(one), to_target(two)), speed_up(to_target(two), to_target(one))
    assert back.sign == {"": "", "<": ">", ">": "<"}[there.sign]
    if there.value is None:
        assert back.value is None
    else:
        assert there.value * back.value == pytest.approx(1)


@given(st.floats(0.02, 50), st.sampled_from("<>"))
def test_a_bound_as_text_is_no_stronger_than_the_bound(ratio, sign):
    shown = float(SpeedUp(ratio, sign, False).text.strip("<> x"))
    assert shown <= ratio + 1e-6 if sign == ">" else shown >= ratio - 1e-6

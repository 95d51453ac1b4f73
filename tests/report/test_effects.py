"""Paired differences over seeds and what they decide, against numbers that scipy computes in
another way; each test fails when a sign, the pairing or a correction is wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedbench.report import effects
from fedbench.report.effects import (
    CONTRADICTED,
    SUPPORTED,
    UNDECIDED,
    Effect,
    Judgement,
    Range,
    Score,
    effect_of,
    judge_panels,
    judge_together,
    probability_of_improvement,
)

BETTER = Range()
NUMBERS = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 100)).map(
        lambda pair: tuple(round(x, 3) for x in pair)
    ),
    min_size=3,
    max_size=8,
)


def scores(*values: float | None) -> list[Score]:
    return [Score(value) for value in values]


def judged(own: list[Score], other: list[Score], claimed: Range = BETTER) -> Judgement:
    (found,) = judge_panels([effect_of(own, other)], claimed)
    return found


def test_by_hand():
    """Differences 1, 2, 3: mean 2, standard error 1/sqrt(3), t = 3.46 with 2 degrees of freedom."""
    found = judged(scores(11, 22, 33), scores(10, 20, 30))
    assert found.mean == pytest.approx(2)
    assert (found.low, found.high) == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert found.p == pytest.approx(0.0741799, abs=1e-6)
    assert found.outcome == UNDECIDED
    assert found.reason == "the interval holds 0"


@settings(deadline=None, max_examples=60)
@given(NUMBERS)
def test_a_panel_is_scipys_paired_t_test(pairs):
    own, other = (np.array(side) for side in zip(*pairs, strict=True))
    if np.ptp(own - other) < 1e-6:
        return
    found = judged(scores(*own), scores(*other))
    test = stats.ttest_rel(own, other)
    interval = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert found.p == pytest.approx(test.pvalue, abs=1e-9)
    expected = UNDECIDED
    if test.pvalue < 0.05:
        expected = SUPPORTED if test.statistic > 0 else CONTRADICTED
    assert found.outcome == expected
    turned = judged(scores(*other), scores(*own))
    opposite = {SUPPORTED: CONTRADICTED, CONTRADICTED: SUPPORTED, UNDECIDED: UNDECIDED}
    assert turned.outcome == opposite[expected]


def test_seeds_are_paired():
    """Seeds that differ by ten points hide a steady difference of one from an unpaired test."""
    own, other = [50.0, 60.1, 70.2, 80.0], [49.1, 59.0, 69.1, 79.2]
    assert stats.ttest_ind(own, other).pvalue > 0.9
    assert judged(scores(*own), scores(*other)).outcome == SUPPORTED
    assert judged(scores(*own), scores(*reversed(other))).outcome == UNDECIDED


def test_fewer_than_three_seeds_decide_nothing():
    found = judged(scores(50, 50.1), scores(10, 10.2))
    assert (found.outcome, found.reason) == (UNDECIDED, "2 seeds to compare, at least 3 are needed")
    lacking = judged(scores(50, 50.1, None), scores(10, 10.2, 10.1))
    assert lacking.outcome == UNDECIDED
    assert judged(scores(None), scores(None)).reason == "not run yet"


def test_holm_over_panels():
    """By itself the second panel is decided (p 0.03); as one of two whose other has p 0.04 not."""
    three = Effect((1.0, 1.3, 0.8, 1.1))  # p 0.002
    weak = Effect((1.0, 2.0, 0.5, 2.4))  # p 0.04
    alone = judge_panels([weak], BETTER)[0]
    assert alone.outcome == SUPPORTED
    assert alone.p == pytest.approx(stats.ttest_1samp(weak.differences, 0).pvalue)
    both = judge_panels([weak, weak], BETTER)
    assert [one.outcome for one in both] == [UNDECIDED] * 2
    assert both[0].p == pytest.approx(2 * alone.p)
    assert both[0].reason == "decided by itself, but not after Holm's correction"
    stepped = judge_panels([three, weak], BETTER)  # the larger p is multiplied by 1
    assert [one.outcome for one in stepped] == [SUPPORTED] * 2
    assert stepped[1].p == pytest.approx(alone.p)


@pytest.mark.parametrize(
    ("differences", "margin", "outcome"),
    [
        ((0.1, -0.2, 0.05, 0.1), 1.0, SUPPORTED),
        ((0.1, -0.2, 0.05, 0.1), 0.1, UNDECIDED),
        ((2.0, 2.2, 1.9, 2.1), 1.0, CONTRADICTED),
        ((-2.0, -2.2, -1.9, -2.1), 1.0, CONTRADICTED),
        ((3.0, -3.0, 2.0, -2.0), 1.0, UNDECIDED),
        ((0.0, 0.0, 0.0), 1.0, SUPPORTED),
    ],
)
def test_equivalence_by_two_one_sided_tests(differences, margin, outcome):
    (found,) = judge_panels([Effect(differences)], Range(-margin, margin, closed=True))
    assert found.outcome == outcome
    if outcome == SUPPORTED and any(differences):
        low = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        high = stats.ttest_1samp(differences, margin, alternative="less").pvalue
        assert found.p == pytest.approx(max(low, high))


def test_no_difference_at_all_is_as_good_but_not_better():
    nothing = scores(1, 2, 3)
    assert judged(nothing, nothing).outcome == UNDECIDED
    assert judged(nothing, nothing, Range(closed=True)).outcome == SUPPORTED


def test_equal_differences_have_no_spread_to_judge_by():
    assert judged(scores(3, 4, 5), scores(2, 3, 4)).outcome == UNDECIDED


def test_what_diverged_loses_but_not_by_luck_of_one_seed():
    lost = -math.inf
    good = scores(50, 51, 52)
    assert judged(good, scores(lost, lost, lost)).outcome == SUPPORTED
    assert judged(scores(lost, lost, lost), good).outcome == CONTRADICTED
    assert judged(scores(lost, lost, lost), scores(lost, lost, lost)).outcome == UNDECIDED
    one = judged(scores(60, 61.1, 62.2, lost), scores(50, 51, 52, 53))
    assert (one.outcome, one.reason) == (UNDECIDED, "it diverged in 1 seed")
    # The other's divergence takes nothing away from three seeds that decide.
    assert judged(scores(60, 61.1, 62.2, 63), scores(50, 51, 52, lost)).outcome == SUPPORTED


def test_an_unreached_target_is_a_bound():
    """Rounds as minus rounds: 100 rounds in vain are at best -100."""
    own, vain = scores(-20, -21, -22.5), [Score(-100.0, at_best=True)] * 3
    assert judged(own, vain).outcome == SUPPORTED
    assert judged(vain, own).outcome == CONTRADICTED
    slower = scores(-120, -121, -122.5)  # the other may need even more than 120
    assert judged(slower, vain).outcome == UNDECIDED
    assert judged(vain, vain).reason.endswith("at least 3 are needed")
    four = judged([*own, vain[0]], [*scores(-30, -30.5, -33), vain[0]])
    assert (four.outcome, four.reason) == (UNDECIDED, "in 1 seed neither side got there")


def test_together_is_decided_where_no_panel_is():
    panels = [Effect((1.0, 2.2, 0.4)), Effect((0.8, 2.5, 0.9)), Effect((2.0, 0.3, 1.5))]
    assert {one.outcome for one in judge_panels(panels, BETTER)} == {UNDECIDED}
    found = judge_together(panels, BETTER)
    assert found.outcome == SUPPORTED
    assert found.mean == pytest.approx(np.mean([np.mean(one.differences) for one in panels]))
    assert found.low > 0
    turned = [Effect(tuple(-one for one in panel.differences)) for panel in panels]
    opposite = judge_together(turned, BETTER)
    assert opposite.outcome == CONTRADICTED
    assert (opposite.low, opposite.high) == pytest.approx((-found.high, -found.low), abs=0.05)


def test_together_p_is_welchs():
    """Two panels with equal weights are Welch's test of the one against minus the other."""
    one, two = (1.0, 2.2, 0.4, 1.7), (0.8, 2.5, 0.9)
    found = judge_together([Effect(one), Effect(two)], BETTER)
    welch = stats.ttest_ind(one, [-value for value in two], equal_var=False)
    assert found.p == pytest.approx(welch.pvalue)
    assert found.high - found.low >= np.diff(welch.confidence_interval(0.95))[0] / 2 - 1e-9


def test_panels_weigh_the_same_and_strata_stay_apart():
    """Large differences between panels are no spread over seeds."""
    panels = [Effect((10.0, 10.1, 9.9)), Effect((1.0, 1.1, 0.9, 1.0, 1.0, 1.0))]
    found = judge_together(panels, BETTER)
    assert found.mean == pytest.approx(5.5)
    assert found.high - found.low < 0.5


def test_a_panel_that_diverged_keeps_the_whole_from_being_supported():
    good = [Effect((1.0, 1.2, 0.9)), Effect((1.1, 1.2, 0.8))]
    assert judge_together(good, BETTER).outcome == SUPPORTED
    lost = Effect(lost=3)
    found = judge_together([*good, lost], BETTER)
    assert (found.outcome, found.reason) == (UNDECIDED, "it diverged in 3 seeds")


def test_the_bootstrap_is_the_same_every_time_and_calibrated():
    panels = [(1.0, 2.2, 0.4), (0.8, 2.5, 0.9)]
    assert effects.bootstrap(panels, 4.0) == effects.bootstrap(panels, 4.0)
    generator = np.random.default_rng(7)
    decided = 0
    for _ in range(300):  # no difference: 5 % of all decisions may be wrong
        null = [Effect(tuple(generator.normal(0, 1, 3))) for _ in range(4)]
        decided += judge_together(null, BETTER).outcome != UNDECIDED
    assert decided / 300 < 0.08


def test_probability_of_improvement_compares_any_seed_with_any():
    """Mann and Whitney's U by the number of pairs, averaged over panels."""
    one, two = [3.0, 5.0, 7.0], [4.0, 5.0, 1.0]
    panels = [(scores(*one), scores(*two)), (scores(1), scores(2))]
    share = stats.mannwhitneyu(one, two).statistic / 9
    assert probability_of_improvement(panels[:1]) == pytest.approx(share)
    assert probability_of_improvement(panels) == pytest.approx(share / 2)
    assert probability_of_improvement([(scores(None), scores(1))]) is None
    assert probability_of_improvement([(scores(1), scores(-math.inf))]) == 1.0

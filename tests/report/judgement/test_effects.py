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

from fedbench.report.judgement import effects
from fedbench.report.judgement.effects import (
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


def test_a_bound_speaks_against_one_side_of_a_range_only():
    """Rounds as they are: 100 rounds in vain are at least 100."""
    vain = [*scores(99, 97), Score(100.0, at_least=True)]
    zero = scores(0, 0, 0)
    assert judged(vain, zero, Range(20, 30)).outcome == CONTRADICTED
    for low, high in ((20, 200), (150, 200)):
        found = judged(vain, zero, Range(low, high))
        assert (found.outcome, found.reason) == (
            UNDECIDED,
            "it did not reach the target in 1 seed",
        )
    turned = judged(zero, vain, Range(-30, -20))
    assert turned.outcome == CONTRADICTED
    assert judged(zero, vain, Range(-200, -20)).reason.startswith("the other did not reach")


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


def test_panels_that_share_seeds_are_one_sample_of_their_means():
    one, two = (1.0, 2.2, 0.4, 1.7), (0.8, 2.5, 0.9, 1.1)
    found = judge_together([Effect(one), Effect(two)], BETTER)
    means = [(a + b) / 2 for a, b in zip(one, two, strict=True)]
    test = stats.ttest_1samp(means, 0)
    interval = test.confidence_interval(0.95)
    assert (found.mean, found.p) == pytest.approx((np.mean(means), test.pvalue))
    assert found.low <= interval.low + 1e-9
    assert found.high >= interval.high - 1e-9


def test_seeds_are_matched_by_name():
    """Opposite differences of the same seeds cancel, wherever they stand in their lists."""
    up = effect_of(scores(1, 2, 3), scores(0, 0, 0), (4, 5, 6))
    down = effect_of(scores(-2.9, -2.1, -1.2), scores(0, 0, 0), (6, 5, 4))
    found = judge_together([up, down], BETTER)
    assert found.high - found.low < 1
    turned = effect_of(scores(-1.2, -2.1, -2.9), scores(0, 0, 0), (6, 5, 4))
    assert np.diff([(one := judge_together([up, turned], BETTER)).low, one.high])[0] > 4


def test_only_seeds_that_all_panels_have_are_averaged():
    more = effect_of(scores(1, 1.5, 0.8, 99), scores(0, 0, 0, 0), (0, 1, 2, 7))
    found = judge_together([more, Effect((1.1, 1.2, 0.7))], BETTER)
    assert found.mean == pytest.approx(np.mean([1.05, 1.35, 0.75]))
    apart = effect_of(scores(1, 1.5, 0.8), scores(0, 0, 0), (2, 3, 4))
    found = judge_together([apart, Effect((1.1, 1.2, 0.7))], BETTER)
    assert found.reason == "fewer than 3 seeds that its panels have in common"


def test_panels_without_common_seeds_are_welchs_test():
    """Two samples with equal weights are Welch's test of the one against minus the other."""
    one, two = (1.0, 2.2, 0.4, 1.7), (0.8, 2.5, 0.9)
    others = Effect(two, names=(10, 11, 12))
    found = judge_together([Effect(one), others], BETTER)
    welch = stats.ttest_ind(one, [-value for value in two], equal_var=False)
    assert found.p == pytest.approx(welch.pvalue)
    assert found.high - found.low >= np.diff(welch.confidence_interval(0.95))[0] / 2 - 1e-9
    three = judge_together([Effect(one), Effect(one), others], BETTER)
    assert three.mean == pytest.approx((2 * np.mean(one) + np.mean(two)) / 3)


def test_panels_weigh_the_same_and_strata_stay_apart():
    """Large differences between panels are no spread over seeds."""
    panels = [Effect((10.0, 10.1, 9.9)), Effect((1.0, 1.1, 0.9))]
    found = judge_together(panels, BETTER)
    assert found.mean == pytest.approx(5.5)
    assert found.high - found.low < 0.6


def test_a_panel_that_diverged_keeps_the_whole_from_being_supported():
    good = [Effect((1.0, 1.2, 0.9)), Effect((1.1, 1.2, 0.8))]
    assert judge_together(good, BETTER).outcome == SUPPORTED
    lost = Effect(lost=3)
    found = judge_together([*good, lost], BETTER)
    assert (found.outcome, found.reason) == (UNDECIDED, "it diverged in 3 seeds")
    assert found.parts == (0, 1)


WON, LOST = Effect(won=3), Effect(lost=3)
PAR = Range(-1.0, 1.0, closed=True)


@pytest.mark.parametrize(
    ("panels", "claimed", "outcome", "reason"),
    [
        ([LOST, LOST], BETTER, CONTRADICTED, "it diverged with every seed"),
        ([WON, WON], BETTER, SUPPORTED, "the other diverged with every seed"),
        ([LOST, LOST], PAR, CONTRADICTED, "it diverged with every seed"),
        ([WON, WON], PAR, CONTRADICTED, "the other diverged with every seed"),
        (
            [LOST, WON, LOST],
            BETTER,
            UNDECIDED,
            "with every seed it diverged in 2 panels, the other in 1",
        ),
        ([Effect((1.0, 1.2, 0.9)), WON], BETTER, SUPPORTED, ""),
        ([Effect((1.0, 1.2, 0.9)), LOST], BETTER, UNDECIDED, "it diverged in 3 seeds"),
        ([Effect((-1.0, -1.2, -0.9)), LOST], BETTER, CONTRADICTED, ""),
        ([Effect((-1.0, -1.2, -0.9)), WON], BETTER, UNDECIDED, "the other diverged in 3 seeds"),
        ([Effect((0.1, -0.1, 0.05)), WON], PAR, UNDECIDED, "the other diverged in 3 seeds"),
        (
            [WON, Effect(won=2)],
            BETTER,
            UNDECIDED,
            "1 of 2 panels with at least 3 seeds, two are needed",
        ),
    ],
)
def test_divergence_with_every_seed_of_a_panel(panels, claimed, outcome, reason):
    found = judge_together(panels, claimed)
    assert (found.outcome, found.reason) == (outcome, reason)
    turned = judge_together(panels[::-1], claimed)
    assert (turned.outcome, turned.reason) == (outcome, reason)


def test_no_difference_in_any_panel_is_judged_as_in_one():
    nothing = [Effect((0.0, 0.0, 0.0))] * 2
    tied = judge_together(nothing, Range(closed=True))
    assert (tied.outcome, tied.reason) == (SUPPORTED, "no difference with any seed")
    assert judge_together(nothing, PAR).outcome == SUPPORTED
    better = judge_together(nothing, BETTER)
    assert (better.outcome, better.reason) == (UNDECIDED, "the interval holds 0")
    opposite = [Effect((1.0, 1.0, 1.0)), Effect((-1.0, -1.0, -1.0))]  # no spread is no proof
    assert judge_together(opposite, PAR).outcome == UNDECIDED
    assert judge_together([*nothing, LOST], PAR).reason == "it diverged in 3 seeds"


def test_what_holm_takes_away_is_told_for_ranges_too():
    """By itself the first panel lies within the margin, and so does its interval."""
    panels = [Effect((0.0, 0.1, 0.5)), Effect((0.0, 0.1, 0.5)), Effect((0.9, 1.2, 1.3))]
    first, _, third = judge_panels(panels, PAR)
    assert -1 < first.low < first.high < 1
    assert first.p > 0.05
    assert (first.outcome, first.reason) == (
        UNDECIDED,
        "decided by itself, but not after Holm's correction",
    )
    assert third.reason == "the interval reaches beyond -1 to +1"


def test_each_panel_may_claim_a_range_of_its_own():
    """Together the mean difference is judged against the mean margin."""
    panels, ranges = [Effect((1.4, 1.5, 1.6))] * 2, [PAR, Range(-3.0, 3.0, closed=True)]
    assert [one.outcome for one in judge_panels(panels, ranges)] == [CONTRADICTED, SUPPORTED]
    assert judge_together(panels, ranges).outcome == SUPPORTED  # 1.5 within 2
    assert judge_together(panels, PAR).outcome == CONTRADICTED


def test_the_bootstrap_is_the_same_every_time():
    samples = [(0.5, (1.0, 2.2, 0.4)), (0.5, (0.8, 2.5, 0.9))]
    assert effects.bootstrap(samples, 4.0) == effects.bootstrap(samples, 4.0)


def share_decided(correlation: float, names: tuple[tuple[int, ...], ...]) -> float:
    """Of 400 draws without any difference; four panels, whose seeds have these names."""
    generator = np.random.default_rng(7)
    decided = 0
    for _ in range(400):
        common = correlation**0.5 * generator.normal(size=3)
        own = common + (1 - correlation) ** 0.5 * generator.normal(size=(4, 3))
        null = [Effect(tuple(panel), names=name) for panel, name in zip(own, names, strict=True)]
        decided += judge_together(null, BETTER).outcome != UNDECIDED
    return decided / 400


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_without_any_difference_five_percent_are_decided(correlation, monkeypatch):
    """However alike the panels are in which a seed is run; three standard errors are 0.033."""
    monkeypatch.setattr(effects, "RESAMPLES", 100)  # Student's interval stays the least width
    assert 0.017 < share_decided(correlation, ((0, 1, 2),) * 4) < 0.083


def test_taking_the_same_seeds_for_others_decides_by_chance(monkeypatch):
    """What the simulation shows when panels that share seeds are resampled each by itself."""
    monkeypatch.setattr(effects, "RESAMPLES", 100)
    apart = tuple((place, place + 10, place + 20) for place in range(4))
    assert share_decided(0.9, apart) > 0.2


def test_probability_of_improvement_compares_any_seed_with_any():
    """Mann and Whitney's U by the number of pairs, averaged over panels."""
    one, two = [3.0, 5.0, 7.0], [4.0, 5.0, 1.0]
    panels = [(scores(*one), scores(*two)), (scores(1), scores(2))]
    share = stats.mannwhitneyu(one, two).statistic / 9
    assert probability_of_improvement(panels[:1]) == pytest.approx(share)
    assert probability_of_improvement(panels) == pytest.approx(share / 2)
    assert probability_of_improvement([(scores(None), scores(1))]) is None
    assert probability_of_improvement([(scores(1), scores(-math.inf))]) == 1.0

"""Tests of significance: by hand, against independent formulas, and the symmetries that they must
have.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedbench.report.numbers.significance import holm, mcnemar, mcnemar_pooled, paired


def outcomes(n01: int, n10: int, both: int = 7):
    """Labels and two predictions with so many images that only the second, or only the first, has
    right.
    """
    labels = np.arange(n01 + n10 + both) % 10
    wrong = (labels + 1) % 10
    index = np.arange(len(labels))
    return (
        labels,
        np.where(index < n01, wrong, labels),
        np.where((index >= n01) & (index < n01 + n10), wrong, labels),
    )


# McNemar


def independent_mcnemar(n01: int, n10: int) -> float:
    total = n01 + n10
    if total < 25:
        return stats.binomtest(n01, total, 0.5).pvalue if total else 1.0
    return math.erfc(
        math.sqrt(max(0, abs(n01 - n10) - 1) ** 2 / total / 2)
    )  # chi-square with one degree of freedom


def test_mcnemar_by_hand():
    few = mcnemar(*outcomes(1, 5))
    assert (few.n01, few.n10, few.exact) == (1, 5, True)
    assert few.p == pytest.approx(2 * (1 + 6) / 2**6)
    many = mcnemar(*outcomes(150, 86))
    assert (many.n01, many.n10, many.exact) == (150, 86, False)
    assert many.p == pytest.approx(stats.chi2.sf(63**2 / 236, 1))


@pytest.mark.parametrize(
    ("n01", "n10"), [(0, 0), (12, 12), (13, 12), (0, 24), (0, 25), (20, 20), (30, 29), (3, 40)]
)
def test_mcnemar_on_the_edges(n01, n10):
    found = mcnemar(*outcomes(n01, n10))
    assert found.exact == (n01 + n10 < 25)
    assert found.p == pytest.approx(independent_mcnemar(n01, n10))


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.randoms())
def test_mcnemar_is_symmetric_and_does_not_depend_on_the_order_of_images(n01, n10, random):
    labels, first, second = outcomes(n01, n10)
    found, mirrored = mcnemar(labels, first, second), mcnemar(labels, second, first)
    assert (mirrored.n01, mirrored.n10, mirrored.p) == (
        found.n10,
        found.n01,
        pytest.approx(found.p),
    )
    order = random.sample(range(len(labels)), len(labels))
    assert mcnemar(labels[order], first[order], second[order]) == found
    assert found.p == pytest.approx(independent_mcnemar(n01, n10))
    assert 0 <= found.p <= 1


def test_only_right_and_wrong_count_not_which_class():
    assert mcnemar([0, 0, 0], [1, 1, 2], [2, 1, 0]).n01 == 1
    assert mcnemar([0, 0, 0], [1, 1, 2], [2, 1, 0]).n10 == 0


def test_different_images_are_refused():
    with pytest.raises(ValueError, match="different images"):
        mcnemar([0, 1], [0, 1], [0])


def test_over_seeds_the_weakest_evidence_counts():
    strong, weak, opposite = outcomes(3, 20), outcomes(5, 9), outcomes(20, 3)
    found = mcnemar_pooled([strong, weak])
    assert [test.n10 for test in found.seeds] == [20, 9]
    assert found.p == pytest.approx(independent_mcnemar(5, 9))
    assert mcnemar_pooled([strong]).p == pytest.approx(independent_mcnemar(3, 20))
    assert mcnemar_pooled([strong, strong, opposite]).p == 1.0
    assert mcnemar_pooled([strong, outcomes(4, 4)]).p == 1.0
    assert mcnemar_pooled([]) is None


# Holm


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
    with pytest.raises(ValueError, match="no p-values"):
        holm([0.5, math.nan])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_holm_raises_p_and_keeps_the_order(p_values, random):
    adjusted = holm(p_values)
    assert all(raw <= new <= 1 for raw, new in zip(p_values, adjusted, strict=True))
    by_size = [new for _, new in sorted(zip(p_values, adjusted, strict=True))]
    assert by_size == sorted(by_size)
    steps = [p * (len(p_values) - rank) for rank, p in enumerate(sorted(p_values))]
    assert by_size == pytest.approx([min(1, max(steps[: rank + 1])) for rank in range(len(steps))])
    order = random.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[index] for index in order]) == pytest.approx(
        [adjusted[index] for index in order]
    )


# Over seeds


def test_paired_by_hand():
    found = paired([3.0, 5.0, 7.0], [2.0, 3.0, 4.0])  # differences 1, 2, 3: t = 2 / (1 / sqrt 3)
    t = 2 * math.sqrt(3)
    assert found.difference == 2
    assert found.t_p == pytest.approx(
        1 - t / math.sqrt(t * t + 2)
    )  # two degrees of freedom, in closed form
    reach = (
        math.sqrt(2) * 0.95 / math.sqrt(1 - 0.95**2) / math.sqrt(3)
    )  # their 97.5 % quantile, in closed form
    assert (found.low, found.high) == pytest.approx((2 - reach, 2 + reach))
    assert found.effect == pytest.approx(
        2 / math.sqrt(math.pi)
    )  # d_z = 2, corrected by gamma(1) / gamma(1/2)
    assert found.wilcoxon_p is None


def test_paired_leaves_out_and_counts_what_has_no_partner():
    found = paired([1.0, None, 3.0, 8.0], [0.0, 5.0, 1.0, None])
    assert (found.count, found.wanted, found.difference) == (2, 4, 1.5)
    assert found.effect is None  # no correction exists for one degree of freedom
    assert paired([1.0, None], [0.0, 2.0]) is None
    assert paired([], []) is None
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


def test_signed_ranks_from_six_pairs_on():
    other = [50.0] * 6
    own = [51.0, 52.5, 50.5, 53.0, 54.0, 56.0]
    assert paired(own, other).wilcoxon_p == pytest.approx(2 / 2**6)  # all six above
    assert paired(own[:5], other[:5]).wilcoxon_p is None


@pytest.mark.parametrize("count", [2, 3, 8])
def test_equal_differences_give_no_nan_and_no_warning(count):
    own = [80.1 + 0.3 * seed for seed in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = paired(own, own)
        shifted = paired(own, [value - 0.7 for value in own])
    assert (same.difference, same.low, same.high, same.t_p, same.effect) == (0, 0, 0, 1, 0)
    assert shifted.difference == pytest.approx(0.7)
    assert (shifted.low, shifted.high, shifted.t_p, shifted.effect) == (None, None, None, None)
    expected = (1.0, pytest.approx(2 / 2**count)) if count >= 6 else (None, None)
    assert (same.wilcoxon_p, shifted.wilcoxon_p) == expected


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=2, max_size=8),
    st.randoms(),
)
def test_paired_is_symmetric_and_does_not_depend_on_the_order_of_seeds(pairs, random):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired(*zip(*pairs, strict=True))
        swapped = paired(*zip(*[(b, a) for a, b in pairs], strict=True))
        shuffled = paired(*zip(*random.sample(pairs, len(pairs)), strict=True))
    for one in (swapped, shuffled):
        assert one.t_p == pytest.approx(found.t_p)
        assert one.wilcoxon_p == pytest.approx(found.wilcoxon_p)
    assert swapped.difference == pytest.approx(-found.difference)
    assert swapped.effect == pytest.approx(None if found.effect is None else -found.effect)
    for value in (found.t_p, found.wilcoxon_p, found.effect, found.low, found.high):
        assert value is None or math.isfinite(value)
    if found.t_p is not None and found.low != found.high:
        assert (found.t_p < 0.05) == (not found.low <= 0 <= found.high)

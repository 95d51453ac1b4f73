"""Whether a difference is more than chance: on the same test images (McNemar), and over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar as test

EXACT_BELOW = 25  # discordant pairs; the chi-square approximation is poor for fewer
WILCOXON_FROM = 6  # pairs; with 5 its smallest two-sided p is 0.0625
CONFIDENCE = 0.95
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class McNemar:
    """Of two classifiers on the same images. Where both are right, or both wrong, an image tells
    nothing.
    """

    n01: int  # images that the first has wrong and the second right
    n10: int  # images that the first has right and the second wrong
    p: float
    exact: bool  # binomial; else chi-square with continuity correction


@dataclass(frozen=True)
class McNemarSeeds:
    """One test for each seed, and what they say together."""

    seeds: tuple[McNemar, ...]
    p: float


def mcnemar(labels: ArrayLike, first: ArrayLike, second: ArrayLike) -> McNemar:
    """McNemar's test that two classifiers err equally often (McNemar 1947; for classifiers:
    Dietterich 1998).
    """
    labels, first, second = (np.asarray(array) for array in (labels, first, second))
    if not labels.shape == first.shape == second.shape or labels.ndim != 1:
        raise ValueError(
            f"labels and predictions of different images: {labels.shape}, {first.shape},"
            f" {second.shape}"
        )
    n01 = int(np.sum((first != labels) & (second == labels)))
    n10 = int(np.sum((first == labels) & (second != labels)))
    exact = n01 + n10 < EXACT_BELOW
    if (
        n01 == n10
    ):  # no difference at all; the continuity correction would overshoot zero and find one
        return McNemar(n01, n10, 1.0, exact)
    p = float(test([[0, n10], [n01, 0]], exact=exact, correction=True).pvalue)
    return McNemar(n01, n10, p, exact)


def mcnemar_pooled(seeds: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> McNemarSeeds | None:
    """McNemar's test over seeds: the largest p of them, and 1 when the seeds disagree about who is
    better.

    Adding up the discordant counts is not valid: the same images come back with every seed, so that
    they are no independent pairs. The largest p is the intersection-union test (Berger 1982) for
    "better with every seed": valid under any dependence, and never smaller for a further seed. In
    its directed form, doubled, opposite directions give 1. The Cauchy combination (Liu and Xie
    2020) tolerates dependence as well, but has no answer to a p of exactly 1, which the exact test
    gives, and takes two opposite differences for one strong one.
    """
    if not seeds:
        return None
    tests = tuple(mcnemar(*seed) for seed in seeds)
    better = {test.n10 > test.n01 for test in tests if test.n10 != test.n01}
    return McNemarSeeds(tests, 1.0 if len(better) > 1 else max(test.p for test in tests))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm 1979), in the given order.

    The smallest of n is multiplied by n, the next by n - 1 ..., and none is below an earlier one.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError(f"no p-values: {[p for p in p_values if not 0 <= p <= 1]}")
    given = np.asarray(p_values, float)
    order = np.argsort(given)
    adjusted = np.empty_like(given)
    adjusted[order] = np.maximum.accumulate(given[order] * np.arange(len(given), 0, -1))
    return [float(p) for p in np.minimum(adjusted, 1.0)]


@dataclass(frozen=True)
class Paired:
    """Own minus other over matched seeds. Without spread in the differences there is nothing to
    judge them by: None.
    """

    count: int  # pairs with both values
    wanted: int
    difference: float  # mean
    low: float | None  # of the confidence interval
    high: float | None
    t_p: float | None  # paired t-test
    wilcoxon_p: float | None  # signed ranks; None for too few pairs to find anything
    effect: float | None  # Hedges' g_z; None for two pairs, too


def paired(own: Sequence[float | None], other: Sequence[float | None]) -> Paired | None:
    """Of values of the same seeds in the same order; None with fewer than two pairs.

    When all differences are zero, p is 1 and the effect 0. When they are equal but not zero, a
    t-test would say p = 0 of as little as two seeds that happen to differ by the same number of
    images; p, interval and effect are None.
    """
    pairs = list(zip(own, other, strict=True))
    both = [(float(a), float(b)) for a, b in pairs if a is not None and b is not None]
    count = len(both)
    if count < 2:
        return None
    differences = [a - b for a, b in both]
    difference, spread = mean(differences), stdev(differences)
    noise = 1e-12 * max(abs(value) for pair in both for value in pair)  # of subtracting
    ranks_p = _signed_ranks(differences, noise) if count >= WILCOXON_FROM else None
    if not any(differences):
        return Paired(count, len(pairs), 0.0, 0.0, 0.0, 1.0, ranks_p, 0.0)
    if spread <= noise:
        return Paired(count, len(pairs), difference, None, None, None, ranks_p, None)
    t_p = float(stats.ttest_rel(*zip(*both, strict=True)).pvalue)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)) * spread / math.sqrt(count)
    effect = _small_sample(count - 1) * difference / spread if count > 2 else None
    return Paired(
        count, len(pairs), difference, difference - reach, difference + reach, t_p, ranks_p, effect
    )


def _signed_ranks(differences: list[float], noise: float) -> float:
    """Wilcoxon's p; differences that are equal up to the noise are ties, not ranks by accident."""
    if not any(differences):
        return 1.0
    return float(stats.wilcoxon([float(round(value / noise)) for value in differences]).pvalue)


def _small_sample(freedom: int) -> float:
    """Hedges' correction of a standardised mean, exactly (Hedges 1981); from two degrees of freedom
    on.
    """
    return math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom - 1) / 2)) / math.sqrt(
        freedom / 2
    )

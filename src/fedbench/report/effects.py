"""Effects instead of levels: paired differences over seeds, and what they say about a claim.

A difference is always taken in the claim's favour: positive means "as claimed". One *panel* is one
setting (a dataset, an alpha) in which two methods ran with the same seeds; its interval and p are
those of a paired t-test. Over several panels the differences are averaged; the interval is a
bootstrap over seeds within each panel, never narrower than that of Welch's t, which gives the p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedbench.report.significance import CONFIDENCE, holm

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"
SIGNIFICANT = 1 - CONFIDENCE
FEWEST_SEEDS = 3
RESAMPLES = 10_000
BOOTSTRAP_SEED = 20211205  # any fixed number: the same runs give the same interval


@dataclass(frozen=True)
class Score:
    """What one run scored, higher being better.

    `value` is minus infinity when the run diverged and None when there is none. `at_best`: the true
    value is lower still, as of a run that did not reach its target in the rounds it had.
    """

    value: float | None
    at_best: bool = False


@dataclass(frozen=True)
class Effect:
    """The paired differences of one panel, own minus other.

    Each list of seeds that cannot be subtracted is counted: `won` and `lost` have one side
    diverged, `idle` have neither side diverged nor any order (both missed the target, or both
    diverged), `lacking` have a side that was not run.
    """

    differences: tuple[float, ...] = ()
    won: int = 0
    lost: int = 0
    idle: int = 0
    lacking: int = 0
    at_least: int = 0  # of the differences, those whose true value is larger
    at_most: int = 0  # those whose true value is smaller
    noise: float = 0.0  # what rounding may contribute to a difference

    @property
    def seeds(self) -> int:
        """Seeds in which the two can be put in order."""
        return len(self.differences) + self.won + self.lost

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.differences)) if self.differences else None

    @property
    def variance(self) -> float:
        """Of the mean difference, estimated from its spread over seeds."""
        spread = float(np.std(self.differences, ddof=1))
        return 0.0 if spread <= self.noise else spread**2 / len(self.differences)

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        """Of the mean difference, by Student's t over seeds; None without any spread."""
        if len(self.differences) < 2 or self.mean is None:
            return None
        if not any(self.differences):
            return 0.0, 0.0
        if not self.variance:
            return None
        reach = stats.t.ppf((1 + confidence) / 2, len(self.differences) - 1)
        half = float(reach) * math.sqrt(self.variance)
        return self.mean - half, self.mean + half

    def p_above(self, limit: float) -> float | None:
        """One-sided: how likely a mean this high is when the true one is `limit`."""
        if len(self.differences) < 2 or self.mean is None:
            return None
        if not any(self.differences):
            return 0.0 if limit < 0 else 1.0
        if not self.variance:
            return None
        t = (self.mean - limit) / math.sqrt(self.variance)
        return float(stats.t.sf(t, len(self.differences) - 1))

    def p_below(self, limit: float) -> float | None:
        """The same for a mean this low."""
        turned = replace(self, differences=tuple(-one for one in self.differences))
        return turned.p_above(-limit)


def effect_of(own: Sequence[Score], other: Sequence[Score]) -> Effect:
    """Of two methods with the same seeds in the same order."""
    differences: list[float] = []
    won = lost = idle = lacking = at_least = at_most = 0
    largest = 0.0
    for one, two in zip(own, other, strict=True):
        if one.value is None or two.value is None:
            lacking += 1
            continue
        diverged = math.isinf(one.value), math.isinf(two.value)
        if all(diverged) or (one.at_best and two.at_best):
            idle += 1
        elif diverged[0]:
            lost += 1
        elif diverged[1]:
            won += 1
        else:
            differences.append(one.value - two.value)
            largest = max(largest, abs(one.value), abs(two.value))
            at_most += one.at_best
            at_least += two.at_best
    return Effect(
        tuple(differences), won, lost, idle, lacking, at_least, at_most, noise=1e-12 * largest
    )


@dataclass(frozen=True)
class Range:
    """Where a claim says that the difference lies: above 0 unless told otherwise.

    `closed`: no difference at all agrees with the claim, too ("at least as good").
    """

    low: float = 0.0
    high: float = math.inf
    closed: bool = False

    def holds(self, value: float) -> bool:
        return self.low < value < self.high or (self.closed and value in (self.low, self.high))


@dataclass(frozen=True)
class Judgement:
    """What a difference says about a claim, on what grounds."""

    outcome: str = UNDECIDED
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None  # corrected; of the side that decides, else of the nearer one
    reason: str = ""  # why nothing is decided, or what decides beside the interval


def judge_panels(effects: Sequence[Effect], claimed: Range) -> list[Judgement]:
    """Each panel of a claim by itself, all p corrected by Holm for their number.

    A claim of a difference is tested two-sided against 0, a claim of a range (equivalence among
    them) by two one-sided tests: inside is supported when both limits are rejected, outside is
    contradicted when the interval lies beyond one of them.
    """
    inside = _corrected([_p_inside(effect, claimed) for effect in effects])
    outside = _corrected([_p_outside(effect, claimed) for effect in effects])
    return [_panel(*known, claimed) for known in zip(effects, inside, outside, strict=True)]


def _p_inside(effect: Effect, claimed: Range) -> float | None:
    if effect.seeds < FEWEST_SEEDS or len(effect.differences) < FEWEST_SEEDS:
        return None
    if math.isinf(claimed.high):  # two-sided, as a claim of a difference may fail on either side
        p = effect.p_above(claimed.low)
        return None if p is None else min(1.0, 2 * p)
    both = effect.p_above(claimed.low), effect.p_below(claimed.high)
    return None if None in both else max(p for p in both if p is not None)


def _p_outside(effect: Effect, claimed: Range) -> float | None:
    """Two-sided, of lying beyond the nearer limit."""
    if effect.seeds < FEWEST_SEEDS or len(effect.differences) < FEWEST_SEEDS:
        return None
    low = effect.p_below(claimed.low)
    high = 1.0 if math.isinf(claimed.high) else effect.p_above(claimed.high)
    return None if low is None or high is None else min(1.0, 2 * min(low, high))


def _corrected(p_values: Sequence[float | None]) -> list[float | None]:
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def _panel(
    effect: Effect, inside: float | None, outside: float | None, claimed: Range
) -> Judgement:
    interval = effect.interval()
    low, high = interval if interval is not None else (None, None)
    known = Judgement(UNDECIDED, effect.mean, low, high)
    if effect.seeds < FEWEST_SEEDS:
        return replace(known, reason=_too_few(effect))
    if effect.idle:
        return replace(known, reason=f"in {_count(effect.idle)} neither side got there")
    if effect.won == effect.seeds and math.isinf(claimed.high):
        return replace(known, outcome=SUPPORTED, reason="the other diverged with every seed")
    if effect.lost == effect.seeds:
        return replace(known, outcome=CONTRADICTED, reason="it diverged with every seed")
    if len(effect.differences) < FEWEST_SEEDS:
        return replace(known, reason=_too_few(effect))
    if inside is None or outside is None:
        return replace(known, reason="all seeds differ by the same amount: no spread to judge by")
    if not any(effect.differences) and claimed.holds(0.0) and not _blocks_support(effect, claimed):
        return replace(known, outcome=SUPPORTED, p=inside, reason="no difference with any seed")
    if inside < SIGNIFICANT:
        blocked = _blocks_support(effect, claimed)
        return replace(known, outcome=UNDECIDED if blocked else SUPPORTED, p=inside, reason=blocked)
    if outside < SIGNIFICANT:
        blocked = _blocks_contradiction(effect, claimed)
        return replace(
            known, outcome=UNDECIDED if blocked else CONTRADICTED, p=outside, reason=blocked
        )
    return replace(known, p=min(inside, outside), reason=_open(known, claimed))


def _open(known: Judgement, claimed: Range) -> str:
    """Why an interval decides nothing."""
    if known.low is None or known.high is None:
        return ""
    if math.isinf(claimed.high) and (known.low > claimed.low or known.high < claimed.low):
        return "decided by itself, but not after Holm's correction"
    if math.isinf(claimed.high):
        return f"the interval holds {claimed.low:g}"
    return f"the interval reaches beyond {claimed.low:+g} to {claimed.high:+g}"


def _blocks_support(effect: Effect, claimed: Range) -> str:
    if effect.lost:
        return f"it diverged in {_count(effect.lost)}"
    if effect.at_most:
        return f"it did not reach the target in {_count(effect.at_most)}"
    if not math.isinf(claimed.high):
        return _blocks_contradiction(effect, Range())
    return ""


def _blocks_contradiction(effect: Effect, claimed: Range) -> str:
    if not math.isinf(claimed.high):
        return _blocks_support(effect, Range()) or _blocks_contradiction(effect, Range())
    if effect.won:
        return f"the other diverged in {_count(effect.won)}"
    if effect.at_least:
        return f"the other did not reach the target in {_count(effect.at_least)}"
    return ""


def _count(seeds: int) -> str:
    return f"{seeds} seed{'s' if seeds != 1 else ''}"


def _too_few(effect: Effect) -> str:
    if effect.seeds == 0 and not effect.idle:
        return "not run yet"
    comparable = len(effect.differences) if effect.seeds >= FEWEST_SEEDS else effect.seeds
    return f"{_count(comparable)} to compare, at least {FEWEST_SEEDS} are needed"


def judge_together(effects: Sequence[Effect], claimed: Range) -> Judgement:
    """All panels of a comparison as one: their mean difference, each panel weighing the same.

    Only panels with enough seeds take part. A bootstrap of two or three panels with three seeds
    each cannot be wider than the values it has, so that Welch's interval is its least width. The p
    is uncorrected: it is for the caller to correct over several comparisons.
    """
    parts = [one for one in effects if len(one.differences) >= FEWEST_SEEDS and not one.idle]
    if len(parts) < 2:
        enough = f"{len(parts)} of {len(effects)} panels with at least {FEWEST_SEEDS} seeds"
        return Judgement(reason=f"{enough}, two are needed")
    mean = float(np.mean([part.mean for part in parts]))
    variances = np.array([part.variance for part in parts]) / len(parts) ** 2
    if not variances.any():
        return Judgement(mean=mean, reason="all seeds differ by the same amount")
    freedoms = np.array([len(part.differences) - 1 for part in parts])
    freedom = float(variances.sum() ** 2 / (variances**2 / freedoms).sum())
    error = math.sqrt(variances.sum())
    low, high = bootstrap([part.differences for part in parts], freedom)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    low, high = min(low, mean - reach), max(high, mean + reach)
    above, below = (
        float(stats.t.sf(sign * (mean - claimed.low) / error, freedom)) for sign in (1, -1)
    )
    finite = not math.isinf(claimed.high)
    over = float(stats.t.sf((mean - claimed.high) / error, freedom)) if finite else 1.0
    under = float(stats.t.sf((claimed.high - mean) / error, freedom)) if finite else 0.0
    inside = max(above, under) if finite else min(1.0, 2 * above)
    outside = min(1.0, 2 * min(below, over))
    known = Judgement(UNDECIDED, mean, low, high, min(inside, outside))
    blocks = [_blocks_support(one, claimed) for one in effects]
    if inside < SIGNIFICANT and (finite or low > claimed.low):
        blocked = next((block for block in blocks if block), "")
        return replace(known, outcome=UNDECIDED if blocked else SUPPORTED, p=inside, reason=blocked)
    if outside < SIGNIFICANT and (high < claimed.low or low > claimed.high):
        blocks = [_blocks_contradiction(one, claimed) for one in effects]
        blocked = next((block for block in blocks if block), "")
        return replace(
            known, outcome=UNDECIDED if blocked else CONTRADICTED, p=outside, reason=blocked
        )
    return replace(known, reason=_open(known, claimed))


def bootstrap(panels: Sequence[Sequence[float]], freedom: float) -> tuple[float, float]:
    """The interval of the mean of the panels' means, resampling seeds within each panel.

    Few seeds make a plain percentile interval too narrow, for two reasons (Hesterberg 2015): n
    resampled values spread less by a factor of sqrt((n - 1) / n), which is undone here, and normal
    quantiles stand where Student's belong, so that the percentiles are taken farther out.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    total = np.zeros(RESAMPLES)
    for panel in panels:
        values = np.asarray(panel, float)
        drawn = values[generator.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1)
        total += values.mean() + (drawn - values.mean()) * math.sqrt(
            len(values) / (len(values) - 1)
        )
    share = float(stats.norm.cdf(stats.t.ppf((1 - CONFIDENCE) / 2, freedom)))
    low, high = np.quantile(total / len(panels), [share, 1 - share])
    return float(low), float(high)


def probability_of_improvement(
    panels: Sequence[tuple[Sequence[Score], Sequence[Score]]],
) -> float | None:
    """How likely a run of the one beats a run of the other, any seed against any: the mean over
    panels of the share of pairs won, a tie counting half (Agarwal et al. 2021).
    """
    shares = []
    for own, other in panels:
        pairs = [
            (one.value, two.value)
            for one in own
            for two in other
            if one.value is not None and two.value is not None
        ]
        if pairs:
            shares.append(float(np.mean([(a > b) + 0.5 * (a == b) for a, b in pairs])))
    return float(np.mean(shares)) if shares else None

"""Effects instead of levels: paired differences over seeds, and what they say about a claim.

A difference is always taken in the claim's favour: positive means "as claimed". One *panel* is one
setting (a dataset, an alpha) in which two methods ran with the same seeds; its interval and p are
those of a paired t-test. Over several panels the differences are averaged seed by seed, because
runs with the same seed are not independent; the interval is a bootstrap over these seeds, never
narrower than that of Student's t, which gives the p.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from fedbench.report.judgement.outcomes import CONTRADICTED, SUPPORTED, UNDECIDED
from fedbench.report.numbers.significance import CONFIDENCE, SIGNIFICANT, holm

FEWEST_SEEDS = 3
RESAMPLES = 10_000
NO_SPREAD = "all seeds differ by the same amount: no spread to judge by"
BOOTSTRAP_SEED = 20211205  # any fixed number: the same runs give the same interval


@dataclass(frozen=True)
class Score:
    """What one run scored, higher being better.

    `value` is minus infinity when the run diverged and None when there is none. A run that did not
    reach its target has the rounds it had, and the true value is lower still (`at_best`). Where
    rounds are taken as they are, fewer not being better, it is higher still (`at_least`).
    """

    value: float | None
    at_best: bool = False
    at_least: bool = False


@dataclass(frozen=True)
class Estimate:
    """A mean difference with its standard error and the degrees of freedom of Student's t.

    No error: there was no difference with any seed.
    """

    mean: float
    error: float
    freedom: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        half = float(stats.t.ppf((1 + confidence) / 2, self.freedom)) * self.error
        return self.mean - half, self.mean + half

    def p_above(self, limit: float) -> float:
        """One-sided: how likely a mean this high is when the true one is `limit`."""
        if not self.error:
            return float(self.mean <= limit)
        return float(stats.t.sf((self.mean - limit) / self.error, self.freedom))

    def p_below(self, limit: float) -> float:
        """The same for a mean this low."""
        return Estimate(-self.mean, self.error, self.freedom).p_above(-limit)


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
    upward: bool = False  # a target that the own side missed makes a difference larger
    noise: float = 0.0  # what rounding may contribute to a difference
    names: tuple[int, ...] = ()  # the seed of each difference; 0, 1, 2 ... unless given

    @property
    def seeds(self) -> int:
        """Seeds in which the two can be put in order."""
        return len(self.differences) + self.won + self.lost

    @property
    def by_seed(self) -> dict[int, float]:
        names = self.names or tuple(range(len(self.differences)))
        return dict(zip(names, self.differences, strict=True))

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.differences)) if self.differences else None

    @property
    def variance(self) -> float:
        """Of the mean difference, estimated from its spread over seeds."""
        spread = float(np.std(self.differences, ddof=1))
        return 0.0 if spread <= self.noise else spread**2 / len(self.differences)

    @property
    def estimate(self) -> Estimate | None:
        """None with fewer than two seeds, or when all differ by the same amount other than 0."""
        if len(self.differences) < 2 or self.mean is None:
            return None
        if any(self.differences) and not self.variance:
            return None
        return Estimate(self.mean, math.sqrt(self.variance), len(self.differences) - 1)


def effect_of(
    own: Sequence[Score], other: Sequence[Score], seeds: Sequence[int] | None = None
) -> Effect:
    """Of two methods with the same seeds in the same order; `seeds` names them."""
    differences: list[float] = []
    names: list[int] = []
    won = lost = idle = lacking = at_least = at_most = 0
    largest = 0.0
    for seed, one, two in zip(seeds or range(len(own)), own, other, strict=True):
        if one.value is None or two.value is None:
            lacking += 1
            continue
        diverged = math.isinf(one.value), math.isinf(two.value)
        if all(diverged) or (_is_censored(one) and _is_censored(two)):
            idle += 1
        elif diverged[0]:
            lost += 1
        elif diverged[1]:
            won += 1
        else:
            differences.append(one.value - two.value)
            names.append(seed)
            largest = max(largest, abs(one.value), abs(two.value))
            at_most += one.at_best or two.at_least
            at_least += two.at_best or one.at_least
    return Effect(
        tuple(differences),
        won,
        lost,
        idle,
        lacking,
        at_least,
        at_most,
        upward=any(score.at_least for score in (*own, *other)),
        noise=1e-12 * largest,
        names=tuple(names),
    )


def _is_censored(score: Score) -> bool:
    return score.at_best or score.at_least


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
    parts: tuple[int, ...] = ()  # of several panels together, the places of those that take part


def judge_panels(effects: Sequence[Effect], claimed: Range | Sequence[Range]) -> list[Judgement]:
    """Each panel of a comparison by itself, all p corrected by Holm for their number.

    A claim of a difference is tested two-sided against 0, a claim of a range (equivalence among
    them) by two one-sided tests: inside is supported when both limits are rejected, outside is
    contradicted when the interval lies beyond one of them. `claimed`: of all panels, or of each.
    """
    ranges = _for_each(effects, claimed)
    raw = [
        _p_values(effect.estimate if _measured(effect) else None, own)
        for effect, own in zip(effects, ranges, strict=True)
    ]
    inside, outside = (_corrected([None if p is None else p[side] for p in raw]) for side in (0, 1))
    return [_panel(*known) for known in zip(effects, ranges, raw, inside, outside, strict=True)]


def _for_each(effects: Sequence[Effect], claimed: Range | Sequence[Range]) -> list[Range]:
    return [claimed] * len(effects) if isinstance(claimed, Range) else list(claimed)


def _measured(effect: Effect) -> bool:
    return len(effect.differences) >= FEWEST_SEEDS


def _p_values(estimate: Estimate | None, claimed: Range) -> tuple[float, float] | None:
    """Of lying in the claimed range, and two-sided of lying beyond the nearer limit."""
    if estimate is None:
        return None
    above, below = estimate.p_above(claimed.low), estimate.p_below(claimed.low)
    if math.isinf(claimed.high):  # two-sided, as a claim of a difference may fail on either side
        return min(1.0, 2 * above), min(1.0, 2 * below)
    under, over = estimate.p_below(claimed.high), estimate.p_above(claimed.high)
    return max(above, under), min(1.0, 2 * min(below, over))


def _corrected(p_values: Sequence[float | None]) -> list[float | None]:
    corrected = iter(holm([p for p in p_values if p is not None]))
    return [None if p is None else next(corrected) for p in p_values]


def _panel(
    effect: Effect,
    claimed: Range,
    raw: tuple[float, float] | None,
    inside: float | None,
    outside: float | None,
) -> Judgement:
    interval = effect.estimate.interval() if effect.estimate is not None else (None, None)
    known = Judgement(UNDECIDED, effect.mean, *interval)
    if effect.seeds < FEWEST_SEEDS:
        return replace(known, reason=_too_few(effect))
    if effect.idle:
        return replace(known, reason=f"in {_count(effect.idle)} neither side got there")
    if _diverged(effect):
        return _by_divergence([effect], claimed)
    if not _measured(effect):
        return replace(known, reason=_too_few(effect))
    if raw is None or inside is None or outside is None:
        return replace(known, reason=NO_SPREAD)
    return _decided(known, raw, (inside, outside), claimed, [effect])


def _diverged(effect: Effect) -> bool:
    """Whether one side did, with every seed."""
    return effect.seeds in (effect.won, effect.lost)


def _by_divergence(effects: Sequence[Effect], claimed: Range) -> Judgement:
    """Of panels in each of which one side diverged with every seed."""
    lost = [effect for effect in effects if effect.lost]
    if len(lost) == len(effects):
        return Judgement(CONTRADICTED, reason="it diverged with every seed")
    if lost:
        won = len(effects) - len(lost)
        words = f"with every seed it diverged in {_count(len(lost), 'panel')}"
        return Judgement(reason=f"{words}, the other in {won}")
    outcome = SUPPORTED if math.isinf(claimed.high) else CONTRADICTED
    return Judgement(outcome, reason="the other diverged with every seed")


def _decided(
    known: Judgement,
    raw: tuple[float, float],
    corrected: tuple[float, float],
    claimed: Range,
    effects: Sequence[Effect],
) -> Judgement:
    """By p, unless the interval, or a run without a number, stands against it.

    Both pairs of p: of lying in the claimed range and of lying beyond it.
    """
    assert known.low is not None
    assert known.high is not None
    inside, outside = corrected
    against = next(filter(None, (_blocks_support(one, claimed) for one in effects)), "")
    if known.low == known.high and claimed.holds(0.0) and not against:
        return replace(known, outcome=SUPPORTED, p=inside, reason="no difference with any seed")
    if inside < SIGNIFICANT and (not math.isinf(claimed.high) or known.low > claimed.low):
        outcome = UNDECIDED if against else SUPPORTED
        return replace(known, outcome=outcome, p=inside, reason=against)
    if outside < SIGNIFICANT and (known.high < claimed.low or known.low > claimed.high):
        blocks = _blocks_below if known.high < claimed.low else _blocks_above
        against = next(filter(None, map(blocks, effects)), "")
        outcome = UNDECIDED if against else CONTRADICTED
        return replace(known, outcome=outcome, p=outside, reason=against)
    reason = f"the interval reaches beyond {claimed.low:+g} to {claimed.high:+g}"
    if min(corrected) >= SIGNIFICANT > min(raw):
        reason = "decided by itself, but not after Holm's correction"
    elif math.isinf(claimed.high):
        reason = f"the interval holds {claimed.low:g}"
    return replace(known, p=min(inside, outside), reason=reason)


def _blocks_support(effect: Effect, claimed: Range) -> str:
    ends = [_blocks_above] if math.isinf(claimed.high) else [_blocks_above, _blocks_below]
    return next(filter(None, (blocks(effect) for blocks in ends)), "")


def _blocks_above(effect: Effect) -> str:
    """Why differences do not show that the true one is as large, or larger."""
    if effect.lost:
        return f"it diverged in {_count(effect.lost)}"
    return _missed(effect.at_most, own=not effect.upward)


def _blocks_below(effect: Effect) -> str:
    """Why differences do not show that the true one is as small, or smaller."""
    if effect.won:
        return f"the other diverged in {_count(effect.won)}"
    return _missed(effect.at_least, own=effect.upward)


def _missed(seeds: int, own: bool) -> str:
    side = "it" if own else "the other"
    return f"{side} did not reach the target in {_count(seeds)}" if seeds else ""


def _count(number: int, what: str = "seed") -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _too_few(effect: Effect) -> str:
    if effect.seeds == 0 and not effect.idle:
        return "not run yet"
    comparable = len(effect.differences) if effect.seeds >= FEWEST_SEEDS else effect.seeds
    return f"{_count(comparable)} to compare, at least {FEWEST_SEEDS} are needed"


def judge_together(effects: Sequence[Effect], claimed: Range | Sequence[Range]) -> Judgement:
    """All panels of a comparison as one: their mean difference, each panel weighing the same.

    Only panels with enough seeds take part; of several claimed ranges the mean is judged, as the
    differences are. A bootstrap of few seeds cannot be wider than the values it has, so that
    Student's interval is its least width. The p is uncorrected: it is for the caller to correct
    over several comparisons.
    """
    ranges = _for_each(effects, claimed)
    known = [
        place
        for place, one in enumerate(effects)
        if one.seeds >= FEWEST_SEEDS and not one.idle and (_measured(one) or _diverged(one))
    ]
    if len(known) < 2:
        enough = f"{len(known)} of {len(effects)} panels with at least {FEWEST_SEEDS} seeds"
        return Judgement(reason=f"{enough}, two are needed", parts=tuple(known))
    parts = tuple(place for place in known if _measured(effects[place]))
    if not parts:
        found = _by_divergence([effects[place] for place in known], ranges[0])
        return replace(found, parts=tuple(known))
    panels = [effects[place] for place in parts]
    low, high = (
        float(np.mean([getattr(ranges[place], end) for place in parts])) for end in ("low", "high")
    )
    return replace(
        _mean_judged(panels, replace(ranges[0], low=low, high=high), effects), parts=parts
    )


def _mean_judged(panels: list[Effect], claimed: Range, effects: Sequence[Effect]) -> Judgement:
    """The mean of the panels that have one; all `effects` may stand against it."""
    samples = _samples(panels)
    if any(len(sample.differences) < FEWEST_SEEDS for _, sample in samples):
        words = f"fewer than {FEWEST_SEEDS} seeds that its panels have in common"
        return Judgement(reason=words)
    mean = float(sum(weight * np.mean(sample.differences) for weight, sample in samples))
    estimate = _estimate(mean, samples, panels)
    raw = _p_values(estimate, claimed)
    if estimate is None or raw is None:
        return Judgement(mean=mean, reason=NO_SPREAD)
    low, high = estimate.interval()
    if estimate.error:
        drawn = bootstrap([(weight, one.differences) for weight, one in samples], estimate.freedom)
        low, high = min(low, drawn[0]), max(high, drawn[1])
    return _decided(Judgement(UNDECIDED, mean, low, high), raw, raw, claimed, effects)


def _samples(panels: Sequence[Effect]) -> list[tuple[float, Effect]]:
    """Independent samples, each with its weight in the mean of all panels.

    A seed draws the same for all panels, so that panels with common seeds are one sample: their
    means, seed by seed. Panels without any common seed are samples of their own.
    """
    groups: list[list[Effect]] = []
    for panel in panels:
        shared = [
            group
            for group in groups
            if any(panel.by_seed.keys() & one.by_seed.keys() for one in group)
        ]
        groups = [group for group in groups if group not in shared]
        groups.append([*itertools.chain(*shared), panel])
    samples = []
    for group in groups:
        seeds = sorted(set.intersection(*(set(one.by_seed) for one in group)))
        means = tuple(float(np.mean([one.by_seed[seed] for one in group])) for seed in seeds)
        noise = max(one.noise for one in group)
        samples.append((len(group) / len(panels), Effect(means, noise=noise, names=tuple(seeds))))
    return samples


def _estimate(
    mean: float, samples: Sequence[tuple[float, Effect]], panels: Sequence[Effect]
) -> Estimate | None:
    """Of a weighted mean of independent samples, after Welch; of a single one, Student's t."""
    variances = np.array([weight**2 * sample.variance for weight, sample in samples])
    freedoms = np.array([len(sample.differences) - 1 for _, sample in samples])
    if not variances.any():
        differs = any(itertools.chain(*(panel.differences for panel in panels)))
        return None if differs else Estimate(0.0, 0.0, float(freedoms.min()))
    freedom = float(variances.sum() ** 2 / (variances**2 / freedoms).sum())
    return Estimate(mean, math.sqrt(variances.sum()), freedom)


def bootstrap(
    samples: Sequence[tuple[float, Sequence[float]]], freedom: float
) -> tuple[float, float]:
    """The interval of the weighted mean of some samples, resampling seeds within each.

    Few seeds make a plain percentile interval too narrow, for two reasons (Hesterberg 2015): n
    resampled values spread less by a factor of sqrt((n - 1) / n), which is undone here, and normal
    quantiles stand where Student's belong, so that the percentiles are taken farther out.
    """
    generator = np.random.default_rng(BOOTSTRAP_SEED)
    total = np.zeros(RESAMPLES)
    for weight, sample in samples:
        values = np.asarray(sample, float)
        count = len(values)
        drawn = values[generator.integers(count, size=(RESAMPLES, count))].mean(axis=1)
        widened = (drawn - values.mean()) * math.sqrt(count / (count - 1))
        total += weight * (values.mean() + widened)
    share = float(stats.norm.cdf(stats.t.ppf((1 - CONFIDENCE) / 2, freedom)))
    low, high = np.quantile(total, [share, 1 - share])
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

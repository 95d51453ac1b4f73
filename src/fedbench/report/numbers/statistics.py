"""Numbers over seeds that keep what was not measured: summaries, rounds to a target, speed-ups,
equal budgets.

A seed that diverged, is missing or did not reach the target is counted, never averaged away: a mean
over the lucky seeds would make an unstable method look good. Tests of significance are in
significance.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import (  # exact for floats, so independent of the order of the seeds
    mean,
    median,
    stdev,
)

NOISE = 1e-9  # a target, budget or tolerance is met when missed by no more: 0.1 + 0.2 reaches 0.3


def plain(value: float, digits: int = 4) -> str:
    """A number with so many significant digits, its whole part in full, without exponent or
    trailing zeros.
    """
    if not math.isfinite(value):
        return "*"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def entropy(values: Sequence[float]) -> float:
    """-sum p log p of the values as shares of their sum, which must be finite and positive."""
    total = math.fsum(values)
    if not (math.isfinite(total) and total > 0):
        return math.nan
    shares = [value / total for value in values if value > 0]
    return -math.fsum(share * math.log(share) for share in shares)


@dataclass(frozen=True)
class Summary:
    """A measure over the seeds of a cell. Mean, standard deviation and range are of the `count`
    values that count.
    """

    mean: float | None  # None when no value counts
    std: float | None  # of a sample (n - 1); None for fewer than two values
    count: int
    wanted: int  # seeds that were asked for
    diverged: int
    low: float | None
    high: float | None


def summarise(values: Sequence[float | None], wanted: int, diverged: int = 0) -> Summary:
    """Of one value for each seed; None and non-finite ones do not count. Those of diverged runs are
    not to be given.
    """
    counted = [float(value) for value in values if value is not None and math.isfinite(value)]
    if len(values) + diverged > wanted:
        raise ValueError(
            f"{len(values)} values and {diverged} diverged seeds, but {wanted} seeds were asked for"
        )
    if not counted:
        return Summary(None, None, 0, wanted, diverged, None, None)
    std = stdev(counted) if len(counted) > 1 else None
    return Summary(mean(counted), std, len(counted), wanted, diverged, min(counted), max(counted))


def first_reaching(
    costs: Sequence[float], accuracies: Sequence[float], target: float, window: int = 1
) -> float | None:
    """The cost of the first evaluation at which the mean of the last `window` accuracies is at
    least the target.

    Costs are what has been spent at each evaluation: the round, bytes, gradients. A mean over fewer
    than `window` evaluations is none, so nothing is reached before there are so many. NOISE below
    the target is at the target.
    """
    if window < 1:
        raise ValueError(f"window={window}: at least 1")
    for end, (cost, _) in enumerate(zip(costs, accuracies, strict=True), start=1):
        if end >= window and math.fsum(accuracies[end - window : end]) / window >= target - NOISE:
            return float(cost)
    return None


def accuracy_at(costs: Sequence[float], accuracies: Sequence[float], budget: float) -> float | None:
    """The best accuracy for at most that cost; None when the first evaluation costs more
    already.
    """
    pairs = zip(costs, accuracies, strict=True)
    allowed = budget + NOISE * abs(budget)
    return max(
        (float(best) for cost, best in pairs if cost <= allowed and not math.isnan(best)),
        default=None,
    )


def equal_budget(cost_lists: Sequence[Sequence[float]]) -> float | None:
    """The largest cost that every run has spent, at which all can be compared; None when a run was
    never evaluated.
    """
    if not cost_lists or not all(len(costs) for costs in cost_lists):
        return None
    return float(min(costs[-1] for costs in cost_lists))


@dataclass(frozen=True)
class Censored:
    """The median cost over seeds to reach a target, where a seed that did not reach it took longer
    than its limit.

    `value` is the median when `sign` is empty, and a lower bound of it when `sign` is ">". Neither
    is known when no seed was run, or when all diverged.
    """

    value: float | None
    sign: str  # "" or ">"
    reached: int
    count: int  # seeds that were run, diverged ones included
    wanted: int
    diverged: int
    low: float | None  # of the seeds that reached the target
    high: float | None
    limit: float | None  # the longest that a seed was tried, diverged ones aside

    @property
    def failed(self) -> bool:
        """Half of the seeds or more did not reach the target, so that the median did not."""
        return self.count > 0 and (self.sign == ">" or self.value is None)

    @property
    def text(self) -> str:
        """`23`, `> 100`, `*` when all diverged, `-` when there is no run."""
        if self.value is None:
            return "*" if self.failed else "-"
        return f"{self.sign} {plain(self.value)}".strip()

    @property
    def range(self) -> str:
        """`20 to 45`, `20 to > 100` when a seed did not get there; nothing when none did."""
        if self.low is None or self.high is None:
            return ""
        end = (
            plain(self.high)
            if self.reached == self.count
            else f"> {plain(self.limit or self.high)}"
        )
        return f"{plain(self.low)} to {end}"


def censored(
    values: Sequence[float | None],
    limits: Sequence[float],
    diverged: Sequence[bool] | None = None,
    wanted: int | None = None,
) -> Censored:
    """Of one value for each seed that was run (None = not reached) and the last round, or cost,
    that it ran to.

    An unreached seed stands as infinity in the median. Should that be infinite, its lower bound is
    the median with limits in place of the unreached; with an even number of seeds that is halfway
    between two of them. A diverged seed counts as unreached, whatever it reached before, and as
    tried as long as the others: it would never have.
    """
    lost = [False] * len(values) if diverged is None else list(diverged)
    seeds = list(zip(values, limits, lost, strict=True))
    wanted = len(seeds) if wanted is None else wanted
    if len(seeds) > wanted:
        raise ValueError(f"{len(seeds)} seeds, but {wanted} were asked for")
    costs = [math.inf if value is None or gone else float(value) for value, _, gone in seeds]
    reached = [cost for cost in costs if cost < math.inf]
    limit = max((float(end) for _, end, gone in seeds if not gone), default=None)
    value, sign = (median(costs) if costs else None), ""
    if value == math.inf:
        value = None
        if limit is not None:
            ends = [limit if gone else float(end) for _, end, gone in seeds]
            value, sign = median(min(cost, end) for cost, end in zip(costs, ends, strict=True)), ">"
    low, high = (min(reached), max(reached)) if reached else (None, None)
    return Censored(value, sign, len(reached), len(seeds), wanted, sum(lost), low, high, limit)


@dataclass(frozen=True)
class SpeedUp:
    """How many times less a method needs than its baseline; with a sign, a bound of that."""

    value: float | None  # None when undefined
    sign: str  # "", ">" (the baseline did not get there), "<" (the method itself did not)
    failed: bool  # the method itself did not reach the target

    @property
    def text(self) -> str:
        """`4.3x`, `> 2.1x`, `-`. A bound is rounded to the side on which it stays true."""
        if self.value is None:
            return "-"
        scale = 10 if self.value >= 1 else 100
        roundings: dict[str, Callable[[float], int]]
        roundings = {">": math.floor, "<": math.ceil, "": round}
        rounding = roundings[self.sign]
        nearest = round(self.value * scale, 6)  # float noise is not to move a bound by a whole step
        return f"{self.sign} {rounding(nearest) / scale:.{1 if scale == 10 else 2}f}x".strip()


def speed_up(baseline: Censored, own: Censored) -> SpeedUp:
    """The ratio of the medians; undefined when both did not reach the target, or one has no known
    bound.
    """
    undefined = SpeedUp(None, "", own.failed)
    if baseline.value is None or not own.value or (baseline.sign and own.sign):
        return undefined
    sign = ">" if baseline.sign else "<" if own.sign else ""
    return SpeedUp(baseline.value / own.value, sign, own.failed)

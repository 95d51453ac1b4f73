"""How a measured number compares with the published one: information in its cell, no judgement of
the paper.
"""

from __future__ import annotations

import math
import re

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import Measure, Tolerance
from fedbench.report.numbers.significance import SIGNIFICANT
from fedbench.report.numbers.statistics import NOISE, plain


def tolerance_for(measure: Measure, std: float | None = None) -> Tolerance:
    """The measure's own, or that of its kind; `std` is the published one, if any."""
    if measure.tolerance is not None:
        match = measure.tolerance.match
        return Tolerance(match, max(match, measure.tolerance.near))
    if measure.is_accuracy or measure.percent:
        match = max(1.0, 2 * (std or 0.0))
        return Tolerance(match, max(3.0, match))
    if measure.name == "mcnemar":
        return Tolerance(0.0, 0.0, threshold=SIGNIFICANT)
    match, near = (0.25, 1.0) if measure.is_cost or measure.name == "speed_up" else (0.10, 0.5)
    return Tolerance(match, near, relative=True)


def compare(
    value: float | None,
    published: Published | None,
    tolerance: Tolerance,
    sign: str = "",
    failed: bool = False,
    undecided: bool = False,
) -> tuple[str, str]:
    """The verdict, one of output.model.VERDICTS, and the difference in words.

    `value` is None without a measurement. `sign` says that it is only a bound (">" or "<"), and
    `failed` that the runs diverged or did not reach their target: the paper's star. (Censored and
    SpeedUp have all three.) `undecided`: what was not reached might be, in as many rounds as the
    paper took, so that it says nothing for or against a star.
    """
    if (
        published is None
        or published.flag == "none"
        or (published.value is None and published.flag != "star")
    ):
        return "unpublished", ""
    if value is None and not failed:
        return "unmeasured", ""
    if published.flag == "star":
        if undecided:
            return "unmeasured", ""
        same = (  # `10 (*)`: it stayed at what guessing gives
            published.value is not None
            and value is not None
            and _exact(value, published.value, tolerance) == "match"
        )
        return ("match" if failed or same else "miss"), ""
    printed = published.value
    if printed is None or (undecided and value is None):
        return "unmeasured", ""
    if value is None or (
        failed and not sign
    ):  # it diverged where the paper has a number, or more than `over` rounds
        return "miss", ""
    text = f"{sign} {difference(value, published, tolerance)}".strip()
    if published.flag == "over":
        return _over(value, printed, tolerance, sign), text
    if sign:
        return _bounded(value, printed, sign, tolerance), text
    return _exact(value, printed, tolerance), text


def _exact(value: float, published: float, tolerance: Tolerance) -> str:
    if tolerance.threshold is not None:
        return (
            "match"
            if (value < tolerance.threshold) == (published < tolerance.threshold)
            else "miss"
        )
    away = _deviation(value, published, tolerance.relative) - NOISE
    return "match" if away <= tolerance.match else "near" if away <= tolerance.near else "miss"


def _bounded(value: float, published: float, sign: str, tolerance: Tolerance) -> str:
    """A bound that excludes a match is a miss; one that the number may still be beyond, or near,
    decides nothing.
    """
    beyond = value > published if sign == ">" else value < published
    return "miss" if beyond and _exact(value, published, tolerance) != "match" else "unmeasured"


def _over(value: float, published: float, tolerance: Tolerance, sign: str) -> str:
    """Against "more than 1000": a number above it agrees, and so does a run that got nowhere in
    1000 rounds.
    """
    if sign == "<":
        return "miss" if value <= published else "unmeasured"
    if value > published or (sign and value == published):
        return "match"
    if sign:
        return "unmeasured"
    return "miss" if _exact(value, published, tolerance) == "miss" else "near"


def _deviation(value: float, published: float, relative: bool) -> float:
    """Relative: by how much the larger exceeds the smaller, so that half and double are equally
    far.
    """
    if not relative or value == published:
        return abs(value - published)
    smaller, larger = sorted((abs(value), abs(published)))
    if value * published <= 0 or not smaller / larger:  # opposite, zero, or as good as zero
        return math.inf
    return larger / smaller - 1


def difference(value: float, published: Published, tolerance: Tolerance) -> str:
    """`+0.35` with the decimals that the paper prints, `x0.8` where factors count, for p-values the
    side.
    """
    printed = published.value
    if printed is None:
        return ""
    if tolerance.threshold is not None:
        same = _exact(value, printed, tolerance) == "match"
        return f"{'same' if same else 'other'} side of {tolerance.threshold:g}"
    if tolerance.relative and printed:
        factor = value / printed
        return f"x{plain(factor, 3 if abs(factor) >= 1 else 2)}"
    decimals = _decimals(published.printed, printed)
    away = round(value - printed, decimals) + 0.0  # no -0.00
    return f"{away:+.{decimals}f}"


def _decimals(printed: str, value: float) -> int:
    """Those of the number in the printed text that is the value; `23 (4.3x)` is printed for two
    measures.
    """
    numbers = re.findall(r"\d+(?:\.\d+)?", printed.replace(",", ""))
    own = [number for number in numbers if float(number) == abs(value)]
    return len((own or numbers or ["0.00"])[0].partition(".")[2])

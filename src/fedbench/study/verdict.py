"""How a measured number compares with the published one, and whether what a paper claims is seen in
the runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedbench.study.experiment import Published
from fedbench.study.model import Claim
from fedbench.study.statistics import NOISE, plain

ACCURACIES = ("best_accuracy", "final_accuracy", "mean_accuracy_last", "area")
COSTS = ("rounds_to", "bytes_to", "gradients_to", "seconds_to", "speed_up")
SIGNIFICANT = 0.05
LISTED = 3  # columns of a claim that are told one by one


@dataclass(frozen=True)
class Tolerance:
    """How far a measured number may be from the published one to match it, or to be near."""

    match: float  # in the measure's unit, or when relative, 0.25 for a factor of 1.25 either way
    near: float
    relative: bool
    threshold: float | None = None  # of p-values: all that counts is the side of it


def tolerance_for(measure: str | Mapping[str, Any], std: float | None = None) -> Tolerance:
    """Of a measure as an experiment file gives it, its own or by its name; `std` is the published
    one, if any.
    """
    spec = {"name": measure} if isinstance(measure, str) else measure
    own = spec.get("tolerance")
    if own:
        match = float(own["match"])
        return Tolerance(match, max(match, float(own.get("near", match))), relative=False)
    if spec["name"] in ACCURACIES or spec.get("percent"):
        match = max(1.0, 2 * (std or 0.0))
        return Tolerance(match, max(3.0, match), relative=False)
    if spec["name"] == "mcnemar":
        return Tolerance(0.0, 0.0, relative=False, threshold=SIGNIFICANT)
    match, near = (0.25, 1.0) if spec["name"] in COSTS else (0.10, 0.5)
    return Tolerance(match, near, relative=True)


def compare(
    value: float | None,
    published: Published | None,
    tolerance: Tolerance,
    sign: str = "",
    failed: bool = False,
    undecided: bool = False,
) -> tuple[str, str]:
    """The verdict, one of model.VERDICTS, and the difference in words.

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
        chance = (
            published.value is not None and value is not None
        )  # `10 (*)`: it stayed at what guessing gives
        same = chance and _exact(value, published.value, tolerance) == "match"
        return ("match" if failed or same else "miss"), ""
    if undecided and value is None:
        return "unmeasured", ""
    if value is None or (
        failed and not sign
    ):  # it diverged where the paper has a number, or more than `over` rounds
        return "miss", ""
    text = f"{sign} {difference(value, published, tolerance)}".strip()
    if published.flag == "over":
        return _over(value, published.value, tolerance, sign), text
    if sign:
        return _bounded(value, published.value, sign, tolerance), text
    return _exact(value, published.value, tolerance), text


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
    if tolerance.threshold is not None:
        same = _exact(value, published.value, tolerance) == "match"
        return f"{'same' if same else 'other'} side of {tolerance.threshold:g}"
    if tolerance.relative and published.value:
        factor = value / published.value
        return f"x{plain(factor, 3 if abs(factor) >= 1 else 2)}"
    away = round(value - published.value, _decimals(published)) + 0.0  # no -0.00
    return f"{away:+.{_decimals(published)}f}"


def _decimals(published: Published) -> int:
    """Those of the number in the printed text that is the value; `23 (4.3x)` is printed for two
    measures.
    """
    numbers = re.findall(r"\d+(?:\.\d+)?", published.printed.replace(",", ""))
    own = [number for number in numbers if float(number) == abs(published.value)]
    return len((own or numbers or ["0.00"])[0].partition(".")[2])


def check_claim(
    claim: Mapping[str, Any], values: Mapping[Iterable[tuple[str, str]], float | None], higher: bool
) -> Claim:
    """Whether in every column the one is better than each of the others; strictly, unless the claim
    allows ties.

    `values` are those of the claim's measure, by (axis, label) pairs as in Cell.key; None is not
    measured. Diverged or never reached is infinite, with the sign that is worst: it loses to every
    number, and says nothing against its like. `higher`: a higher value is better. What was not
    measured is left out, and said so.
    """
    if "below" in claim:
        return _check_below(claim, values)
    columns = _columns(claim, values)
    tested = {
        name: found
        for name, pairs in columns.items()
        if (found := [pair for pair in pairs if pair.known])
    }
    if not tested:
        return Claim(claim["text"], "untested", "no column is measured")
    ties = bool(claim.get("ties"))
    lost = {
        name: [pair for pair in pairs if not pair.holds(higher, ties)]
        for name, pairs in tested.items()
    }
    lost = {name: pairs for name, pairs in lost.items() if pairs}
    holding = len(tested) - len(lost)
    verdict = "partly" if lost and holding else "fails" if lost else "holds"
    several = len(_listed(claim["better"])) > 1
    parts = [f"{holding} of {len(tested)} column{'s' if len(tested) > 1 else ''}"]
    parts += [_failure(name, pairs, higher, several) for name, pairs in list(lost.items())[:LISTED]]
    parts += [f"and {len(lost) - LISTED} more"] if len(lost) > LISTED else []
    every = sum(len(pairs) for pairs in columns.values())
    missing = every - sum(len(pairs) for pairs in tested.values())
    parts += [f"{missing} of {every} comparisons not measured"] if missing else []
    return Claim(claim["text"], verdict, "; ".join(parts))


def _check_below(
    claim: Mapping[str, Any], values: Mapping[Iterable[tuple[str, str]], float | None]
) -> Claim:
    """Whether every number that was measured is below the one that the claim names."""
    where, limit = claim.get("where") or {}, float(claim["below"])
    wanted = {
        _title(dict(key)): value
        for key, value in values.items()
        if all(dict(key).get(axis) in _listed(labels) for axis, labels in where.items())
    }
    known = {title: value for title, value in wanted.items() if value is not None}
    if not known:
        return Claim(claim["text"], "untested", "nothing is measured")
    above = [f"{title} {plain(value)}" for title, value in known.items() if not value < limit]
    verdict = "holds" if not above else "partly" if len(above) < len(known) else "fails"
    parts = [f"{len(known) - len(above)} of {len(known)} cells below {limit:g}"]
    parts += (
        [f"not: {', '.join(above[:LISTED])}{' ...' if len(above) > LISTED else ''}"]
        if above
        else []
    )
    missing = len(wanted) - len(known)
    parts += [f"{missing} of {len(wanted)} cells not measured"] if missing else []
    return Claim(claim["text"], verdict, "; ".join(parts))


@dataclass(frozen=True)
class _Pair:
    """A comparison that a claim makes in one column."""

    better: str
    than: str
    own: float | None
    other: float | None

    @property
    def known(self) -> bool:
        """Two that both diverged, or both never got there, are not compared."""
        return None not in (self.own, self.other) and (
            math.isfinite(self.own) or math.isfinite(self.other)
        )

    def holds(self, higher: bool, ties: bool) -> bool:
        return (self.own > self.other if higher else self.own < self.other) or (
            ties and self.own == self.other
        )


def _columns(
    claim: Mapping[str, Any], values: Mapping[Iterable[tuple[str, str]], float | None]
) -> dict[str, list[_Pair]]:
    """The comparisons of a claim by column, a column being a combination of labels of all other
    axes.
    """
    axis, where = claim.get("axis", "method"), claim.get("where") or {}
    columns: dict[str, dict[str, float | None]] = {}
    for key, value in values.items():
        labels = dict(
            key if isinstance(key, tuple) else sorted(key)
        )  # a set has no order to name a column by
        own = labels.pop(axis)
        if all(labels.get(name) in _listed(wanted) for name, wanted in where.items()):
            columns.setdefault(_title(labels), {})[own] = value
    sides = [
        (one, two)
        for one in _listed(claim["better"])
        for two in _listed(claim["than"])
        if one != two
    ]
    return {
        title: [_Pair(one, two, numbers.get(one), numbers.get(two)) for one, two in sides]
        for title, numbers in columns.items()
    }


def _listed(names: Any) -> list[str]:
    return [str(name) for name in names] if isinstance(names, list | tuple) else [str(names)]


def _title(labels: Mapping[str, str]) -> str:
    """`CIFAR100, alpha 0.5`: a bare number needs the name of its axis."""
    words = [
        f"{axis} {label}" if re.fullmatch(r"[-+.\d%e]+", label) else label
        for axis, label in labels.items()
    ]
    return ", ".join(words)


def _failure(column: str, pairs: list[_Pair], higher: bool, several: bool) -> str:
    """The strongest of those that were not beaten, for each that should have."""
    told = []
    for name in dict.fromkeys(pair.better for pair in pairs):
        mine = [pair for pair in pairs if pair.better == name]
        worst = (max if higher else min)(mine, key=lambda pair: pair.other)
        own, other = _apart(worst.own, worst.other)
        told.append(f"{name + ' ' if several else ''}{own} against {other} ({worst.than})")
    return (f"not in {column}: " if column else "") + ", ".join(told)


def _apart(own: float, other: float) -> tuple[str, str]:
    """Two numbers in as few digits, four or more, as show that they differ."""
    for digits in range(4, 17):
        texts = plain(own, digits), plain(other, digits)
        if texts[0] != texts[1] or own == other:
            break
    return texts

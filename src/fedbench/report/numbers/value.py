"""A measure of a cell over its seeds, in words and as a number.

A cell is the rows of its runs in the table of a study that has the columns of the measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedbench.report.experiments.spec import ComparedTo, McNemar, Measure, Place, SpeedUp
from fedbench.report.numbers.measures import readings_in
from fedbench.report.numbers.readers import UNREADABLE, Reading
from fedbench.report.numbers.runs import FINISHED, Study
from fedbench.report.numbers.significance import SIGNIFICANT, McNemarSeeds, mcnemar_pooled
from fedbench.report.numbers.statistics import (
    Censored,
    Summary,
    censored,
    plain,
    speed_up,
    summarise,
)

NOT_RUN = (
    "missing",
    "damaged",
    "not archived",
    "no target",
)  # states of readings that say nothing about the method


@dataclass
class Value:
    """A measure of a cell over its seeds, in words and as a number."""

    text: str
    number: float | None = None  # the mean or median; None without one
    sign: str = ""  # ">" or "<" when the number is only a bound
    failed: bool = False  # diverged, or never reached
    behind: bool = False  # of a test: the one that should be better is significantly worse
    detail: str = ""


def value_of(study: Study, runs: pd.DataFrame, measure: Measure) -> Value:
    """Of the runs of a cell."""
    if isinstance(measure, SpeedUp):
        return _speed_up(study, runs, measure)
    if isinstance(measure, McNemar):
        return _mcnemar(study, runs, measure)
    if isinstance(measure, ComparedTo) and measure.name == "ratio_to":
        return _ratio_to(study, runs, measure)
    found = readings_in(runs, measure.label)
    if isinstance(measure, ComparedTo):
        if _is_itself(study, runs, measure.cell):
            return Value("-", detail="it is what the others are compared with")
        return plain_value(found, 2 if measure.percent else None)
    if isinstance(measure, Place):
        return plain_value(found, None)
    if measure.over_seeds == "maximum":
        return maximum_value(found, 2)
    if measure.is_cost:
        return cost_value(found)
    return plain_value(found, 2 if measure.is_accuracy else None)


def _speed_up(study: Study, runs: pd.DataFrame, measure: SpeedUp) -> Value:
    """Of the measure that `of` names, against the cell of the baseline, all other labels being
    the same.
    """
    if runs["reference"].iloc[0]:
        return Value("-", detail="it is no federated method")
    labels = study.labels(runs)
    axis, baseline = next(iter(measure.baseline.items()))
    if isinstance(baseline, dict):  # every method has its own
        baseline = baseline.get(labels[axis], labels[axis])
    other = study.sibling(labels, {axis: baseline})
    if other is None:
        return Value("-")
    theirs, own = (readings_in(one, measure.of) for one in (other, runs))
    ratio = speed_up(as_censored(theirs), as_censored(own))
    part = seeds_part(theirs, own) if ratio.value is not None else ""
    return Value(
        ratio.text + part, ratio.value, ratio.sign, ratio.failed, detail=f"against {baseline}"
    )


def _mcnemar(study: Study, runs: pd.DataFrame, measure: McNemar) -> Value:
    if _is_itself(study, runs, measure.against):
        return Value("-", detail="it is what the others are tested against")
    other = study.sibling(study.labels(runs), measure.against)
    tested = None if other is None else mcnemar_between(study, runs, other, measure.predictions)
    if tested is None:
        return Value("-")
    counts = ", ".join(f"{test.n10} against {test.n01}" for test in tested.seeds)
    name = next(iter(measure.against.values()))
    detail = (
        f"{len(tested.seeds)} seeds; images that only this method, or only {name}, gets right:"
        f" {counts}"
    )
    ahead = sum(test.n01 - test.n10 for test in tested.seeds)
    behind = tested.p < SIGNIFICANT and ahead < 0
    text = f"{tested.p:.2g}" + (f" ({name} is behind)" if behind else "")
    text += seeds_text(len(tested.seeds), len(runs))
    return Value(text, tested.p, behind=behind, detail=detail)


def _is_itself(study: Study, runs: pd.DataFrame, changed: dict[str, Any]) -> bool:
    """Whether the cell with these labels in place of its own is the same one."""
    labels = study.labels(runs)
    other = study.sibling(labels, changed)
    return other is not None and study.labels(other) == labels


def mcnemar_between(
    study: Study, own: pd.DataFrame, other: pd.DataFrame, which: str
) -> McNemarSeeds | None:
    """Seed by seed, on the same images: both runs must hold the same labels of the same dataset."""
    known = [cell.loc[cell["status"] == FINISHED, ["seed", "folder"]] for cell in (own, other)]
    pairs = []
    for _, *folders in pd.merge(*known, on="seed").itertuples(index=False):
        one, two = map(study.files, folders)
        if one.summary["data"]["fingerprint"] != two.summary["data"]["fingerprint"]:
            continue
        try:
            ours, theirs = one.predictions, two.predictions
        except UNREADABLE:
            continue
        shapes = {
            (stored[key].shape if key in stored else None)
            for stored in (ours, theirs)
            for key in ("labels", which)
        }
        # Personal models have a row of predictions for each client: there are no two classifiers to
        # compare.
        if len(shapes) == 1 and (ours["labels"] == theirs["labels"]).all():
            pairs.append((ours["labels"], ours[which], theirs[which]))
    return mcnemar_pooled(pairs)


def _ratio_to(study: Study, runs: pd.DataFrame, measure: ComparedTo) -> Value:
    """Of the means over seeds of the measure that `of` names, to that of another cell."""
    other, of = study.sibling(study.labels(runs), measure.cell), study.measures[measure.of]
    if other is None:
        return Value("-")
    own, base = (value_of(study, one, of).number for one in (runs, other))
    if own is None or not base:
        return Value("-")
    part = seeds_part(*(readings_in(one, measure.of) for one in (runs, other)))
    return Value(
        f"{plain(own / base, 3)}x{part}", own / base, detail=f"{plain(own)} to {plain(base)}"
    )


def numbers_of(study: Study, runs: pd.DataFrame, measure: Measure) -> list[float]:
    """What a figure shows of a cell: a number for each seed that has one, or one of all seeds."""
    if measure.is_cost:  # a mean over those seeds that got there would hide the others
        median = cost_value(readings_in(runs, measure.label))
        return [] if median.sign or median.failed or median.number is None else [median.number]
    if isinstance(measure, McNemar | SpeedUp) or measure.name == "ratio_to":
        number = value_of(study, runs, measure).number
        return [] if number is None else [number]
    return list(runs[measure.label].dropna())


def plain_value(found: Sequence[Reading], decimals: int | None) -> Value:
    """Mean and standard deviation of what finished, and of how many seeds; `*` when one
    diverged.
    """
    diverged = sum(reading.state == "diverged" for reading in found)
    values = [reading.value for reading in found if reading.state == "ok"]
    summary = summarise(values, len(found), diverged)
    detail = "seeds: " + ", ".join(_seed_words(reading, decimals) for reading in found)
    if summary.mean is None:
        seeds = f" (0 of {len(found)} seeds)" if len(found) > 1 else ""
        return Value(f"*{seeds}" if diverged else "-", failed=bool(diverged), detail=detail)
    failed = 2 * diverged >= len(found)  # a mean over the lucky seeds is no result of the method
    text = summary_text(summary, decimals) + seeds_part(found)
    return Value(text, summary.mean, "", failed, detail=detail)


def seeds_part(*lists: Sequence[Reading]) -> str:
    """` *(2 of 3 seeds)` when a seed diverged, without star when one is missing; of several lists
    the worst counts.
    """
    complete = [
        [reading.state in ("ok", "unreached") for reading in found] for found in lists if found
    ]
    if all(map(all, complete)):
        return ""
    fewest = min(complete, key=lambda found: sum(found) / len(found))
    star = any(reading.state == "diverged" for found in lists for reading in found)
    return seeds_text(sum(fewest), len(fewest), star)


def seeds_text(count: int, wanted: int, star: bool = False) -> str:
    return "" if count == wanted else f" {'*' if star else ''}({count} of {wanted} seeds)"


def maximum_value(found: Sequence[Reading], decimals: int) -> Value:
    """The largest of all seeds, where a paper prints that instead of a mean."""
    mean = plain_value(found, decimals)
    values = [reading.value for reading in found if reading.value is not None]
    if not values:
        return mean
    text = f"{max(values):.{decimals}f}{seeds_part(found)}"
    return Value(text, max(values), "", mean.failed, detail=mean.detail)


def summary_text(summary: Summary, decimals: int | None) -> str:
    show = (lambda value: f"{value:.{decimals}f}") if decimals is not None else plain
    spread = f" ± {show(summary.std)}" if summary.std is not None else ""
    return f"{'-' if summary.mean is None else show(summary.mean)}{spread}"


def cost_value(found: Sequence[Reading]) -> Value:
    """The median over seeds, in which a seed that did not get there counts as later than all
    others.
    """
    median = as_censored(found)
    if not median.count:
        aimless = any(reading.state == "no target" for reading in found)
        return Value("-", detail="there is no target to reach" if aimless else "no seed was run")
    detail = f"{median.reached} of {median.count} seeds reached it" + (
        f", {median.range}" if median.range else ""
    )
    part = seeds_part(found)
    if median.value is None:  # all diverged: `*` says so
        part = seeds_text(0, len(found)) if len(found) > 1 else ""
    return Value(median.text + part, median.value, median.sign, median.failed, detail=detail)


def as_censored(found: Sequence[Reading]) -> Censored:
    run = [reading for reading in found if reading.state not in NOT_RUN]
    limits = [reading.limit or 0.0 for reading in run]
    lost = [reading.state == "diverged" for reading in run]
    return censored([reading.value for reading in run], limits, lost, len(found))


def _seed_words(reading: Reading, decimals: int | None) -> str:
    if reading.value is None:
        return {
            "diverged": "*",
            "damaged": "damaged",
            "not archived": "not archived",
            "unreached": f"> {plain(reading.limit or 0.0)}",
        }.get(reading.state, "-")
    return f"{reading.value:.{decimals}f}" if decimals is not None else plain(reading.value)

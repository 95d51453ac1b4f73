"""What a table's numbers are, in words: how each measure is taken, and how near to the published
number is near.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import (
    COST_OF,
    COSTS,
    ComparedTo,
    CostTo,
    DistanceTo,
    GradientNorm,
    LastRounds,
    Measure,
    Oscillation,
    Place,
    StaysAbove,
)
from fedbench.report.judgement.verdict import tolerance_for
from fedbench.report.numbers.statistics import plain


def caption(measures: Iterable[Measure], published: list[Published]) -> str:
    """One sentence for each measure that needs one."""
    return " ".join(filter(None, (_sentence(measure, published) for measure in measures)))


def _sentence(measure: Measure, published: list[Published]) -> str:
    printed = [one for one in published if one.measure == measure.label and one.flag != "none"]
    told = [text for text in (_definition(measure), _tolerance(measure) if printed else "") if text]
    return f"{measure.label}: {'; '.join(told)}." if told else ""


def _definition(measure: Measure) -> str:
    if isinstance(measure, StaysAbove):
        other = ", ".join(measure.cell.values())
        return f"the round from which on it stays above {other}, median over seeds"
    if measure.name == "largest_class":
        return (
            "what always guessing the most frequent class of the test set would score, in percent"
        )
    if isinstance(measure, Oscillation):
        changes = "mean absolute change between evaluations"
        return f"{changes} in the {measure.third} third of the rounds, in points"
    if isinstance(measure, CostTo):
        over = (
            "of a single evaluation"
            if measure.window == 1
            else f"as the mean of {measure.window} evaluations in a row"
        )
        until = f"until the test accuracy {over} reaches {_target(measure.target)}"
        return f"{COSTS[COST_OF[measure.name]].words} {until}, median over seeds"
    if isinstance(measure, LastRounds):
        return f"mean over the evaluations of the last {measure.rounds} rounds"
    if measure.name == "accuracy_at_best_val":
        return "test accuracy in the round with the best validation accuracy"
    if measure.name == "area":
        return "mean test accuracy over all rounds (the area under the curve)"
    if measure.over_seeds == "maximum":
        return "maximum over seeds"
    if isinstance(measure, ComparedTo) and measure.name == "difference_to":
        other = ", ".join(f"{axis} {_other(label)}" for axis, label in measure.cell.items())
        sides = (
            "that of {}, minus its own" if measure.reverse else "its own, minus that of {}"
        ).format(other)
        return f"{measure.of}, {sides}, seed by seed"
    if isinstance(measure, Place):
        return f"place by {measure.of}, 1 is the best; a diverged run is behind all others"
    if isinstance(measure, DistanceTo) and measure.of == "clients":
        return "root mean square over the clients, of the models that they sent"
    if isinstance(measure, GradientNorm) and measure.last is not None:
        return f"over the last {measure.last} rounds" if measure.last > 1 else "in the last round"
    return ""


def _other(label: Any) -> str:
    if not isinstance(label, dict):
        return str(label)
    *most, last = dict.fromkeys(map(str, label.values()))
    return f"{', '.join(most)} or {last}, as belongs to it" if most else last


def _target(target: Any) -> str:
    if not isinstance(target, dict):
        return f"{100 * float(target):g} %"
    if "best_of" in target:
        return f"what {', '.join(map(str, target['best_of'].values()))} reached at best"
    (axis, numbers), *_ = target.items()
    return f"({axis}) " + ", ".join(
        f"{label} {100 * float(number):g} %" for label, number in numbers.items()
    )


def _tolerance(measure: Measure) -> str:
    tolerance = tolerance_for(measure)
    if tolerance.threshold is not None:
        return f"match on the same side of {tolerance.threshold:g}"
    if tolerance.relative:
        return (
            f"match within a factor of {1 + tolerance.match:g}, near within {1 + tolerance.near:g}"
        )
    widened = (
        " (or 2 published standard deviations)"
        if measure.is_accuracy and measure.tolerance is None
        else ""
    )
    unit = " points" if measure.is_accuracy or measure.percent else ""
    return (
        f"match within {plain(tolerance.match)}{unit}{widened}, near within"
        f" {plain(tolerance.near)}{unit}"
    )

"""What a table's numbers are, in words: how each measure is taken, and how near to the published
number is near.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedbench.report.experiment import Published
from fedbench.report.measures import Measure
from fedbench.report.readers import COSTS
from fedbench.report.statistics import plain
from fedbench.report.verdict import tolerance_for


def caption(measures: Iterable[Measure], published: list[Published]) -> str:
    """One sentence for each measure that needs one."""
    return " ".join(filter(None, (_sentence(measure, published) for measure in measures)))


def _sentence(measure: Measure, published: list[Published]) -> str:
    printed = [one for one in published if one.measure == measure.label and one.flag != "none"]
    told = [text for text in (_definition(measure), _tolerance(measure) if printed else "") if text]
    return f"{measure.label}: {'; '.join(told)}." if told else ""


def _definition(measure: Measure) -> str:
    parameters = measure.parameters
    if measure.name == "stays_above":
        other = ", ".join(map(str, parameters["cell"].values()))
        return f"the round from which on it stays above {other}, median over seeds"
    if measure.name == "largest_class":
        return (
            "what always guessing the most frequent class of the test set would score, in percent"
        )
    if measure.name == "oscillation":
        third = parameters.get("third", "last")
        changes = "mean absolute change between evaluations"
        return f"{changes} in the {third} third of the rounds, in points"
    if measure.is_cost:
        window = int(parameters.get("window", 1))
        over = (
            "of a single evaluation"
            if window == 1
            else f"as the mean of {window} evaluations in a row"
        )
        until = f"until the test accuracy {over} reaches {_target(parameters['target'])}"
        return f"{COSTS[measure.name][1]} {until}, median over seeds"
    if measure.name == "mean_accuracy_last":
        return f"mean over the evaluations of the last {parameters['rounds']} rounds"
    if measure.name == "accuracy_at_best_val":
        return "test accuracy in the round with the best validation accuracy"
    if measure.name == "area":
        return "mean test accuracy over all rounds (the area under the curve)"
    if parameters.get("over_seeds") == "maximum":
        return "maximum over seeds"
    if measure.name == "difference_to":
        other = ", ".join(f"{axis} {_other(label)}" for axis, label in parameters["cell"].items())
        sides = (
            "that of {}, minus its own"
            if parameters.get("reverse")
            else "its own, minus that of {}"
        ).format(other)
        return f"{parameters['of']}, {sides}, seed by seed"
    if measure.name == "place":
        return f"place by {parameters['of']}, 1 is the best; a diverged run is behind all others"
    if measure.name == "distance_to" and parameters.get("of") == "clients":
        return "root mean square over the clients, of the models that they sent"
    if measure.name == "gradient_norm" and parameters.get("last"):
        return (
            f"over the last {parameters['last']} rounds"
            if parameters["last"] > 1
            else "in the last round"
        )
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
    tolerance = tolerance_for({"name": measure.name, **measure.parameters})
    if tolerance.threshold is not None:
        return f"match on the same side of {tolerance.threshold:g}"
    if tolerance.relative:
        return (
            f"match within a factor of {1 + tolerance.match:g}, near within {1 + tolerance.near:g}"
        )
    widened = (
        " (or 2 published standard deviations)"
        if measure.is_accuracy and "tolerance" not in measure.parameters
        else ""
    )
    unit = " points" if measure.is_accuracy or measure.parameters.get("percent") else ""
    return (
        f"match within {plain(tolerance.match)}{unit}{widened}, near within"
        f" {plain(tolerance.near)}{unit}"
    )

"""What the runs of a study say to the claims of its paper.

A claim compares two sides (methods, distributions, numbers of clients ...) in every panel: every
combination of the other axes' labels. Each comparison is judged over its panels together, which is
the headline, and panel by panel beneath it. A claim is supported when all of its comparisons are,
and contradicted when one of them is. Comparisons that it makes at paper scale alone are named, and
then it is supported in part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from fedbench.report.experiments.experiment import Experiment, Published
from fedbench.report.experiments.spec import PAPER, PARTS, SMOKE, Measure, Statement, column
from fedbench.report.judgement.effects import (
    Effect,
    Judgement,
    Range,
    Score,
    effect_of,
    judge_panels,
    judge_together,
    probability_of_improvement,
)
from fedbench.report.judgement.outcomes import (
    CONTRADICTED,
    IN_PART,
    NOT_TESTABLE,
    SUPPORTED,
    UNDECIDED,
    Claim,
    Comparison,
    Panel,
)
from fedbench.report.numbers.runs import DIVERGED, FINISHED, REFUSED, Study, groups
from fedbench.report.numbers.significance import SIGNIFICANT, holm
from fedbench.report.numbers.statistics import plain
from fedbench.report.numbers.value import value_of

LEAST_MARGIN = 1.0  # points, of an equivalence claim that states none
TOLD = 3  # comparisons that the one line about a claim names


@dataclass(frozen=True)
class PairedRuns:
    """Two sides in one panel, with what their runs scored."""

    own: str
    other: str
    setting: str
    scores: tuple[list[Score], list[Score]]
    published: float | None
    untestable: str  # why these runs decide nothing, or nothing
    runs: str  # which they are, to recognise the same comparison elsewhere
    seeds: tuple[int, ...]  # of the scores
    spread: float = 0.0  # the larger published standard deviation of the two


def judge_claims(study: Study, published: Sequence[Published]) -> list[Claim]:
    """All claims of the file; at smoke scale without any outcome. `study` has the measures."""
    claims = []
    for spec in study.experiment.claims:
        label = spec.measure or next(iter(study.measures), "")
        claim = _judge(spec, study.measures.get(label), study, published)
        claim.main = spec.main
        claim.reading = _is_reading(spec, study.experiment)
        if study.scale == SMOKE:
            claim = Claim(claim.text, "", main=claim.main, reading=claim.reading, key=claim.key)
        claims.append(claim)
    return claims


def _is_reading(spec: Statement, experiment: Experiment) -> bool:
    """Whether a claim is about a further reading of the paper, rather than about the first."""
    sides = [name for side in (spec.better, spec.than, spec.equal, spec.to) for name in side or []]
    readings = set(experiment.readings)
    kept = spec.where.values()
    return not readings.isdisjoint(sides) or any(readings.issuperset(labels) for labels in kept)


def _judge(
    spec: Statement, measure: Measure | None, study: Study, published: Sequence[Published]
) -> Claim:
    text = spec.text
    kinds = (spec.better, spec.equal, spec.above, spec.below, spec.between)
    if spec.untestable is not None or all(kind is None for kind in kinds):
        why = spec.untestable or "no measure of this program can test it"
        return Claim(text, NOT_TESTABLE, why, key=frozenset([text]))
    if measure is None:
        return Claim(text, NOT_TESTABLE, "its measure is not taken here", key=frozenset([text]))
    if measure.name == "mcnemar":
        return _all_significant(spec, measure, study)
    pairs = list(_paired_runs(spec, measure, study, published))
    claimed = [_range(spec, measure, pair) for pair in pairs]
    if None in claimed:
        why = f"it states no margin, and {measure.label} has no usual one"
        return Claim(text, NOT_TESTABLE, why, key=frozenset([text]))
    claim = _over_pairs(text, pairs, [one for one in claimed if one is not None], measure)
    if claim.outcome != NOT_TESTABLE:
        tested = {_name(pair) for pair in pairs if not pair.untestable}
        claim.untested = _untested(spec, measure, study.experiment, tested)
    return _in_part(claim)


def _in_part(claim: Claim) -> Claim:
    """What was not tested against everything that it names is not simply supported."""
    if claim.outcome == SUPPORTED and claim.untested:
        claim.outcome = IN_PART
    return claim


Name = tuple[str, str, str]  # of a comparison in a panel: one side, the other, the setting


def _name(pair: PairedRuns) -> Name:
    return pair.own, pair.other, pair.setting


def _untested(spec: Statement, measure: Measure, experiment: Experiment, tested: set[Name]) -> str:
    """Which of the comparisons that the claim makes at paper scale were not made: `FedBN, FedNova;
    7 of 8 panels`, sides and panels without any.
    """
    axes = list(experiment.axes)
    cells = pd.DataFrame([cell.labels for cell in experiment.cells(PAPER)], columns=axes)
    cells = _spoken_of(spec, experiment, cells)
    if _is_within(spec):
        sides = (measure.label, _limit(spec))
        wanted = [(*sides, title(labels)) for labels, _ in _panels(cells, axes)]
    else:
        wanted = [(one, two, title(labels)) for labels, one, two, *_ in _sided(spec, axes, cells)]
    missing = [name for name in wanted if name not in tested]
    if not missing:
        return ""
    known = {side for name in tested for side in name[:2]}
    sides_left = dict.fromkeys(side for name in missing for side in name[:2] if side not in known)
    panels = {setting for *_, setting in wanted}
    panels_left = panels - {setting for *_, setting in tested}
    parts = [", ".join(sides_left)] if sides_left else []
    parts += [f"{len(panels_left)} of {len(panels)} panels"] if panels_left else []
    return "; ".join(parts) or f"{len(missing)} of {len(wanted)} comparisons"


def _range(spec: Statement, measure: Measure, pair: PairedRuns) -> Range | None:
    """Where the claim says that the difference lies; None for an equivalence without a margin."""
    limits = spec.by or spec.between
    if limits is not None:
        low, high = limits
        return Range(low, high)
    if spec.equal is None:
        return Range(closed=spec.ties)
    if spec.margin is not None:
        margin = spec.margin
    elif not (measure.is_accuracy or measure.percent):
        return None
    else:
        margin = max(LEAST_MARGIN, 2 * pair.spread)
    return Range(-margin, margin, closed=True)


def _paired_runs(
    spec: Statement, measure: Measure, study: Study, published: Sequence[Published]
) -> Iterable[PairedRuns]:
    """Every comparison of the claim in every panel that has both sides."""
    within = _spoken_of(spec, study.experiment, study.runs)
    printed = {
        (frozenset(one.labels.items()), one.measure): one.value
        for one in published
        if one.flag == ""
    }
    spreads = {(frozenset(one.labels.items()), one.measure): one.std for one in published}
    if _is_within(spec):
        yield from _within_a_run(spec, measure, study, within, printed)
        return
    sign = 1.0 if measure.higher_is_better or spec.equal is not None else -1.0
    for labels, one, two, *both in _sided(spec, study.axes, within):
        own, other = same_seeds(*both)
        sides = [frozenset({**labels, spec.axis: name}.items()) for name in (one, two)]
        keys = [(side, measure.label) for side in sides]
        numbers = [printed.get(key) for key in keys]
        yield PairedRuns(
            one,
            two,
            title(labels),
            (scores(own, measure, sign), scores(other, measure, sign)),
            _difference(numbers, sign),
            _untestable(pd.concat([own, other])),
            f"{measure.unlabelled} {_names(own)} {_names(other)}",
            tuple(own["seed"]),
            max(spreads.get(key) or 0.0 for key in keys),
        )


def _spoken_of(spec: Statement, experiment: Experiment, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that the claim is about: those of `where`, and further readings if it names them."""
    for axis, labels in spec.where.items():
        frame = frame[frame[axis].isin(labels)]
    if not _is_reading(spec, experiment):
        frame = frame[~frame[list(experiment.axes)].isin(experiment.readings).any(axis=1)]
    return frame


def _sided(
    spec: Statement, axes: list[str], frame: pd.DataFrame
) -> Iterable[tuple[dict[str, str], str, str, pd.DataFrame, pd.DataFrame]]:
    """In every panel that has both: its labels, the two sides, and the rows of each."""
    axis = spec.axis
    sides = [
        (one, two)
        for one in spec.better or spec.equal or []
        for two in spec.than or spec.to or []
        if one != two
    ]
    for labels, panel in _panels(frame, [name for name in axes if name != axis]):
        for one, two in sides:
            own, other = (panel[panel[axis] == name] for name in (one, two))
            if not own.empty and not other.empty:
                yield labels, one, two, own, other


def _is_within(spec: Statement) -> bool:
    """Whether the claim compares numbers of the same run."""
    return spec.better is None and spec.equal is None


def _limit(spec: Statement) -> str:
    """What a run's number is compared with: another measure, or a number."""
    return f"{spec.below or 0.0:g}" if spec.above is None else spec.above


def _within_a_run(
    spec: Statement,
    measure: Measure,
    study: Study,
    within: pd.DataFrame,
    printed: Mapping[Any, float | None],
) -> Iterable[PairedRuns]:
    """One measure of a run against another of the same run, or against a number.

    A claim of lying between two numbers takes the measure as it is, against 0.
    """
    sign = 1.0 if spec.below is None else -1.0
    limit, other = spec.below or 0.0, _limit(spec)
    for labels, panel in _panels(within, study.axes):
        key = frozenset(labels.items())
        numbers = [printed.get((key, measure.label))]
        sides = [scores(panel, measure, sign)]
        if spec.above is not None:
            second = study.measures[other]
            sides.append(scores(panel, second, sign))
            numbers.append(printed.get((key, other)))
        else:
            sides.append([Score(sign * limit)] * len(panel))
            numbers.append(limit)
        yield PairedRuns(
            measure.label,
            other,
            title(labels),
            (sides[0], sides[1]),
            _difference(numbers, sign),
            _untestable(panel),
            f"{measure.unlabelled} {other} {_names(panel)}",
            tuple(panel["seed"]),
        )


def _panels(runs: pd.DataFrame, axes: list[str]) -> Iterable[tuple[dict[str, str], pd.DataFrame]]:
    """The runs of each combination of labels, in the order of the file."""
    for labels, panel in groups(runs, axes):
        yield dict(zip(axes, labels, strict=True)), panel


def same_seeds(own: pd.DataFrame, other: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both sides by seed, which redraws partition, weights, cohorts and batches alike for both."""
    seeds = sorted(set(own["seed"]) & set(other["seed"]))
    one, two = (side.set_index("seed").loc[seeds].reset_index() for side in (own, other))
    return one, two


def scores(runs: pd.DataFrame, measure: Measure, sign: float) -> list[Score]:
    """Higher is better; what was not reached is no better than what was tried.

    With a sign of 1, rounds are taken as they are, and what was not reached takes more of them.
    """
    columns = ["status", *(column(measure.label, part) for part in PARTS)]
    found = []
    for status, value, state, limit in runs[columns].itertuples(index=False, name=None):
        if status == DIVERGED:
            found.append(Score(-math.inf))
        elif state == "unreached" and measure.is_cost:
            found.append(Score(sign * limit, at_best=sign < 0, at_least=sign > 0))
        else:
            found.append(Score(None if math.isnan(value) else sign * value))
    return found


def _difference(numbers: Sequence[float | None], sign: float) -> float | None:
    own, other = numbers
    return None if own is None or other is None else sign * (own - other)


def _untestable(runs: pd.DataFrame) -> str:
    """Why runs decide nothing: another network or other data, or they cannot be run here."""
    reasons = [reason for reason in runs["excluded"] if reason]
    refused = runs[runs["status"] == REFUSED]
    reasons += [problem.strip().splitlines()[-1] for problem in refused["problem"] if problem]
    return reasons[0] if reasons else ""


def _names(runs: pd.DataFrame) -> str:
    """Which runs: by their folders; those that cannot be run have none, but a seed and labels."""
    labels = runs.loc[:, :"overrides"].astype(str).agg(" ".join, axis=1)
    return ",".join(sorted(runs["folder"].where(runs["folder"] != "", labels)))


def _over_pairs(
    text: str, pairs: list[PairedRuns], claimed: list[Range], measure: Measure
) -> Claim:
    key = frozenset(f"{one} {pair.runs}" for one, pair in zip(claimed, pairs, strict=True))
    if not pairs:
        return Claim(text, NOT_TESTABLE, "left out at this scale", key=frozenset([text]))
    testable = [pair for pair in pairs if not pair.untestable]
    unit = "points" if measure.is_accuracy or measure.percent else ""
    comparisons = []
    for sides in dict.fromkeys((pair.own, pair.other) for pair in pairs):
        mine = [place for place, pair in enumerate(pairs) if (pair.own, pair.other) == sides]
        comparisons.append(
            _comparison([pairs[place] for place in mine], [claimed[place] for place in mine])
        )
    outcome = _together(comparisons)
    if not testable:
        why = "; ".join(dict.fromkeys(pair.untestable for pair in pairs))
        return Claim(text, NOT_TESTABLE, why, unit, comparisons, key=key)
    return Claim(text, outcome, _told(comparisons, unit), unit, comparisons, key=key)


def _comparison(pairs: list[PairedRuns], claimed: list[Range]) -> Comparison:
    """Two sides over their panels. A single panel is judged by its own p."""
    testable = [place for place, pair in enumerate(pairs) if not pair.untestable]
    if not testable:
        panels = [_panel(pair, None, None) for pair in pairs]
        return Comparison(
            pairs[0].own, pairs[0].other, NOT_TESTABLE, reason=pairs[0].untestable, panels=panels
        )
    effects = [effect_of(*pairs[place].scores, pairs[place].seeds) for place in testable]
    ranges = [claimed[place] for place in testable]
    judged = judge_panels(effects, ranges)
    if len(testable) == 1:
        found, parts = judged[0], testable
    else:
        found = judge_together(effects, ranges)
        parts = [testable[place] for place in found.parts]
    panels = []
    known = iter(zip(effects, judged, strict=True))
    for place, pair in enumerate(pairs):
        effect, own = (None, None) if pair.untestable else next(known)
        panels.append(_panel(pair, effect, own, counted=place in parts))
    numbers = [pairs[place].published for place in parts]
    return Comparison(
        pairs[0].own,
        pairs[0].other,
        **_numbers(found),
        improvement=probability_of_improvement([pairs[place].scores for place in parts]),
        published=_mean(numbers),
        panels=panels,
    )


def _numbers(found: Judgement) -> dict[str, Any]:
    """The fields of a judgement that comparisons and panels have, too."""
    return {name: value for name, value in vars(found).items() if name != "parts"}


def _mean(numbers: Sequence[float | None]) -> float | None:
    """None if one of them is missing: a mean over other panels would be of something else."""
    known = [number for number in numbers if number is not None]
    return sum(known) / len(known) if known and len(known) == len(numbers) else None


def _panel(
    pair: PairedRuns, effect: Effect | None, found: Judgement | None, counted: bool = False
) -> Panel:
    if effect is None or found is None:
        return Panel(pair.setting, NOT_TESTABLE, published=pair.published, reason=pair.untestable)
    return Panel(
        pair.setting,
        **_numbers(found),
        seeds=effect.seeds,
        published=pair.published,
        counted=counted,
    )


def _together(comparisons: Sequence[Comparison]) -> str:
    """Supported when every comparison is (an intersection of tests needs no correction), and
    contradicted when one is, after Holm's correction for their number.
    """
    judged = [one for one in comparisons if one.outcome != NOT_TESTABLE]
    if not judged:
        return NOT_TESTABLE
    if all(one.outcome == SUPPORTED for one in judged):
        return SUPPORTED
    p_values = [
        (one.p if one.p is not None else 0.0) if one.outcome == CONTRADICTED else 1.0
        for one in judged
    ]
    return CONTRADICTED if min(holm(p_values)) < SIGNIFICANT else UNDECIDED


def _sides(one: Comparison, judged: Sequence[Comparison]) -> str:
    """Which comparison of several it is: both sides are named where the first one varies."""
    if len(judged) == 1:
        return ""
    own = f"{one.own} " if len({each.own for each in judged}) > 1 else ""
    return f"{own}against {one.other}: "


def _told(comparisons: Sequence[Comparison], unit: str) -> str:
    """The comparisons in one line, the least favourable first."""
    judged = [one for one in comparisons if one.outcome != NOT_TESTABLE]
    ordered = sorted(judged, key=lambda one: math.inf if one.mean is None else one.mean)
    parts = [(_sides(one, judged)) + describe(one, unit) for one in ordered[:TOLD]]
    if len(judged) > TOLD:
        parts.append(f"and {len(judged) - TOLD} more")
    return "; ".join(parts)


def describe(one: Comparison | Panel, unit: str) -> str:
    """`+0.97 [+0.61, +1.33] points, published +1.04, 3 of 4 panels`."""
    if one.mean is None:
        return one.reason or "nothing to compare"
    words = signed(one.mean)
    if one.low is not None and one.high is not None:
        words += f" [{signed(one.low)}, {signed(one.high)}]"
    words += f" {unit}" if unit else ""
    if one.published is not None:
        words += f", published {signed(one.published)}"
    if isinstance(one, Comparison) and len(one.panels) > 1:
        words += f", {len(one.judged)} of {len(one.panels)} panels"
    return f"{words} ({one.reason})" if one.reason else words


def signed(value: float) -> str:
    text = f"{value:+.2f}" if 0.01 <= abs(value) < 1000 or value == 0 else plain(value, 3)
    return text if text[0] in "+-" else f"+{text}"


def _all_significant(spec: Statement, measure: Measure, study: Study) -> Claim:
    """Whether every p is below the claim's limit: a count, as a p has no interval.

    A larger p found no difference, which contradicts nothing; the other side far ahead does.
    """
    text, limit = spec.text, spec.below or 0.0
    cells = groups(study.select(spec.where), study.axes)
    found: dict[str, float] = {}
    behind: list[float] = []
    reasons = []
    few = 0
    wanted = [cell for cell in study.experiment.cells(PAPER) if cell.matches(spec.where)]
    left = len(wanted) - len(cells)
    for _, runs in cells:
        finished = int((runs["status"] == FINISHED).sum())
        value = value_of(study, runs, measure)
        left += bool(_untestable(runs)) or not finished
        if reason := _untestable(runs):
            reasons.append(reason)
        elif value.number is not None:
            found[title(study.labels(runs))] = math.inf if value.behind else value.number
            behind.append(value.number if value.behind else 1.0)
            few += finished < 3
    key = frozenset([f"{measure.unlabelled} {_names(study.runs)}"])
    if not found:
        why = "; ".join(dict.fromkeys(reasons))
        return Claim(text, NOT_TESTABLE if why else UNDECIDED, why or "not run yet", key=key)
    above = [name for name, p in found.items() if not p < limit]
    detail = f"{len(found) - len(above)} of {len(found)} cells below {limit:g}"
    if above:
        more = " ..." if len(above) > TOLD else ""
        detail += f"; not: {', '.join(above[:TOLD])}{more}"
    if few:
        return Claim(text, UNDECIDED, f"{detail}; fewer than 3 seeds in {few} of them", key=key)
    lost = min(holm(behind)) < SIGNIFICANT
    outcome = CONTRADICTED if lost else UNDECIDED if above else SUPPORTED
    claim = Claim(text, outcome, detail, key=key)
    claim.untested = f"{left} of {len(wanted)} cells" if left else ""
    return _in_part(claim)


def title(labels: Mapping[str, str]) -> str:
    """`CIFAR100, alpha 0.5`: a bare number needs the name of its axis."""
    words = [
        f"{axis} {label}" if re.fullmatch(r"[-+.\d%e]+", label) else label
        for axis, label in labels.items()
    ]
    return ", ".join(words)

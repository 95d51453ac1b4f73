"""The section `study` of an experiment file, as types: what each key means and what it must be.

An experiment file holds the settings of its runs, as any configuration, and `study`: which runs
there are and what is made of them. Everything below `study` is checked against these classes
before the first job runs, so that a misspelt key, form, axis or label is one line:

    experiment=mine: study.show.form=tabel: did you mean 'table'?
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedbench.core.errors import BadInput, nearest, require
from fedbench.core.fields import check_fields, choice, count, number

SMOKE, DECISIVE, PAPER = SCALES = ("smoke", "decisive", "paper")
BANDS = ("std", "range", "none")
SOURCES = ("paper", "code", "choice")
CLAIM_KINDS = ("better", "equal", "above", "below", "between", "untestable")
METHOD = "method"  # the axis of the rows of most tables, and of claims that name none

# Axis -> one label or several: a selection of cells.
Where = dict[str, list[str]]


def _alias(key: str, rule: Any) -> Any:
    """A field whose key in the file is a word that Python reserves."""
    return field(metadata={"key": key, **rule.metadata})


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value of the runs comes from: the paper, its released program, or a choice."""

    source: str = _alias("from", choice("", SOURCES))
    why: str = ""
    only: Where | None = None  # the cells that it concerns; all, unless given


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What a scale leaves out of the study, and how the rest is run."""

    reduction: str = ""  # in words, for every table and figure that is made of it
    overrides: str = ""  # of all runs; those of an axis win
    seeds: list[int] | None = None  # in place of the study's
    keep: Where = field(default_factory=dict)  # the labels that remain of an axis
    skip: list[Where] = field(default_factory=list)  # further combinations that are not run
    extra: dict[str, dict[str, str]] = field(default_factory=dict)  # axis -> label -> overrides


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a paper says of its numbers, in one of five ways: better than, equal to, one measure
    above another, below a number, or between two. What no program can test says why with
    `untestable`.
    """

    text: str
    axis: str = METHOD  # the axis of `better` and `than`, `equal` and `to`
    better: list[str] | None = None  # each of these is better
    than: list[str] | None = None  # than each of those, in every panel
    by: list[float] | None = None  # by how much, from and to
    ties: bool = False  # whether "as good" is enough
    equal: list[str] | None = None  # each of these is on a par
    to: list[str] | None = None  # with each of those, in every panel
    margin: float | None = number(None, above=0)  # of being on a par, in the measure's unit
    above: str | None = None  # the measure is above this other one in every cell of `where`
    below: float | None = None  # every cell of `where` is below this number
    between: list[float] | None = None  # every cell of `where` lies between these two
    measure: str | None = None  # the label of a measure; the first one, unless given
    where: Where = field(default_factory=dict)  # the cells that it speaks of
    untestable: str | None = None  # why the program cannot test it
    main: bool = False  # one of those that the paper stands for: the report opens with it


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far from the published number a measured one matches it, or is near, in its unit."""

    match: float = number(at_least=0)
    near: float | None = number(None, at_least=0)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that is read off a run. A name alone, `best_accuracy`, stands for {name: ...}."""

    name: str
    higher: bool | None = None  # whether more is better; as is usual for it, unless given
    percent: bool = False  # shown as a percentage
    tolerance: Tolerance | None = None
    over_seeds: str = choice("mean", ("mean", "maximum"))


@dataclass(frozen=True, kw_only=True)
class LastRounds(Measure):
    """The mean accuracy of the evaluations in the last `rounds` rounds."""

    rounds: int = count()


@dataclass(frozen=True, kw_only=True)
class Metric(Measure):
    """A column of metrics.csv: at the last round, at the most accurate one, or its mean."""

    column: str = ""
    at: str = choice("final", ("final", "best", "mean"))
    rounds: list[int | None] | None = None  # only those from and to, [70, null] is from 70 on


@dataclass(frozen=True, kw_only=True)
class CostTo(Measure):
    """What it took to reach a target accuracy: rounds, megabytes, gradients or seconds.

    The target is a number, one for each label of an axis ({dataset: {MNIST: 0.99}}), or what
    another cell reached with the same seed ({best_of: {method: FedAvg}}).
    """

    target: Any = None
    window: int = count(1)  # evaluations of which the mean must reach it


@dataclass(frozen=True, kw_only=True)
class ClientColumn(Measure):
    """A column of clients.csv: the mean over rounds of a number of the round's clients."""

    column: str = ""
    of: str = choice("mean", ("mean", "spread", "relative_spread", "entropy", "labels"))
    last: int | None = count(None)  # so many rounds at the end; all, unless given
    third: str | None = choice(None, ("first", "last"))  # of the rounds
    client: int | None = count(None, at_least=0)  # of this client alone


@dataclass(frozen=True, kw_only=True)
class Oscillation(Measure):
    """The mean absolute change of the accuracy between evaluations, in points."""

    third: str = choice("last", ("first", "last"))  # of the rounds


@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """Of the gradient norms of layers, clients and rounds: mean, variance or maximum."""

    of: str = choice("mean", ("mean", "variance", "maximum"))
    last: int | None = count(None)
    layer: Any = None  # a name, or a place: 0 is the first, -1 the last


@dataclass(frozen=True, kw_only=True)
class SetSize(Measure):
    """The mean size of conformal prediction sets."""

    level: float = number(above=0, below=1)
    rule: str = "threshold"


@dataclass(frozen=True, kw_only=True)
class DistanceTo(Measure):
    """The distance of the final model to that of another cell with the same seed, or that of what
    the clients sent in the last round.
    """

    cell: dict[str, str] = field(default_factory=dict)  # the labels in which the other one differs
    of: str = choice("model", ("model", "clients"))


@dataclass(frozen=True, kw_only=True)
class SpeedUp(Measure):
    """How many times faster than the baseline: the ratio of another measure, a cost."""

    of: str = ""  # the label of the other measure
    # The label of the baseline, or for each label its own: {method: {FedProx: FedAvg}}.
    baseline: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ComparedTo(Measure):
    """The ratio or the difference of another measure to that of another cell."""

    of: str = ""  # the label of the other measure
    # The labels in which the other cell differs, or for each label its own, as of a baseline.
    cell: dict[str, Any] = field(default_factory=dict)
    reverse: bool = False  # the other cell minus this one


@dataclass(frozen=True, kw_only=True)
class Place(Measure):
    """The place of a cell by another measure among all labels of an axis, 1 is the best."""

    of: str = ""  # the label of the other measure
    axis: str = METHOD


@dataclass(frozen=True, kw_only=True)
class McNemar(Measure):
    """The p-value of McNemar's test against another cell, on the same test images."""

    against: dict[str, str] = field(default_factory=dict)
    predictions: str = choice("best", ("best", "final"))


@dataclass(frozen=True, kw_only=True)
class StaysAbove(Measure):
    """The round from which the accuracy stays above that of another cell with the same seed."""

    cell: dict[str, str] = field(default_factory=dict)
    column: str = "test_accuracy"  # of metrics.csv


MEASURES: dict[str, type[Measure]] = {
    "largest_class": Measure,
    "oscillation": Oscillation,
    "stays_above": StaysAbove,
    "best_accuracy": Measure,
    "accuracy_at_best_val": Measure,
    "final_accuracy": Measure,
    "mean_accuracy_last": LastRounds,
    "area": Measure,
    "metric": Metric,
    "rounds_to": CostTo,
    "bytes_to": CostTo,
    "gradients_to": CostTo,
    "seconds_to": CostTo,
    "seconds": Measure,
    "round_seconds": Measure,
    "megabytes": Measure,
    "client_column": ClientColumn,
    "set_size": SetSize,
    "gradient_norm": GradientNorm,
    "distance_to": DistanceTo,
    "speed_up": SpeedUp,
    "ratio_to": ComparedTo,
    "difference_to": ComparedTo,
    "place": Place,
    "mcnemar": McNemar,
}


@dataclass(frozen=True, kw_only=True)
class Show:
    """What is made of the runs. Which keys a form has besides the first five: FORMS."""

    form: str
    title: str | None = None  # of a part
    rows: list[str] | None = None  # the axes whose labels begin a row of the numbers
    columns: list[str] | None = None
    measures: dict[str, Any] | None = None  # label -> a Measure; null leaves an inherited one out
    keep: Where | None = None  # the cells of a part
    parts: list[Any] | None = None  # several pictures, each a Show
    panels: list[str] | None = None  # the axes with a panel for each label
    lines: list[str] | None = None  # ... a line
    groups: list[str] | None = None  # ... a group of bars or boxes
    bars: list[str] | None = None  # ... a bar
    x: str | None = None  # curves: a column of metrics.csv; points: an axis
    y: str | None = None  # a column of metrics.csv
    band: str | None = choice(None, BANDS)  # around a line: the spread over seeds
    column: str | None = None  # of clients.csv
    clients: Any = None  # `all`, or a list of numbers
    last: int | None = count(None)  # rounds at the end
    pairs: dict[str, Any] | None = None  # of labels whose gap is shown
    rule: str | None = None  # of the prediction sets
    datasets: list[str] | None = None
    cases: dict[str, Any] | None = None  # of the quadratic example, as the four below
    start: float | None = None
    rate: float | None = None
    rounds: int | None = count(None)
    optimum: float | None = None
    steps: int | None = count(None)


COMMON = ("form", "title", "rows", "columns", "measures", "keep")
FORMS: dict[str, tuple[str, ...]] = {
    "table": (),
    "several": ("parts",),
    "curves": ("panels", "lines", "x", "y", "band"),
    "points": ("panels", "lines", "x", "band"),
    "bars": ("panels", "groups", "bars", "band"),
    "layers": ("panels", "lines", "last", "band"),
    "partition": ("panels",),
    "selection": ("panels", "clients"),
    "client_boxes": ("panels", "column"),
    "entropy": ("panels", "lines", "column", "band"),
    "gaps": ("panels", "groups", "pairs", "y"),
    "conformal": ("panels", "lines", "rule", "band"),
    "drift": ("cases", "start", "rate", "rounds", "optimum", "steps"),
    "datasets": ("datasets",),
}
WITHOUT_RUNS = ("drift", "datasets")
OF_AXES = ("rows", "columns", "panels", "lines", "groups", "bars")  # keys that list axes


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Trials by which settings are chosen: the same number for every label, on validation data.

    The trials of a label are the product of its values. The best one, with one seed, is then run
    with all seeds. No run of the study trains on the validation data, tuned or not.
    """

    grid: dict[str, list[Any]] = field(default_factory=dict)  # key -> values, for all labels
    # Label -> key -> values, for this label; they replace the grid's.
    own: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    axis: str = METHOD  # whose labels are tuned
    only: list[str] | None = None  # the labels that are tuned; all, unless given
    per: list[str] = field(default_factory=list)  # axes whose labels are tuned one by one
    seed: int = count(0, at_least=0)
    validation: float = number(0.1, above=0, below=1)  # share of the training data


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table or figure: its runs are the product of its axes, each with every seed."""

    title: str
    show: Show
    paper: str = ""  # the paper that it reproduces; none of a study of one's own
    number: str = ""  # in the paper: Table 2
    axes: dict[str, dict[str, str]] = field(default_factory=dict)  # axis -> label -> overrides
    keep: Where = field(default_factory=dict)  # the labels that remain of an axis
    skip: list[Where] = field(default_factory=list)  # combinations that are not run
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    proposed: list[str] = field(default_factory=list)  # methods that are compared with the others
    readings: list[str] = field(default_factory=list)  # labels that are further readings of one
    claims: list[Claim] = field(default_factory=list)
    published: str | None = None  # a CSV file beside this one, with the numbers of the paper
    provenance: dict[str, Origin] = field(default_factory=dict)  # key -> where its value is from
    remarks: list[str] = field(default_factory=list)
    scales: dict[str, Scale] = field(default_factory=dict)
    tune: Tune | None = None


def read_study(tree: Any, experiment: str) -> Study:
    """The section as an object; raises BadInput that names the experiment and the key."""
    try:
        study: Study = _read(Study, tree, "study")
        _check(study)
    except BadInput as error:
        raise BadInput(f"experiment={experiment}: {error}") from None
    return study


# From plain values to objects


def _read(kind: Any, value: Any, key: str) -> Any:
    """The value as the type `kind`; raises BadInput if it is none."""
    if kind is Any:
        return value
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = [one for one in get_args(kind) if one is not types.NoneType]
        return None if value is None else _read(inner, value, key)
    if dataclasses.is_dataclass(kind):
        return _read_section(kind, value, key)
    if get_origin(kind) is dict:
        require(isinstance(value, dict), key, value, "must be a section with keys of its own")
        inner = get_args(kind)[1]
        if dataclasses.is_dataclass(inner):  # null takes back what was inherited
            value = {name: one for name, one in value.items() if one is not None}
        return {str(name): _read(inner, one, f"{key}.{name}") for name, one in value.items()}
    if get_origin(kind) is list:
        return _read_list(get_args(kind)[0], value, key)
    return _read_scalar(kind, value, key)


def _read_section(schema: Any, value: Any, key: str) -> Any:
    require(isinstance(value, dict), key, value, "must be a section with keys of its own")
    kinds = get_type_hints(schema)
    names = {one.metadata.get("key", one.name): one for one in dataclasses.fields(schema)}
    given = {}
    for name, inner in value.items():
        if name not in names:
            raise BadInput(f"unknown key '{key}.{name}': {nearest(str(name), names, key)}")
        own = names[name]
        optional = types.NoneType in get_args(kinds[own.name])
        if inner is None and not optional and _has_default(own):
            continue  # what was inherited is taken back
        given[own.name] = _read(kinds[own.name], inner, f"{key}.{name}")
    for name, one in names.items():
        needed = one.name not in given and not _has_default(one)
        if needed:
            raise BadInput(f"{key}.{name} is missing: it must have a value")
    made = schema(**given)
    check_fields(made, key)
    return made


def _has_default(one: dataclasses.Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


def _read_list(kind: Any, value: Any, key: str) -> list[Any]:
    if kind is str and isinstance(value, str | int | float):
        value = [value]  # one label
    require(isinstance(value, list), key, value, "must be a list, such as [a, b]")
    return [_read(kind, one, f"{key}[{place}]") for place, one in enumerate(value)]


def _read_scalar(kind: type, value: Any, key: str) -> Any:
    if kind is str:
        if value is None:
            value = ""  # the label of an axis without overrides
        fits = isinstance(value, str | int | float) and not isinstance(value, bool)
        require(fits, key, value, "must be text")
        return str(value)
    if kind is bool:
        require(isinstance(value, bool), key, value, "must be true or false")
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = is_number and (kind is float or isinstance(value, int))
    require(fits, key, value, "must be an integer" if kind is int else "must be a number")
    return kind(value)


def read_measures(show: Mapping[str, Any] | Show, key: str) -> dict[str, Measure]:
    """The measures of a form by label. One that is null was inherited and is not wanted."""
    specs = show.measures if isinstance(show, Show) else show.get("measures")
    found = {}
    for label, spec in (specs or {}).items():
        if spec is not None:
            place = f"{key}.measures.{label}"
            given = {"name": spec} if isinstance(spec, str) else spec
            require(isinstance(given, dict), place, given, "must be a name or a section")
            name = str(given.get("name"))
            require(name in MEASURES, f"{place}.name", name, nearest(name, MEASURES))
            found[str(label)] = _read(MEASURES[name], given, place)
    return found


# What must fit together


def _check(study: Study) -> None:
    for axis, labels in study.axes.items():
        require(bool(labels), f"study.axes.{axis}", "{}", "must have a label")
    _check_where(study, study.keep, "study.keep")
    for place, combination in enumerate(study.skip):
        _check_where(study, combination, f"study.skip[{place}]")
    for name, scale in study.scales.items():
        require(name in SCALES, "study.scales", name, nearest(name, SCALES))
        _check_where(study, scale.keep, f"study.scales.{name}.keep")
        for place, combination in enumerate(scale.skip):
            _check_where(study, combination, f"study.scales.{name}.skip[{place}]")
        extra = {axis: list(labels) for axis, labels in scale.extra.items()}
        _check_where(study, extra, f"study.scales.{name}.extra")
    methods = list(study.axes.get(METHOD, {}))
    everything = [label for axis_labels in study.axes.values() for label in axis_labels]
    for key, known in (("proposed", methods), ("readings", everything)):
        for label in getattr(study, key):
            require(label in known, f"study.{key}", label, nearest(label, known))
    if not study.paper:  # the files of a paper share what they say of their values
        for key, origin in study.provenance.items():
            _check_where(study, origin.only or {}, f"study.provenance.{key}.only")
    if study.tune is not None:
        _check_tune(study, study.tune)
    measures = _check_shown(study)
    for place, claim in enumerate(study.claims):
        _check_claim(study, claim, measures, f"study.claims[{place}]")


def _check_where(study: Study, where: Mapping[str, Iterable[str]], key: str) -> None:
    for axis, labels in where.items():
        _check_axis(study, axis, key)
        for label in labels:
            known = study.axes[axis]
            require(label in known, f"{key}.{axis}", label, nearest(label, known))


def _check_axis(study: Study, axis: str, key: str) -> None:
    require(axis in study.axes, key, axis, nearest(axis, study.axes))


def _check_shown(study: Study) -> dict[str, Measure]:
    """Check the forms and their measures. Returns the measures by label."""
    found: dict[str, Measure] = {}
    for part, key in _parts(study.show):
        _check_form(study, part, key)
        found |= read_measures(part, key)
    for part, key in _parts(study.show):
        for label, measure in read_measures(part, key).items():
            _check_measure(study, measure, found, f"{key}.measures.{label}")
    return found


def _parts(show: Show) -> Iterator[tuple[Show, str]]:
    yield show, "study.show"
    for place, part in enumerate((show.parts or []) if show.form == "several" else []):
        key = f"study.show.parts[{place}]"
        yield _read(Show, part, key), key


def _check_form(study: Study, show: Show, key: str) -> None:
    require(show.form in FORMS, f"{key}.form", show.form, nearest(show.form, FORMS))
    own = (*COMMON, *FORMS[show.form])
    for one in dataclasses.fields(show):
        value = getattr(show, one.name)
        if value is not None and one.name not in own:
            words = f"has no effect with form={show.form}, whose own keys are"
            raise BadInput(f"{key}.{one.name}: {words} {', '.join(own)}")
    for name in OF_AXES:
        for axis in getattr(show, name) or []:
            _check_axis(study, axis, f"{key}.{name}")
    if show.form == "points":
        require(show.x is not None, f"{key}.x", "null", "must be an axis")
        _check_axis(study, str(show.x), f"{key}.x")
    _check_where(study, show.keep or {}, f"{key}.keep")
    if show.form not in WITHOUT_RUNS:
        require(bool(study.axes), "study.axes", "{}", f"must have an axis with form={show.form}")


def _check_measure(study: Study, measure: Measure, known: dict[str, Measure], key: str) -> None:
    if isinstance(measure, SpeedUp | ComparedTo | Place):
        require(measure.of in known, f"{key}.of", measure.of, nearest(measure.of, known))
    if isinstance(measure, Place):
        _check_axis(study, measure.axis, f"{key}.axis")
    for name in ("baseline", "cell", "against"):
        _check_other(study, getattr(measure, name, {}), f"{key}.{name}")
    if isinstance(measure, Metric | ClientColumn):
        require(measure.column != "", f"{key}.column", "", "must be the name of a column")
    if isinstance(measure, CostTo):
        _check_target(study, measure.target, f"{key}.target")


def _check_other(study: Study, changed: Mapping[str, Any], key: str) -> None:
    """The labels of another cell, or for each label of an axis that of its own."""
    for axis, labels in changed.items():
        named = labels if isinstance(labels, dict) else {}
        others = list(named.values()) if named else [labels]
        _check_where(study, {axis: list(named)}, key)
        _check_where(study, {axis: [str(one) for one in others if one != "none"]}, key)


def _check_target(study: Study, target: Any, key: str) -> None:
    if isinstance(target, dict) and list(target) == ["best_of"]:
        where = {axis: [str(label)] for axis, label in target["best_of"].items()}
        _check_where(study, where, f"{key}.best_of")
    elif isinstance(target, dict) and len(target) == 1:
        ((axis, numbers),) = target.items()
        require(isinstance(numbers, dict), f"{key}.{axis}", numbers, "must be label: number")
        _check_where(study, {axis: [str(label) for label in numbers]}, key)
        for label, value in numbers.items():
            _read_scalar(float, value, f"{key}.{axis}.{label}")
    else:
        rule = "must be a number, {axis: {label: number}} or {best_of: {axis: label}}"
        fits = isinstance(target, int | float) and not isinstance(target, bool)
        require(fits, key, target, rule)


def _check_tune(study: Study, tune: Tune) -> None:
    _check_axis(study, tune.axis, "study.tune.axis")
    for axis in tune.per:
        _check_axis(study, axis, "study.tune.per")
        rule = "must be another axis than the one that is tuned"
        require(axis != tune.axis, "study.tune.per", axis, rule)
    _check_where(study, {tune.axis: [*tune.own, *(tune.only or [])]}, "study.tune")
    numbers = {label: len(trials_of(tune, label)) for label in tuned_labels(study.axes, tune)}
    for label, trials in numbers.items():
        first = next(iter(numbers))
        if trials != numbers[first] or trials < 2:
            raise BadInput(
                f"study.tune: {trials} trials of {label} and {numbers[first]} of {first}; every"
                " label must have the same number, of at least 2"
            )


def tuned_labels(axes: Mapping[str, Mapping[str, str]], tune: Tune) -> list[str]:
    """The labels that are tuned, in the file's order."""
    return [label for label in axes[tune.axis] if tune.only is None or label in tune.only]


def trials_of(tune: Tune, label: str) -> list[tuple[str, ...]]:
    """The overrides of every trial of a label: the product of its values."""
    values = {**tune.grid, **tune.own.get(label, {})}
    products = itertools.product(*values.values())
    return [
        tuple(f"{key}={_word(one)}" for key, one in zip(values, product, strict=True))
        for product in products
    ]


def _word(value: Any) -> str:
    """A value as Hydra reads it: false, null, 0.1."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _check_claim(study: Study, claim: Claim, measures: dict[str, Measure], key: str) -> None:
    _check_where(study, claim.where, f"{key}.where")
    for name in ("measure", "above"):
        label = getattr(claim, name)
        fits = label is None or not measures or label in measures
        require(fits, f"{key}.{name}", label, nearest(str(label), measures))
    for pair in (("better", "than"), ("equal", "to")):
        sides = {name: getattr(claim, name) for name in pair}
        lacking = [name for name, labels in sides.items() if labels is None]
        if len(lacking) == 1:
            words = f"{pair[0]} and {pair[1]} belong together"
            raise BadInput(f"{key}.{lacking[0]} is missing: {words}")
        for name, labels in sides.items():
            for label in labels or []:
                _check_axis(study, claim.axis, f"{key}.axis")
                known = study.axes[claim.axis]
                require(label in known, f"{key}.{name}", label, nearest(label, known))
    kinds = [name for name in CLAIM_KINDS if getattr(claim, name) is not None]
    rule = f"must have one of {', '.join(CLAIM_KINDS)}"
    require(len(kinds) == 1, key, ", ".join(kinds) or claim.text, rule)
    for name in ("by", "between"):
        limits = getattr(claim, name)
        fits = limits is None or (len(limits) == 2 and limits[0] < limits[1])
        require(fits, f"{key}.{name}", limits, "must be [from, to]")
    if claim.by is not None and claim.better is None:
        raise BadInput(f"{key}.better is missing: by belongs to better and than")

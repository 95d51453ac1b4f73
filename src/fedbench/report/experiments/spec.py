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
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, replace
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedbench.core.errors import BadInput, nearest, require, require_known
from fedbench.core.fields import check_fields, choice, count, number
from fedbench.training.conformal import METHODS as SET_RULES

SMOKE, DECISIVE, PAPER = SCALES = ("smoke", "decisive", "paper")
BANDS = ("std", "range", "none")
SOURCES = ("paper", "code", "choice")
CLAIM_KINDS = ("better", "equal", "above", "below", "between", "untestable")
METHOD = "method"  # the axis of the rows of most tables, and of claims that name none

# The columns of a table of runs beside its axes and measures (see plan.py and runs.py).
OF_RUNS = (
    *("seed", "words", "overrides", "folder", "status", "problem", "broken", "instead", "work"),
    *("config", "reference", "excluded", "trial"),
)
PARTS = ("value", "state", "limit")  # of a measure, a column each (see measures.py)


def column(label: str, part: str = "value") -> str:
    """The column of a measure with its number, its state or its limit."""
    return label if part == "value" else f"{label} {part}"


# Axis -> one label or several: a selection of cells.
Where = dict[str, list[str]]


ACCURACIES = (
    *("best_accuracy", "accuracy_at_best_val", "final_accuracy"),
    *("mean_accuracy_last", "area"),
)


@dataclass(frozen=True)
class Cost:
    """What training costs, in words. Its series is in metrics.csv; bytes are the sum of two."""

    words: str  # what is counted
    in_full: str
    along: str  # the name of the axis of a curve
    unit: str = ""


COSTS = {
    "round": Cost("rounds", "rounds", "round"),
    "bytes": Cost("megabytes", "megabytes sent and received", "sent and received (MB)", "MB"),
    "gradients": Cost("gradients", "gradients of single examples", "gradient evaluations"),
    "seconds": Cost("seconds", "seconds of training", "training time (s)", "s"),
}
COST_OF = {  # what it took to reach a target
    "rounds_to": "round",
    "bytes_to": "bytes",
    "gradients_to": "gradients",
    "seconds_to": "seconds",
}
UNREACHED = (*COST_OF, "stays_above")  # of less is better, and it may never be reached


def _alias(key: str, rule: Any) -> Any:
    """A field whose key in the file is a word that Python reserves."""
    return field(metadata={"key": key, **rule.metadata})


def _not_in_file(default: Any) -> Any:
    """A field that the program fills."""
    return field(default=default, metadata={"key": ""})


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value of the runs comes from: the paper, its released program, or a choice."""

    source: str = _alias("from", choice("", SOURCES))
    why: str = ""
    only: Where | None = None  # the cells that it concerns; all, unless given


@dataclass(frozen=True, kw_only=True)
class Combination:
    """Labels of several axes whose overrides, together, are written otherwise.

    FedAvg with PGVC is a method of its own:

        combined:
          - {of: {base: FedAvg, method: PGVC}, overrides: algo=fedpgvc}
    """

    of: Where
    overrides: str  # in place of those of these labels


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A sentence that a file says for several tables: for those that have one of the labels."""

    text: str
    labels: list[str]  # of any axis


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
class Statement:
    """A claim, what a paper says of its numbers, in one of five ways: better than, equal to, one
    measure above another, below a number, or between two. What no program can test says why
    with `untestable`.
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


@dataclass(frozen=True)
class Tolerance:
    """How far a measured number may be from the published one to match it, or to be near.

    In the measure's unit, or when relative, 0.25 for a factor of 1.25 either way.
    """

    match: float = number(at_least=0)
    near: float = number(0.0, at_least=0)
    relative: bool = _not_in_file(False)
    threshold: float | None = _not_in_file(None)  # of p-values: all that counts is its side


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that is read off a run. A name alone, `best_accuracy`, stands for {name: ...}."""

    name: str
    higher: bool | None = None  # whether more is better; as is usual for it, unless given
    percent: bool = False  # shown as a percentage
    tolerance: Tolerance | None = None
    over_seeds: str = choice("mean", ("mean", "maximum"))
    label: str = _not_in_file("")  # under which the form has it

    @property
    def unlabelled(self) -> Measure:
        """What is measured, whatever it is called."""
        return replace(self, label="")

    @property
    def is_accuracy(self) -> bool:
        return (self.name == "metric" and self.percent) or self.name in ACCURACIES

    @property
    def is_cost(self) -> bool:
        """Something that may stay unreached, and of which less is better."""
        return self.name in UNREACHED

    @property
    def higher_is_better(self) -> bool:
        """As the file says with `higher`; else true of accuracies and speed-ups."""
        usual = self.is_accuracy or self.name == "speed_up"
        return usual if self.higher is None else self.higher


@dataclass(frozen=True, kw_only=True)
class LastRounds(Measure):
    """The mean accuracy of the evaluations in the last `rounds` rounds."""

    rounds: int = count()


@dataclass(frozen=True, kw_only=True)
class Metric(Measure):
    """A column of metrics.csv: at the last round, at the most accurate one, or its mean."""

    column: str
    at: str = choice("final", ("final", "best", "mean"))
    rounds: list[int | None] | None = None  # only those from and to, [70, null] is from 70 on


@dataclass(frozen=True, kw_only=True)
class CostTo(Measure):
    """What it took to reach a target accuracy: rounds, megabytes, gradients or seconds.

    The target is a number, one for each label of an axis ({dataset: {MNIST: 0.99}}), or what
    another cell reached with the same seed ({best_of: {method: FedAvg}}).
    """

    target: Any
    window: int = count(1)  # evaluations of which the mean must reach it


@dataclass(frozen=True, kw_only=True)
class ClientColumn(Measure):
    """A column of clients.csv: the mean over rounds of a number of the round's clients."""

    column: str
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
    rule: str = choice("threshold", SET_RULES)


@dataclass(frozen=True, kw_only=True)
class DistanceTo(Measure):
    """The distance of the final model to that of another cell with the same seed, or that of what
    the clients sent in the last round.
    """

    cell: dict[str, str]  # the labels in which the other one differs
    of: str = choice("model", ("model", "clients"))


@dataclass(frozen=True, kw_only=True)
class OfAnother(Measure):
    """A number that is made of another measure."""

    of: str  # the label of the other measure


@dataclass(frozen=True, kw_only=True)
class SpeedUp(OfAnother):
    """How many times faster than the baseline: the ratio of another measure, a cost."""

    # The label of the baseline, or for each label its own: {method: {FedProx: FedAvg}}.
    baseline: dict[str, str | dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class ComparedTo(OfAnother):
    """The ratio or the difference of another measure to that of another cell."""

    # The labels in which the other cell differs, or for each label its own, as of a baseline.
    cell: dict[str, str | dict[str, str]]
    reverse: bool = False  # the other cell minus this one


@dataclass(frozen=True, kw_only=True)
class Place(OfAnother):
    """The place of a cell by another measure among all labels of an axis, 1 is the best."""

    axis: str = METHOD


@dataclass(frozen=True, kw_only=True)
class McNemar(Measure):
    """The p-value of McNemar's test against another cell, on the same test images."""

    against: dict[str, str]
    predictions: str = choice("best", ("best", "final"))


@dataclass(frozen=True, kw_only=True)
class StaysAbove(Measure):
    """The round from which the accuracy stays above that of another cell with the same seed."""

    cell: dict[str, str]
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
    """What is made of the runs: a form, which has keys of its own, and the numbers beside it."""

    form: str
    title: str | None = None  # of a part
    rows: list[str] = field(default_factory=list)  # the axes whose labels begin a row
    columns: list[str] = field(default_factory=list)
    measures: dict[str, Measure] = field(default_factory=dict)  # by label
    keep: Where = field(default_factory=dict)  # the cells of a part


@dataclass(frozen=True, kw_only=True)
class Several(Show):
    """Several pictures of the same runs."""

    parts: list[Show]


@dataclass(frozen=True, kw_only=True)
class Panels(Show):
    """A picture with a panel for each label of some axes."""

    panels: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Lines(Panels):
    """Panels with a line for each label of some axes, and a band: its spread over seeds."""

    lines: list[str] = field(default_factory=list)
    band: str = choice("std", BANDS)


@dataclass(frozen=True, kw_only=True)
class Curves(Lines):
    """Columns of metrics.csv."""

    x: str = "round"
    y: str = "test_accuracy"


@dataclass(frozen=True, kw_only=True)
class Points(Lines):
    """Measures along an axis."""

    x: str
    measures: dict[str, Measure]


@dataclass(frozen=True, kw_only=True)
class Bars(Panels):
    """Measures as bars side by side."""

    groups: list[str] = field(default_factory=list)
    bars: list[str] = field(default_factory=list)
    band: str = choice("std", BANDS)
    measures: dict[str, Measure]


@dataclass(frozen=True, kw_only=True)
class Layers(Lines):
    """Norms of the gradients of every layer."""

    last: int | None = count(None)  # so many rounds at the end; all, unless given


@dataclass(frozen=True, kw_only=True)
class Selection(Panels):
    """Which local steps were chosen."""

    clients: Any = "all"  # or a list of numbers


@dataclass(frozen=True, kw_only=True)
class ClientBoxes(Panels):
    """A column of clients.csv, a box a client."""

    column: str = "gsnr"


@dataclass(frozen=True, kw_only=True)
class Entropy(Lines):
    """Of a column of clients.csv over the clients of a round."""

    column: str = "gsnr_ratio"


@dataclass(frozen=True, kw_only=True)
class Gaps(Panels):
    """Differences of a column of metrics.csv between pairs of methods."""

    pairs: dict[str, list[str]]
    groups: list[str] = field(default_factory=list)
    y: str = "test_loss"


@dataclass(frozen=True, kw_only=True)
class Conformal(Lines):
    """Sizes of prediction sets against their coverage."""

    rule: str = choice("threshold", SET_RULES)


@dataclass(frozen=True, kw_only=True)
class Drift(Show):
    """Clients with quadratic losses, computed and not run: their optima, by the name of a case."""

    cases: dict[str, list[float]]
    start: float
    rate: float
    rounds: int = count()
    optimum: float
    steps: int = count(1)


@dataclass(frozen=True, kw_only=True)
class Datasets(Show):
    """The table of datasets, from their configuration."""

    datasets: list[str]


FORMS: dict[str, type[Show]] = {
    "table": Show,
    "several": Several,
    "curves": Curves,
    "points": Points,
    "bars": Bars,
    "layers": Layers,
    "partition": Panels,
    "selection": Selection,
    "client_boxes": ClientBoxes,
    "entropy": Entropy,
    "gaps": Gaps,
    "conformal": Conformal,
    "drift": Drift,
    "datasets": Datasets,
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
    combined: list[Combination] = field(default_factory=list)  # the first one that fits is taken
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    proposed: list[str] = field(default_factory=list)  # methods that are compared with the others
    readings: list[str] = field(default_factory=list)  # labels that are further readings of one
    claims: list[Statement] = field(default_factory=list)
    published: str | None = None  # a CSV file beside this one, with the numbers of the paper
    provenance: dict[str, Origin] = field(default_factory=dict)  # key -> where its value is from
    remarks: list[str] = field(default_factory=list)
    shared_remarks: dict[str, Remark] = field(default_factory=dict)  # by a name, to take one back
    scales: dict[str, Scale] = field(default_factory=dict)
    tune: Tune | None = None


# From plain values to objects


def _read(kind: Any, value: Any, key: str) -> Any:
    """The value as the type `kind`; raises BadInput if it is none."""
    if kind is Any:
        return value
    if kind is Show:
        return _read_show(value, key)
    if kind is Measure:
        return _read_measure(value, key)
    if get_origin(kind) in (Union, types.UnionType):
        if value is None and types.NoneType in get_args(kind):
            return None
        kinds = [one for one in get_args(kind) if one is not types.NoneType]
        sections = [one for one in kinds if get_origin(one) is dict and isinstance(value, dict)]
        return _read((sections or kinds)[0], value, key)
    if dataclasses.is_dataclass(kind):
        return _read_section(kind, value, key)
    if get_origin(kind) is dict:
        require(isinstance(value, dict), key, value, "must be a section with keys of its own")
        inner = get_args(kind)[1]
        if dataclasses.is_dataclass(inner) or get_origin(inner) is list:
            # null takes back what was inherited
            value = {name: one for name, one in value.items() if one is not None}
        read = {str(name): _read(inner, one, f"{key}.{name}") for name, one in value.items()}
        if inner is Measure:
            return {label: replace(one, label=label) for label, one in read.items()}
        return read
    if get_origin(kind) is list:
        return _read_list(get_args(kind)[0], value, key)
    return _read_scalar(kind, value, key)


def _read_section(schema: Any, value: Any, key: str) -> Any:
    require(isinstance(value, dict), key, value, "must be a section with keys of its own")
    kinds, names = _kinds_of(schema), keys_of(schema)
    given = {}
    for name, inner in value.items():
        if name not in names:
            raise BadInput(f"unknown key '{key}.{name}': {nearest(str(name), names, key)}")
        own = names[name]
        optional = types.NoneType in get_args(kinds[own.name])
        if inner is None and not optional:
            continue  # what was inherited is taken back
        given[own.name] = _read(kinds[own.name], inner, f"{key}.{name}")
    for name, one in names.items():
        if not _has_default(one) and given.get(one.name) in (None, "", [], {}):
            raise BadInput(f"{key}.{name} is missing: it must have a value")
    made = schema(**given)
    check_fields(made, key)
    return made


@cache
def _kinds_of(schema: Any) -> dict[str, Any]:
    """The type of each field."""
    return get_type_hints(schema)


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


def keys_of(schema: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a section by their keys in the file."""
    named = {one.metadata.get("key", one.name): one for one in dataclasses.fields(schema)}
    return {key: one for key, one in named.items() if key}


def _read_show(value: Any, key: str) -> Show:
    require(isinstance(value, dict), key, value, "must be a section with keys of its own")
    if value.get("form") is None:
        raise BadInput(f"{key}.form is missing: it must have a value")
    form = str(value["form"])
    require_known(f"{key}.form", form, FORMS)
    own = keys_of(FORMS[form])
    others = {name for schema in FORMS.values() for name in keys_of(schema)} - set(own)
    for name, one in value.items():
        if name in others and one is not None:
            words = f"has no effect with form={form}, whose own keys are"
            raise BadInput(f"{key}.{name}: {words} {', '.join(own)}")
    given = {name: one for name, one in value.items() if name not in others}
    show: Show = _read_section(FORMS[form], given, key)
    return show


def _read_measure(value: Any, key: str) -> Measure:
    given = {"name": value} if isinstance(value, str) else value
    require(isinstance(given, dict), key, given, "must be a name or a section")
    name = str(given.get("name"))
    require_known(f"{key}.name", name, MEASURES)
    measure: Measure = _read_section(MEASURES[name], given, key)
    return measure


def read_section(tree: Any) -> Study:
    """The section `study` as an object, key by key."""
    study: Study = _read(Study, tree, "study")
    return study


def as_measure(label: str, value: str | Mapping[str, Any]) -> Measure:
    """A measure as a file gives it: its name, or its section."""
    return replace(_read_measure(value, label), label=label)


# Trials


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

"""What must fit together in a study, so that no job is run for a table that cannot be made."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from fedbench import algorithms
from fedbench.algorithms.modifier import Modifier
from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput, require, require_known
from fedbench.report.experiments.spec import (
    CLAIM_KINDS,
    METHOD,
    OF_AXES,
    OF_RUNS,
    PARTS,
    SCALES,
    WITHOUT_RUNS,
    ClientBoxes,
    ClientColumn,
    CostTo,
    Curves,
    Datasets,
    Entropy,
    Gaps,
    GradientNorm,
    McNemar,
    Measure,
    Metric,
    OfAnother,
    Place,
    Points,
    Selection,
    Several,
    Show,
    Statement,
    StaysAbove,
    Study,
    Tune,
    column,
    read_section,
    trials_of,
    tuned_labels,
)

SUMS = ("bytes_up", "bytes_down", "gradients", "seconds")
OF_METRICS = (  # columns of metrics.csv; those of a method are its modifiers' `records`
    *("round", "test_accuracy", "test_loss", "train_loss", "val_accuracy", "val_loss", *SUMS),
    *("test_accuracy_std", "test_accuracy_mean_active", "test_loss_mean_active"),
    *("client_drift", "update_norm", "update_variance", "aggregate_variance"),
    *(
        f"local_{stage}_{what}"
        for stage in ("before", "after")
        for what in ("accuracy", "accuracy_std", "accuracy_weighted", "loss")
    ),
)
COMPUTED = ("bytes", "round_seconds")  # of several of them, for curves
OF_CLIENTS = (
    *("samples", "steps", "weight", "train_loss", "drift", "update_norm", "seconds"),
    *("gsnr", "gsnr_ratio", "gsnr_examples"),
)
MISSPELT = 0.85  # how like a known column a name is that is taken for it


def read_study(tree: Any, experiment: str) -> Study:
    """The section as an object; raises BadInput that names the experiment and the key."""
    try:
        study = read_section(tree)
        _check(study)
    except BadInput as error:
        raise BadInput(f"experiment={experiment}: {error}") from None
    return study


def _check(study: Study) -> None:
    if study.axes:
        _check_seeds(study.seeds, "study.seeds")
    for axis, labels in study.axes.items():
        require(bool(labels), f"study.axes.{axis}", "{}", "must have a label")
        rule = "must not be the name of a column that every table of runs has"
        require(axis not in OF_RUNS, "study.axes", axis, rule)
    _check_where(study, study.keep, "study.keep")
    for place, combination in enumerate(study.skip):
        _check_where(study, combination, f"study.skip[{place}]")
    for place, together in enumerate(study.combined):
        key = f"study.combined[{place}].of"
        _check_where(study, together.of, key)
        require(len(together.of) > 1, key, together.of, "must name at least two axes")
    for name, scale in study.scales.items():
        require_known("study.scales", name, SCALES)
        if scale.seeds is not None and study.axes:
            _check_seeds(scale.seeds, f"study.scales.{name}.seeds")
        _check_where(study, scale.keep, f"study.scales.{name}.keep")
        for place, combination in enumerate(scale.skip):
            _check_where(study, combination, f"study.scales.{name}.skip[{place}]")
        extra = {axis: list(labels) for axis, labels in scale.extra.items()}
        _check_where(study, extra, f"study.scales.{name}.extra")
    methods = list(study.axes.get(METHOD, {}))
    everything = [label for axis_labels in study.axes.values() for label in axis_labels]
    for key, known in (("proposed", methods), ("readings", everything)):
        for label in getattr(study, key):
            require_known(f"study.{key}", label, known)
    if not study.paper:  # the files of a paper share what they say of their values
        for key, origin in study.provenance.items():
            _check_where(study, origin.only or {}, f"study.provenance.{key}.only")
        for name, remark in study.shared_remarks.items():
            for label in remark.labels:
                key = f"study.shared_remarks.{name}.labels"
                require_known(key, label, everything)
    if study.tune is not None:
        _check_tune(study, study.tune)
    measures = _check_shown(study)
    for place, claim in enumerate(study.claims):
        _check_claim(study, claim, measures, f"study.claims[{place}]")


def _check_seeds(seeds: list[int], key: str) -> None:
    fits = seeds != [] and min(seeds) >= 0 and len(set(seeds)) == len(seeds)
    require(fits, key, seeds, "must be different integers of at least 0, at least one")


def _check_where(study: Study, where: Mapping[str, Iterable[str]], key: str) -> None:
    for axis, labels in where.items():
        _check_axis(study, axis, key)
        for label in labels:
            known = study.axes[axis]
            require_known(f"{key}.{axis}", label, known)


def _check_axis(study: Study, axis: str, key: str) -> None:
    require_known(key, axis, study.axes)


def _check_shown(study: Study) -> dict[str, Measure]:
    """Check the forms and their measures. Returns the measures by label."""
    parts = list(_parts(study.show))
    found = {label: one for show, _ in parts for label, one in show.measures.items()}
    for show, key in parts:
        _check_form(study, show, key)
        for label, measure in show.measures.items():
            taken = {*study.axes, *OF_RUNS, *(set(found) - {label})}
            rule = "must not be the name of an axis, or of a column that every table of runs has"
            for name in (column(label, part) for part in PARTS):
                require(name not in taken, f"{key}.measures", name, rule)
            _check_measure(study, measure, found, f"{key}.measures.{label}")
    return found


def _parts(show: Show) -> Iterator[tuple[Show, str]]:
    yield show, "study.show"
    if isinstance(show, Several):
        for place, part in enumerate(show.parts):
            key = f"study.show.parts[{place}]"
            rule = "must be a form of its own"
            require(not isinstance(part, Several), f"{key}.form", part.form, rule)
            yield part, key


def _check_form(study: Study, show: Show, key: str) -> None:
    for name in OF_AXES:
        for axis in getattr(show, name, []):
            _check_axis(study, axis, f"{key}.{name}")
    sides = [*getattr(show, "rows", []), *getattr(show, "columns", [])]
    for axis in sides:
        rule = "must be named once, in rows or in columns"
        require(sides.count(axis) == 1, f"{key}.columns", axis, rule)
    _check_where(study, show.keep, f"{key}.keep")
    if show.form not in WITHOUT_RUNS:
        require(bool(study.axes), "study.axes", "{}", f"must have an axis with form={show.form}")
    if isinstance(show, Points):
        _check_axis(study, show.x, f"{key}.x")
    if isinstance(show, Curves):
        _check_column(show.x, OF_METRICS, f"{key}.x")
    if isinstance(show, Curves | Gaps):
        _check_column(show.y, OF_METRICS, f"{key}.y")
    if isinstance(show, ClientBoxes | Entropy):
        _check_column(show.column, OF_CLIENTS, f"{key}.column")
    if isinstance(show, Gaps):
        for name, pair in show.pairs.items():
            require(len(pair) == 2, f"{key}.pairs.{name}", pair, "must be two labels, [one, two]")
            _check_where(study, {METHOD: pair}, f"{key}.pairs.{name}")
    if isinstance(show, Selection):
        listed = isinstance(show.clients, list) and show.clients != []
        fits = show.clients == "all" or (listed and all(map(_is_index, show.clients)))
        require(fits, f"{key}.clients", show.clients, "must be all, or a list such as [0, 1]")
    if isinstance(show, Datasets):
        known = [file.stem for file in (config_folder() / "data").glob("[!_]*.yaml")]
        for name in show.datasets:
            require_known(f"{key}.datasets", name, known)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_column(name: str, usual: tuple[str, ...], key: str) -> None:
    """Refuse what looks like a column of all runs or of a known method, and is none.

    Other names pass: a method of one's own may record anything.
    """
    known = {*usual, *COMPUTED, *_recorded_by_methods()}
    if "/" not in name and difflib.get_close_matches(name, sorted(known), n=1, cutoff=MISSPELT):
        require_known(key, name, known)


@cache
def _recorded_by_methods() -> set[str]:
    """The columns that the modifiers of this package record."""
    found: set[str] = set()
    for module in pkgutil.iter_modules(algorithms.__path__, f"{algorithms.__name__}."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, Modifier):
                found |= {*one.records, one.records_steps}
    return found


def _check_measure(study: Study, measure: Measure, known: dict[str, Measure], key: str) -> None:
    if isinstance(measure, OfAnother):
        require_known(f"{key}.of", measure.of, known)
    if isinstance(measure, Place):
        _check_axis(study, measure.axis, f"{key}.axis")
    for name in ("baseline", "cell", "against"):
        _check_other(study, getattr(measure, name, {}), f"{key}.{name}")
    if isinstance(measure, Metric | StaysAbove):
        _check_column(measure.column, OF_METRICS, f"{key}.column")
    if isinstance(measure, ClientColumn):
        _check_column(measure.column, OF_CLIENTS, f"{key}.column")
    if isinstance(measure, Metric) and measure.rounds is not None:
        rule = "must be [from, to] with from at most to, or [from, null]"
        require(_is_stretch(measure.rounds), f"{key}.rounds", measure.rounds, rule)
    if isinstance(measure, GradientNorm):
        fits = measure.layer is None or isinstance(measure.layer, int | str)
        require(fits, f"{key}.layer", measure.layer, "must be a name or a place, such as -1")
    if isinstance(measure, CostTo):
        _check_target(study, measure.target, f"{key}.target")


def _is_stretch(rounds: list[int | None]) -> bool:
    first, last = rounds if len(rounds) == 2 else (None, None)
    return first is not None and (last is None or first <= last)


def _check_other(study: Study, changed: Mapping[str, Any], key: str) -> None:
    """The labels of another cell, or for each label of an axis that of its own."""
    for axis, labels in changed.items():
        named = labels if isinstance(labels, dict) else {}
        others = list(named.values()) if named else [labels]
        _check_where(study, {axis: list(named)}, key)
        _check_where(study, {axis: others}, key)


def _check_target(study: Study, target: Any, key: str) -> None:
    if isinstance(target, dict) and list(target) == ["best_of"]:
        where = {axis: [str(label)] for axis, label in target["best_of"].items()}
        _check_where(study, where, f"{key}.best_of")
    elif isinstance(target, dict) and len(target) == 1:
        ((axis, numbers),) = target.items()
        require(isinstance(numbers, dict), f"{key}.{axis}", numbers, "must be label: number")
        _check_where(study, {axis: [str(label) for label in numbers]}, key)
        for label, value in numbers.items():
            require(_is_number(value), f"{key}.{axis}.{label}", value, "must be a number")
    else:
        rule = "must be a number, {axis: {label: number}} or {best_of: {axis: label}}"
        require(_is_number(target), key, target, rule)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_tune(study: Study, tune: Tune) -> None:
    _check_axis(study, tune.axis, "study.tune.axis")
    for axis in tune.per:
        _check_axis(study, axis, "study.tune.per")
        rule = "must be another axis than the one that is tuned"
        require(axis != tune.axis, "study.tune.per", axis, rule)
    if tune.only is not None:
        require(tune.only != [], "study.tune.only", "[]", "must have a label")
    _check_where(study, {tune.axis: [*tune.own, *(tune.only or [])]}, "study.tune")
    numbers = {label: len(trials_of(tune, label)) for label in tuned_labels(study.axes, tune)}
    for label, trials in numbers.items():
        first = next(iter(numbers))
        if trials != numbers[first] or trials < 2:
            raise BadInput(
                f"study.tune: {trials} trials of {label} and {numbers[first]} of {first}; every"
                " label must have the same number, of at least 2"
            )


def _check_claim(study: Study, claim: Statement, measures: dict[str, Measure], key: str) -> None:
    _check_where(study, claim.where, f"{key}.where")
    for name in ("measure", "above"):
        label = getattr(claim, name)
        if label is not None and measures:
            require_known(f"{key}.{name}", label, measures)
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
                require_known(f"{key}.{name}", label, known)
    kinds = [name for name in CLAIM_KINDS if getattr(claim, name) is not None]
    rule = f"must have one of {', '.join(CLAIM_KINDS)}"
    require(len(kinds) == 1, key, ", ".join(kinds) or claim.text, rule)
    for name in ("by", "between"):
        limits = getattr(claim, name)
        fits = limits is None or (len(limits) == 2 and limits[0] < limits[1])
        require(fits, f"{key}.{name}", limits, "must be [from, to]")
    judged = measures.get(claim.measure or next(iter(measures), ""))
    fits = not isinstance(judged, McNemar) or kinds[0] in ("below", "untestable")
    require(fits, key, kinds[0], "must be below, as its measure is a p-value")
    if claim.by is not None and claim.better is None:
        raise BadInput(f"{key}.better is missing: by belongs to better and than")
    if claim.margin is not None and claim.equal is None:
        raise BadInput(f"{key}.equal is missing: margin belongs to equal and to")
    if claim.ties and claim.better is None:
        raise BadInput(f"{key}.better is missing: ties belongs to better and than")
    for one, other in (("better", "than"), ("equal", "to")):
        same = set(getattr(claim, one) or []) & set(getattr(claim, other) or [])
        rule = f"must not be in {key}.{one} as well"
        require(not same, f"{key}.{other}", ", ".join(sorted(same)), rule)

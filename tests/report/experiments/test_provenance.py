"""Where the values of every experiment come from, and what its smaller scales leave out, in
words.
"""

from __future__ import annotations

import re
import shlex
from functools import cache

import pytest
from support import experiments as runnable

from fedbench.report.experiments import experiment as experiments
from fedbench.report.experiments.experiment import Experiment, names

NAMES = names()
load = cache(experiments.load)
SAYS_ITSELF = {
    "algo",
    "modifier",
    "data",
    "attack",
}  # the label that sets it names the method, the data, the attack
# What a scale changes, and the words of which one must be in its description.
WORDS = {
    "rounds": "round",
    "data.subset": "image|example|question|pair|digit",
    "data.test_size": "test",
    "data.train_size": "image|example|pair",
    "eval.every": "evaluat|scor",
    "client.epochs": "epoch",
    "client.steps": "step",
    "client.batch_size": "batch",
    "client.lr": "rate",
    "client.lr_decay.factor": "rate",
    "partition.clients": "client",
    "partition.min_samples": "least",
    "cohort": "client|cohort|active",
    "model": "instead|for the|in place|small|lenet|linear|mlp|network",
    "model.image_size": "pixel",
}


@cache
def labels_of_paper(paper: str, axis: str) -> set[str]:
    """Common settings name labels that not every experiment of the paper has."""
    own = [load(name) for name in NAMES]
    return {label for one in own if one.paper == paper for label in one.axes.get(axis, {})}


@pytest.mark.parametrize("name", NAMES)
def test_every_value_has_its_origin(name):
    experiment = load(name)
    for key, origin in experiment.provenance.items():
        assert origin.source in ("paper", "code", "choice"), key
        assert origin.why, key
        for axis, labels in (origin.only or {}).items():
            assert {str(label) for label in labels} <= labels_of_paper(experiment.paper, axis), key
    if experiment.axes:
        assert {"rounds", "client.lr"} <= set(experiment.provenance)
        assert not {key for key in keys_set(experiment) if not has_origin(key, experiment)}


@pytest.mark.heavy
def test_every_key_is_a_setting_of_a_run_of_its_paper():
    """Else it is misspelt, or dead. Each label of an experiment is looked at once."""
    known: dict[str, set[str]] = {}
    wanted: dict[str, set[str]] = {}
    for name in NAMES:
        experiment = load(name)
        own = known.setdefault(experiment.paper, {"predictions"})  # of McNemar's tests
        wanted.setdefault(experiment.paper, set()).update(experiment.provenance)
        seen: set[tuple[str, str]] = set()
        for cell in experiment.cells("paper"):
            if not set(cell.labels.items()) <= seen:
                seen.update(cell.labels.items())
                config = runnable.config(*experiment.job(cell, cell.seeds[0], "paper"))
                own |= {*sections(config.tree), *(f"choices.{group}" for group in config.names)}
    unknown = {paper: keys - known[paper] for paper, keys in wanted.items()}
    assert unknown == {paper: set() for paper in wanted}


def sections(node: dict, prefix: str = "") -> set[str]:
    """The keys of all settings and of the sections that they are in."""
    found = {prefix + key for key in node}
    for key, value in node.items():
        if isinstance(value, dict):
            found |= sections(value, f"{prefix}{key}.")
    return found


def keys_set(experiment: Experiment) -> set[str]:
    """What the file sets for its runs, and what the words of its labels set."""
    words = {word for cell in experiment.cells("paper") for word in cell.overrides}
    return {
        *leaves(experiment.base),
        *(word.partition("=")[0].lstrip("+") for word in words),
    } - SAYS_ITSELF


def leaves(node: dict, prefix: str = "") -> list[str]:
    found = []
    for key, value in node.items():
        if not prefix and key == "hydra":
            continue
        found += (
            leaves(value, f"{prefix}{key}.")
            if isinstance(value, dict) and value
            else [prefix + key]
        )
    return found


def has_origin(key: str, experiment: Experiment) -> bool:
    """Of itself, of a part of it, of the whole that it is part of, or of the place that a short
    name leads to.
    """
    last = key.rpartition(".")[2]
    return any(
        f"{one}.".startswith(f"{key}.")
        or f"{key}.".startswith(f"{one}.")
        or (key.startswith("algo.") and one.startswith("algo.") and one.rpartition(".")[2] == last)
        for one in experiment.provenance
    )


@pytest.mark.parametrize("scale", ["decisive", "smoke"])
@pytest.mark.parametrize("name", [name for name in NAMES if load(name).axes])
def test_a_scale_says_what_it_changes(name, scale):
    experiment = load(name)
    if not experiment.has_scale(scale):
        return
    reduced, told = experiment.scales[scale], experiment.reduction(scale).lower()
    lines = [reduced.overrides]
    for axis, words in reduced.extra.items():
        lines += [words[label] or "" for label in experiment.labels(axis, scale) if label in words]
    values = dict(word.split("=", 1) for line in lines for word in shlex.split(line))
    for key, words in WORDS.items():
        same = str(looked_up(experiment.base, key)) == values.get(key)
        if key in values and not same and values[key] != "null":
            assert re.search(words, told), (key, values[key], told)
    if reduced.seeds not in (None, experiment.seeds):
        assert "seed" in told


def looked_up(node: dict, key: str) -> object:
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node

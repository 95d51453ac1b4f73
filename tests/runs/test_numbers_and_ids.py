"""Numbers do not lie: a run's id changes when its numbers can, and the header and the summary say
what they rest on.
"""

from __future__ import annotations

import json
import re

import pytest
from support import experiments, numbers_walk
from support import identity_cases as declared
from support.numbers_walk import Walk

from fedbench.config.validate import config_folder

pytestmark = pytest.mark.heavy  # a minute and more

QUICK = ("rounds=1", "client.epochs=1", "partition.clients=4", "runtime.workers=1")


@pytest.fixture(scope="module")
def walk(tmp_path_factory) -> Walk:
    return Walk(numbers_walk.write_files(tmp_path_factory.mktemp("files")))


def test_every_key_of_every_group_is_declared(walk):
    assert numbers_walk.undeclared(walk) == []


@pytest.mark.parametrize("group", ["algo", "modifier", "attack", "partition"])
def test_every_file_of_a_group_is_walked(group):
    named = {
        re.search(rf"\b{group}=\[?(\w+)", words).group(1)
        for words in declared.CHOSEN
        if f"{group}=" in words
    }
    assert {file.stem for file in (config_folder() / group).glob("*.yaml")} - {"dirichlet"} == named


@pytest.mark.parametrize(("words", "key", "value"), list(numbers_walk.cases()))
def test_another_value_is_another_run_with_other_numbers(walk, words, key, value):
    if key == "data.source" and not _has_mnist():
        pytest.skip("FEDBENCH_DATA has no mnist")
    (one, first), (other, second) = walk.run(words), walk.run(words, key, value)
    assert one != other
    assert first != second


def _has_mnist() -> bool:
    from fedbench.data.prepared import data_root

    return (data_root(None) / "mnist" / "train.npz").is_file()


@pytest.mark.parametrize(
    ("words", "key", "value"), [(w, k, v) for w, c in declared.LARGE.items() for k, v in c.items()]
)
def test_a_setting_of_a_large_network_is_part_of_the_id(walk, words, key, value):
    assert walk.parts(words).id != walk.parts(words, key, value).id


@pytest.mark.parametrize("key", declared.CANNOT)
def test_what_cannot_change_a_number_does_not_change_the_id(walk, key):
    """And changes no number, on the same tiny run."""
    value, _ = declared.CANNOT[key]
    words = declared.TRIED_ON.get(key, "")
    assert key == "scale" or key in numbers_walk.leaves(walk.compose(words)[0])
    if key in declared.ID_ALONE:
        assert walk.parts(words).id == walk.parts(words, key, value).id
    else:
        assert walk.run(words) == walk.run(words, key, value)


@pytest.mark.parametrize(
    "words", ["runtime.workers=2", "checkpoint.every=1", "runtime.timeout=99", "scale=paper"]
)
def test_how_a_run_is_made_changes_neither_the_id_nor_a_number(fedbench, words):
    """What the walk, which is one process without files, does not try."""
    plain, other = (
        fedbench(*QUICK, "rounds=3", f"results=r{n}", *own) for n, own in enumerate([[], [words]])
    )
    assert plain.folder.name == other.folder.name
    first, second = (
        json.loads((run.folder / "summary.json").read_text()) for run in (plain, other)
    )
    assert first["digest"] == second["digest"]
    assert first["files"]["predictions.npz"] == second["files"]["predictions.npz"]


@pytest.mark.parametrize("key", declared.FINER)
def test_what_may_change_a_number_or_a_file_changes_the_id(walk, key):
    """Of the tiny run the weights stay, as the table says; where they would not is tried
    elsewhere.
    """
    (one, first), (other, second) = walk.run(""), walk.run("", key, declared.FINER[key][0])
    assert one != other
    assert first.partition(" ")[0] == second.partition(" ")[0]


@pytest.mark.parametrize(("words", "key", "value", "together"), declared.SOMETIMES)
def test_what_matters_together_with_other_settings(walk, words, key, value, together):
    if not together:  # says what is so already: never a number
        assert walk.run(words)[1] == walk.run(words, key, value)[1]
        return
    both = f"{words} {together}".strip()
    (one, first), (other, second) = walk.run(both), walk.run(both, key, value)
    assert one != other
    assert first != second


@pytest.mark.parametrize(("words", "key", "value"), declared.ALIKE)
def test_two_ways_to_say_the_same_are_one_run(walk, words, key, value):
    assert walk.run(words) == walk.run(words, key, value)


@pytest.mark.parametrize(("words", "key", "value"), declared.FINER_THAN_NEEDED)
def test_ids_that_are_finer_than_needed(walk, words, key, value):
    (one, first), (other, second) = walk.run(words), walk.run(words, key, value)
    assert first == second
    assert one != other


def test_the_ids_of_plain_configurations_stay():
    found = {}
    for words in declared.PINNED:
        plain = ("logger=none", "runtime.device=cpu", "runtime.kernels=torch")
        config = experiments.config(*plain, *words.split())
        found[words] = experiments.prepare(config).id
    assert found == declared.PINNED


def test_the_header_and_the_summary_say_what_the_numbers_rest_on(fedbench):
    run = fedbench(*QUICK, "data=mnist", "scale=smoke", "data.subset=200", "runtime.device=cpu")
    assert run.status == 0, run.err
    facts = json.loads((run.folder / "summary.json").read_text())
    data = facts["data"]
    assert (data["source"], data["subset"], data["train_examples"], data["test_examples"]) == (
        "synthetic",
        200,
        200,
        100,
    )
    assert (facts["scale"], facts["device"], facts["threads"], facts["workers"]) == (
        "smoke",
        "cpu",
        1,
        1,
    )
    assert set(facts["versions"]) == {"fedbench", "python", "torch", "numpy"}
    head = run.out
    assert f"id {facts['id']}  scale smoke" in head
    assert (
        "data: mnist (synthetic stand-in for mnist; 200 training and 100 test images), 200 training"
        " and 100 test" in head
    )
    assert "running on cpu, 1 worker, 1 thread each" in head
    for name, version in facts["versions"].items():
        assert f"{name} {version}" in head
    if facts["git_commit"]:
        assert f"commit {facts['git_commit'][:10]}" in head
        assert ("with uncommitted changes" in head) == facts["git_dirty"]


def _data(facts: dict) -> tuple:
    return tuple(
        facts["data"][key] for key in ("source", "subset", "train_examples", "test_examples")
    )


def test_real_data_is_called_real_and_a_subset_is_told(fedbench):
    run = fedbench(*QUICK, "data.subset=300")
    facts = json.loads((run.folder / "summary.json").read_text())["data"]
    assert (facts["source"], facts["subset"], facts["train_examples"], facts["test_examples"]) == (
        "real",
        300,
        300,
        359,
    )
    assert (
        "data: digits (real; subset of 300 training examples), 300 training and 359 test examples"
        in run.out
    )
    assert (
        json.loads((fedbench(*QUICK).folder / "summary.json").read_text())["data"]["subset"] is None
    )

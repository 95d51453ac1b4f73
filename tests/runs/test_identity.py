"""What a run's id depends on: the contents of files, and every setting that can change a number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support import experiments, own_files
from support.data_settings import refusal
from support.run_files import QUICK, rows, summary

from fedbench.config.own_code import add_folders
from fedbench.runs.identity import _own_modifiers, label


def test_the_same_name_with_other_data_is_another_run(fedbench, tmp_path):
    draw = np.random.default_rng(0)
    folders = []
    for root in ("A", "B"):
        for split in ("train", "test"):
            (tmp_path / root / "mnist").mkdir(parents=True, exist_ok=True)
            images = draw.integers(0, 256, (60, 28, 28), dtype=np.uint8)
            np.savez(
                tmp_path / root / "mnist" / f"{split}.npz", images=images, labels=np.arange(60) % 10
            )
        folders.append(fedbench(*QUICK, "data=mnist", f"data.root={tmp_path / root}").folder)
    assert folders[0] != folders[1]


def test_one_rewritten_image_is_another_run(fedbench, tmp_path):
    images, ids = np.random.default_rng(0).integers(0, 256, (600, 28, 28), dtype=np.uint8), []
    for number in (None, 1, 301, 597):
        changed = images.copy()
        if number is not None:
            changed[number] = 255 - changed[number]
        (tmp_path / "root" / "mnist").mkdir(parents=True, exist_ok=True)
        for split, own in (("train", changed), ("test", images)):
            np.savez(
                tmp_path / "root" / "mnist" / f"{split}.npz", images=own, labels=np.arange(600) % 10
            )
        ids.append(
            fedbench(*QUICK, "rounds=1", "data=mnist", f"data.root={tmp_path / 'root'}").folder.name
        )
    assert len(set(ids)) == 4


def test_a_partition_file_and_given_weights(fedbench):
    first = fedbench(*QUICK)
    again = fedbench(
        *QUICK,
        "partition=file",
        f"partition.path={first.folder}/partition.json",
        "~partition.clients",
    )
    assert again.status == 0, again.err
    assert summary(again.folder)["digest"] == summary(first.folder)["digest"]
    assert summary(again.folder)["partition_hash"] == summary(first.folder)["partition_hash"]
    weights = fedbench(*QUICK, f"model.weights={first.folder}/model.safetensors")
    assert weights.status == 0, weights.err
    assert summary(weights.folder)["digest"] != summary(first.folder)["digest"]
    assert float(rows(weights.folder)[0]["train_loss"]) < float(rows(first.folder)[0]["train_loss"])


def test_files_enter_the_identity_by_content(fedbench, tmp_path):
    first = fedbench(*QUICK)
    content = load_file(first.folder / "model.safetensors")
    ids = []
    for name, change in (("a", 0.0), ("b", 0.0), ("c", 0.5)):
        save_file(
            {key: value + change for key, value in content.items()},
            tmp_path / f"{name}.safetensors",
        )
        ids.append(fedbench(*QUICK, f"model.weights={name}.safetensors").folder.name)
    assert ids[0] == ids[1] != ids[2]


SAME = (
    "runtime.workers=2",
    "runtime.timeout=99",
    "checkpoint.every=3",
    "results=elsewhere",
    "algo.allow_adaptive=true",
    "client.lr_decay.every=7",
    "scale=paper",
    "data.root=elsewhere",
    "server.weights=samples",
)
OTHER = (
    "rounds=3",
    "seed=1",
    "cohort=2",
    "client.epochs=2",
    "client.steps=3",
    "client.batch_size=16",
    "client.lr=0.2",
    "client.optimizer=adam",
    "client.momentum=0.5",
    "client.weight_decay=0.1",
    "client.lr_decay.factor=0.5",
    "server.lr=0.5",
    "server.weights=uniform",
    "eval.every=2",
    "eval.batch_size=100",
    "partition.alpha=0.1",
    "partition.clients=5",
    "data.subset=500",
    "model.hidden=[8,8]",
    "algo=fedprox",
    "modifier=[pvr]",
    "runtime.threads=2",
    "partition=iid",
)


def test_the_run_id_changes_exactly_when_the_numbers_can():
    base = ("data=digits", "logger=none", *QUICK)
    first = experiments.prepare(experiments.config(*base)).id
    assert {
        word: experiments.prepare(experiments.config(*base, word)).id == first for word in SAME
    } == dict.fromkeys(SAME, True)
    ids = [experiments.prepare(experiments.config(*base, word)).id for word in OTHER]
    assert len({first, *ids}) == len(OTHER) + 1


def test_a_partition_of_a_run_is_refused_with_another_seed_and_subset(fedbench):
    words = ("data.subset=300", "partition.clients=4", "client.epochs=1", "rounds=1")
    first = fedbench(*words, "runtime.workers=1", "seed=1")
    given = ("partition=file", f"partition.path={first.folder}/partition.json")
    refused = fedbench(*words, *given, "seed=5")
    assert refused.status == 2
    assert "was drawn on other training data" in refused.err
    same_data = fedbench(*words, *given, "seed=5", "data.subset_seed=1", "runtime.workers=1")
    assert same_data.status == 0, same_data.err
    assert summary(same_data.folder)["partition_hash"] == summary(first.folder)["partition_hash"]
    assert "is unknown" not in same_data.out
    assert summary(same_data.folder)["caveats"] == []
    # A list alone may be of other data: a reader of the numbers must know.
    content = json.loads((first.folder / "partition.json").read_text())
    Path("list.json").write_text(json.dumps(content["clients"]))
    plain = fedbench(*words, "partition=file", "partition.path=list.json", "runtime.workers=1")
    (caveat,) = summary(plain.folder)["caveats"]
    assert caveat.endswith("whether it was made for this data is unknown")
    assert plain.out.count(f"note: {caveat}\n") == 1


@pytest.mark.parametrize("name", ["cifar10", "CIFAR10", "' mnist! '", "digits", "''", "'..'"])
def test_own_data_have_a_name_of_their_own(name):
    words = ("data=npz", "data.path=x.npz", "logger=none", f"data.name={name}")
    line = refusal(lambda: experiments.config(*words))
    assert line.startswith("data.name=")
    assert "must be a name of your own" in line


def test_the_label_names_own_data_and_repeats_no_modifier(own_folder):
    own_files.write(
        own_folder,
        algo__fedclip="""
            defaults: [fedavg, /modifier@modifiers: [prox], _self_]
            name: fedclip
        """,
        algo__mine="""
            defaults: [scaffold, _self_]
            name: mine
        """,
        algo__more="""
            defaults: [mine, /modifier@modifiers: [prox], _self_]
            name: more
        """,
        algo__round="defaults: [round]",
    )
    words = ("logger=none", f"hydra.searchpath=[file://{own_folder}]")
    add_folders([str(own_folder)])
    assert label(experiments.config(*words, "algo=fedclip")) == ("digits-mlp-dirichlet0.5-fedclip")
    assert label(experiments.config(*words, "algo=fedclip", "modifier=[ecgr]")).endswith(
        "-fedclip+ecgr"
    )
    assert label(experiments.config(*words, "algo=mine")).endswith("-mine")
    more = label(experiments.config(*words, "algo=more", "modifier=[ecgr]"))
    assert more.endswith("-more+ecgr")
    assert _own_modifiers("round") == []  # Hydra refuses it
    npz = ("data=npz", "data.path=x.npz", "logger=none")
    assert label(experiments.config(*npz)) == "npz-mlp-dirichlet0.5-fedavg"
    assert label(experiments.config(*npz, "data.name='../my data'")) == (
        "my_data-mlp-dirichlet0.5-fedavg"
    )
    assert label(experiments.config(*npz, f"data.name={'x' * 300}")).startswith("x" * 80 + "-mlp")


def test_the_label_does_not_tell_a_value_of_the_environment(monkeypatch):
    monkeypatch.setenv("HIDDEN_NAME", "secretname")
    words = ("data=npz", "data.path=x.npz", "logger=none", "data.name='${oc.env:HIDDEN_NAME}'")
    assert label(experiments.config(*words)) == "npz-mlp-dirichlet0.5-fedavg"

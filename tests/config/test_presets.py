"""Every file of conf/ composes, type-checks and opens with a comment: a new preset is tested by
existing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from support import experiments
from support.run_files import QUICK

from fedbench.algorithms.algorithm import build
from fedbench.config.validate import config_folder

FILES = sorted(file.relative_to(config_folder()) for file in config_folder().rglob("*.yaml"))
CHOICES = [
    file
    for file in FILES
    if len(file.parts) > 1
    and file.parts[0] not in ("hydra", "experiment")
    and not file.stem.startswith("_")  # a part of others
]


def word(file: Path) -> str:
    group, name = file.parts[0], str(Path(*file.parts[1:]).with_suffix(""))
    return f"{group}=[{name}]" if group == "modifier" else f"{group}={name}"


@pytest.mark.parametrize("file", FILES, ids=str)
def test_it_opens_with_a_comment(file):
    first = (config_folder() / file).read_text().splitlines()
    assert first[0].startswith("# ")
    if first[0].startswith("# @package"):
        assert first[1].startswith("# ")


@pytest.mark.parametrize("file", CHOICES, ids=str)
def test_it_composes_and_type_checks(file):
    extra = ["data=mnist"] if file.parts[0] == "scale" else []
    config = experiments.config(*extra, word(file))
    algorithm = build(config.algo, config.scalars.client, config.scalars.server.weights)
    assert algorithm.weights in ("samples", "uniform")
    if file.parts[0] == "algo":
        assert algorithm.name == file.stem
    if file.parts[0] in ("data", "model", "partition", "logger"):
        stored = yaml.safe_load((config_folder() / file).read_text())
        settings = getattr(config, file.parts[0])
        fields = set(stored) - {"_target_", "defaults"}
        # A file that builds on another one of its group has what differs.
        variant = "_target_" not in stored or "_images" in stored.get("defaults", [])
        assert fields <= set(vars(settings)) if variant else fields == set(vars(settings)), (
            "fields of the file and of the class differ"
        )


# FedPVR is SCAFFOLD's control variate on two layers; FedNova has a proximal term on request.
OTHER_DEFAULTS = {"pvr": {"layers": 2}, "fedpvr": {"layers": 2}, "fednova": {"mu": 0.0}}


@pytest.mark.parametrize(
    "file", [file for file in CHOICES if file.parts[0] in ("algo", "modifier")], ids=str
)
def test_a_hyper_parameter_has_one_default(file):
    """The class, the file of its modifier and the file of its algorithm name the same value."""
    for name, modifier in experiments.config(word(file)).algo["modifiers"].items():
        defaults = {field.name: field.default for field in dataclasses.fields(modifier)}
        assert vars(modifier) == defaults | OTHER_DEFAULTS.get(file.stem, {}), name


@pytest.mark.parametrize(
    ("data", "model"),
    [
        *[("digits", "mlp"), ("mnist", "lenet"), ("fmnist", "lenet"), ("emnist", "lenet")],
        *[("cifar10", "cnn5"), ("cifar100", "cnn5"), ("svhn", "cnn5"), ("cinic10", "cnn5")],
        *[("tinyimagenet", "resnet18"), ("lc25000", "resnet18_plain"), ("qqp", "lstm")],
    ],
)
def test_a_dataset_picks_its_model_and_yields_to_the_command_line(data, model):
    assert experiments.config(f"data={data}").names["model"] == model
    assert experiments.config(f"data={data}", "model=linear").names["model"] == "linear"
    assert experiments.config("model=linear", f"data={data}").names["model"] == "linear"


def test_a_dataset_of_ones_own_builds_on_a_named_one(fedbench):
    folder = Path("own") / "data"
    folder.mkdir(parents=True)
    (folder / "few.yaml").write_text("defaults: [digits]\nsubset: 100\n")
    run = fedbench(*QUICK, "--config-dir", "own", "data=few")
    assert run.status == 0, run.err
    assert "data: digits (real; subset of 100 training examples)" in run.out
    assert run.folder.parent.name.startswith("few-mlp-")
    assert fedbench(*QUICK, "data.subset=100").folder.name == run.folder.name


def test_presets_of_ones_own_lie_in_a_folder_of_ones_own(fedbench):
    """Options may stand anywhere among the words, and a file that builds on a named method is named
    in the label.
    """
    folder = Path("own") / "algo"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("defaults: [fedprox]\nmu: 0.5\n")
    run = fedbench(*QUICK, "--config-dir", "own", "algo=mine", "modifier=[ecgr]")
    assert run.status == 0, run.err
    assert run.folder.parent.name.endswith("-mine+ecgr")
    same = fedbench(*QUICK, "algo=fedprox", "algo.mu=0.5", "modifier=[ecgr]")
    assert same.folder.name == run.folder.name

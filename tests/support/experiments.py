"""Small experiments built from the real configuration, without the command line around them."""

from __future__ import annotations

import copy
import os
from dataclasses import replace
from functools import cache
from unittest import mock

import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedbench.config.schema import Config
from fedbench.config.validate import check, config_folder
from fedbench.core.flat_model import FlatModel, digest
from fedbench.data.batches import examples
from fedbench.parallel.group import Group
from fedbench.runs.prepared import PreparedRun
from fedbench.train import prepare
from fedbench.training.federation import Federation

# A stand-in of 300 images of MNIST's shape, on 5 very different clients.
DATA = (
    "data=mnist",
    "data.source=synthetic",
    "data.subset=300",
    "partition.clients=5",
    "partition.alpha=0.3",
    "logger=none",
)
BATCH_NORM = ("model=lenet", "model.batch_norm=true")
PLAIN = ("model=mlp", "model.hidden=[16,8]")
THE_TEST = "PYTEST_CURRENT_TEST"  # a variable that pytest sets to the name of the test


def config(*overrides: str) -> Config:
    """What these words choose. It is composed once in a process, and then copied."""
    environment = {key: value for key, value in os.environ.items() if key != THE_TEST}
    return copy.deepcopy(_config(overrides, tuple(sorted(environment.items()))))


@cache
def _config(overrides: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> Config:
    """Words may refer to variables of the environment."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        composed = compose("config", overrides=list(overrides), return_hydra_config=True)
    names = dict(composed.hydra.runtime.choices)
    return check(
        OmegaConf.masked_copy(composed, [key for key in composed if key != "hydra"]), names
    )


def parts(*overrides: str) -> PreparedRun:
    return prepare(config(*DATA, *overrides))


def prepare_as_asked(made: Config) -> PreparedRun:
    """Also where that is a run of FedAvg by construction, which it would otherwise become."""
    with mock.patch("fedbench.train._why_fedavg", return_value=""):
        return prepare(made)


def federation(*overrides: str, device: str = "cpu") -> Federation:
    made = parts(*overrides)
    return assemble(made, device)


def assemble(made: PreparedRun, device: str = "cpu", group: Group | None = None) -> Federation:
    where = torch.device(device)
    augmented = getattr(made.config.data, "augment", ())
    train, test = examples(made.data, "train", where, augmented), examples(made.data, "test", where)
    place = train.x.device  # as `fedbench.train.assemble` does
    shards = [torch.from_numpy(own).to(place) for own in made.shards]
    model = FlatModel(made.model, where)
    algorithm = made.unbound.bind(replace(made.context, model=model))
    scalars, classes, tests = made.config.scalars, made.data.classes, made.split.local_tests
    local_tests = None if tests is None else [torch.from_numpy(own).to(place) for own in tests]
    group = group or Group()
    return Federation(
        model,
        train,
        test,
        shards,
        algorithm,
        scalars,
        group,
        classes,
        local_tests=local_tests,
        validation=None if made.data.val_y is None else examples(made.data, "val", where),
    )


def final_digest(made: Federation) -> str:
    """Run it to the end; a hash of the server's exact bits."""
    for _ in made.rounds():
        pass
    return state_digest(made)


def state_digest(made: Federation) -> str:
    return digest(made.state.server_tensors() | made.state.client_tensors())


def model_digest(made: Federation) -> str:
    return digest({"w": made.state.w, "b": made.state.b})

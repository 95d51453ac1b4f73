"""How the tests build data settings, prepare small datasets, load them and read a refusal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from fedbench.core.errors import BadInput
from fedbench.data import Dataset, NamedDataset
from fedbench.data.prepare.preparation import PrepareRequest, prepare

CONF = Path(__file__).parents[2] / "conf"
NAMED = ("mnist", "fmnist", "cifar10", "cifar100", "emnist", "svhn")
BY_HAND = ("cinic10", "lc25000")  # a person must get the original files


def data_settings(name: str, **changes: object) -> NamedDataset:
    """What `fedbench data=<name> data.<key>=<value>` builds."""
    return replace(instantiate(data_config(name), _convert_="all"), **changes)


def data_config(name: str) -> DictConfig:
    """What the files of conf/data say of a dataset, without its default model."""
    config = OmegaConf.load(CONF / "data" / f"{name}.yaml")
    if "_images" in config.pop("defaults"):
        config = OmegaConf.merge(OmegaConf.load(CONF / "data" / "_images.yaml"), config)
    return config


def prepare_small(name: str, given: Path, root: Path, **options: object) -> Path:
    """Prepare what is there, however little, and return the dataset's folder."""
    request = PrepareRequest(name, given, **{"any_size": True, **options})
    prepare(request, root / name)
    return root / name


def load(name: str, root: Path, **changes: object) -> Dataset:
    return data_settings(name, root=str(root), **changes).load(0)


def refusal(action: Callable[[], object]) -> str:
    """The line with which the action is refused as bad input."""
    with pytest.raises(BadInput) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)

"""A run, built and checked, before anything is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext
from fedbench.config.schema import Config
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.data.dataset import Dataset
from fedbench.models.cpu_kernels import KernelChoice
from fedbench.parallel import devices
from fedbench.partitions.base import Split
from fedbench.partitions.statistics import partition_hash
from fedbench.runs.folder import RunFolder
from fedbench.runs.identity import source_hash, versions

SERIES, RUN_ID = "setting apart from rounds", "run id"


@dataclass
class PreparedRun:
    """Everything that one run needs. `fedbench.train.prepare` makes it from a configuration."""

    config: Config
    device: str
    data: Dataset
    split: Split
    model: Model
    flat: FlatModel  # of `model`, on the CPU
    algorithm: Algorithm  # bound to `flat`
    unbound: Algorithm
    context: BindContext
    folder: RunFolder
    id: str
    series: str  # the id of all runs that differ in nothing but the number of rounds
    kernels: KernelChoice
    instead: str = ""  # why this is the run of another algorithm than the one that was asked for

    def __post_init__(self) -> None:
        self.config.folder = self.folder.path  # where the caller, who has `config`, reads it

    def on(self, device: torch.device) -> tuple[FlatModel, Algorithm]:
        """The model on a rank's device, and the algorithm bound to it."""
        if device.type == "cpu":
            return self.flat, self.algorithm
        flat = FlatModel(self.model, device)
        return flat, self.unbound.bind(replace(self.context, model=flat))

    @property
    def shards(self) -> list[np.ndarray]:
        """The training indices of every client."""
        return self.split.client_indices

    @property
    def data_name(self) -> str:
        """The dataset's name; the interpolation, if the name comes from the environment."""
        given = self.config.tree["data"].get("name")
        shown = self.config.shown["data"].get("name")
        return self.data.name if given == shown else shown

    @property
    def gpu(self) -> dict[str, str]:
        """The GPU and its software; empty on the CPU."""
        return devices.facts() if self.device == "cuda" else {}

    def partition_hash(self) -> str:
        """A hash of every client's training examples and, where it has some, its own tests."""
        return partition_hash([*self.split.client_indices, *(self.split.local_tests or [])])

    def origin(self) -> dict[str, str]:
        """What all ranks, and a checkpoint and the run that resumes from it, must share.

        The model of the GPU is part of it, unless `runtime.deterministic=false`. The likely causes
        of a difference come before their consequences.
        """
        packages = {name: version for name, version in versions().items() if name != "python"}
        same_bits = self.config.scalars.runtime.deterministic
        return {
            "source code": source_hash(),
            "own code": json.dumps(self.config.own_code),
            **{f"version of {name}": version for name, version in packages.items()},
            "device": self.device,
            "kernels": self.kernels.name,
            **{f"GPU {what}": value for what, value in self.gpu.items() if same_bits},
            "dataset": self.data.fingerprint(),
            "partition": self.partition_hash(),
            SERIES: self.series,
            RUN_ID: self.id,
        }

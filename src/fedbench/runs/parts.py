"""An experiment, built and checked, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext
from fedbench.config.validate import Config
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.data.dataset import Dataset
from fedbench.partitions.base import Split
from fedbench.partitions.statistics import partition_hash
from fedbench.runs.folder import RunFolder, versions
from fedbench.runs.source import source_hash


@dataclass
class Parts:
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

    def __post_init__(self) -> None:
        self.config.folder = self.folder.path  # whoever gave the configuration finds the run

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

    def partition_hash(self) -> str:
        """Of who trains on what, and, where clients have tests of their own, of those."""
        return partition_hash([*self.split.client_indices, *(self.split.local_tests or [])])

    def facts(self) -> dict[str, str]:
        """What all ranks must share, the likely causes of a difference before its consequences."""
        return {
            "source code": source_hash(),
            **{
                f"version of {name}": number
                for name, number in versions().items()
                if name != "python"
            },
            "device": self.device,
            "dataset": self.data.fingerprint(),
            "partition": self.partition_hash(),
            "run id": self.id,
        }

    def origin(self) -> dict[str, str]:
        """What a checkpoint must share with the run that goes on from it, or numbers of two runs
        would be mixed.
        """
        packages = {name: number for name, number in versions().items() if name != "python"}
        return {
            "run": self.id,
            **packages,
            "source code": source_hash(),
            "partition": self.partition_hash(),
        }

"""A run, built and checked, before anything is written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedbench.algorithms.algorithm import Algorithm
from fedbench.config.validate import Config
from fedbench.data.dataset import Dataset
from fedbench.models.base import Model
from fedbench.partitions.base import Split
from fedbench.partitions.statistics import partition_hash
from fedbench.runs.folder import RunFolder
from fedbench.runs.identity import source_hash, versions


@dataclass
class PreparedRun:
    """Everything that one run needs. `fedbench.train.build_parts` makes it from a configuration."""

    config: Config
    device: str
    data: Dataset
    split: Split
    model: Model
    algorithm: Algorithm
    folder: RunFolder
    id: str

    def __post_init__(self) -> None:
        self.config.folder = (
            self.folder.path
        )  # the caller has the configuration, and reads it there

    @property
    def shards(self) -> list[np.ndarray]:
        """The training indices of every client."""
        return self.split.parts

    @property
    def data_name(self) -> str:
        """The dataset's name; the interpolation, if the name comes from the environment."""
        given = self.config.tree["data"].get("name")
        shown = self.config.shown["data"].get("name")
        return self.data.name if given == shown else shown

    def partition_hash(self) -> str:
        """A hash of every client's training examples and, where it has some, its own tests."""
        return partition_hash([*self.split.parts, *(self.split.local_tests or [])])

    def origin(self) -> dict[str, str]:
        """What all ranks, and a checkpoint and the run that resumes from it, must share.

        The likely causes of a difference come before their consequences.
        """
        packages = {name: version for name, version in versions().items() if name != "python"}
        return {
            "source code": source_hash(),
            **{f"version of {name}": version for name, version in packages.items()},
            "device": self.device,
            "dataset": self.data.fingerprint(),
            "partition": self.partition_hash(),
            "run id": self.id,
        }

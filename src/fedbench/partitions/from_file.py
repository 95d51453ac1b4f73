"""A split that somebody made elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.files import file_hash, require_file, unreadable
from fedbench.partitions.base import Split

_NEEDED = "a JSON file: a list with a list of training indices for each client"


@dataclass(frozen=True)
class FilePartition:
    """A JSON list with a list of training indices for each client, such as a run's own
    `partition.json`.

    A client may be empty, but no index may be repeated, nor be left out unless `incomplete` says
    that this is meant: most likely the file was made for other data. (`heterogeneity` counts
    indices without a client as `unused`.) Indices count the training set that is used, after
    `data.subset`. The seed plays no part.
    """

    path: str | None = None
    clients: int | None = None  # null = as many as the file has
    local_test: float = 0.0  # share of a client's samples that are put aside to test it with
    incomplete: bool = False  # whether training examples may be nobody's

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        lists = self._read()
        if self.clients is not None:
            allowed = f"null or {len(lists)}, the clients of partition.path"
            require(self.clients == len(lists), "partition.clients", self.clients, allowed)
        try:
            return Split(_parts(lists, len(labels), self.incomplete))
        except ValueError as error:
            raise BadInput(f"{self._subject()}: {error}") from error

    def split(self, labels: np.ndarray, classes: int, seed: int) -> list[np.ndarray]:
        """The indices alone."""
        return self.draw(labels, classes, seed).parts

    def content_hash(self) -> str:
        """Hash of the file's bytes."""
        return file_hash(self._file(), self._subject())

    def _subject(self) -> str:
        return f"partition.path={self.path}"

    def _file(self) -> Path:
        if not self.path:
            raise bad_value("partition.path", self.path, f"partition=file needs {_NEEDED}")
        return Path(self.path).expanduser()

    def _read(self) -> list[list[int]]:
        file = self._file()
        require_file(file, self._subject())
        try:
            lists = json.loads(file.read_bytes())
        except OSError as error:
            raise unreadable(self._subject(), error) from error
        except (
            ValueError,
            RecursionError,
        ) as error:  # bad JSON, bad UTF-8, numbers of thousands of digits
            raise BadInput(f"{self._subject()}: not JSON ({error}); needs {_NEEDED}") from error
        if not (
            isinstance(lists, list)
            and lists
            and all(isinstance(indices, list) for indices in lists)
        ):
            raise BadInput(f"{self._subject()}: needs {_NEEDED}")
        return lists


def _parts(lists: list[list[int]], samples: int, incomplete: bool) -> list[np.ndarray]:
    owner: dict[int, int] = {}
    for client, indices in enumerate(lists):
        for index in indices:
            if type(index) is not int:  # true and false are integers to isinstance
                raise ValueError(
                    f"client {client} has {json.dumps(index)[:40]}, needs whole numbers"
                )
            if not 0 <= index < samples:
                raise ValueError(
                    f"client {client} has index {str(index)[:40]}, needs 0 to {samples - 1}"
                )
            if index in owner:
                raise ValueError(
                    f"index {index} is in client {owner[index]} and again in client {client}"
                )
            owner[index] = client
    if not owner:
        raise ValueError("no client has any index")
    if len(owner) < samples and not incomplete:
        first = next(index for index in range(samples) if index not in owner)
        words = (
            f"{samples - len(owner)} of {samples} training examples are in no client, the first is"
            f" {first}"
        )
        raise ValueError(f"{words}; partition.incomplete=true allows that")
    return [np.sort(np.array(indices, dtype=np.int64)) for indices in lists]

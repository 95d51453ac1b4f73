"""A split that is read from a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.fields import count, number
from fedbench.core.files import file_hash, require_file, unreadable
from fedbench.partitions.base import Split

_FORMAT = "must be a JSON file: a list with a list of training indices for each client"


@dataclass(frozen=True)
class FilePartition:
    """A JSON list with a list of training indices for each client: `[[0, 2], [1, 3]]`.

    A run's own `partition.json` is such a file. A client may be empty, but no index may be
    repeated. An index may be left out only with `incomplete`, because a file that does so was most
    likely made for other data. (`heterogeneity` counts indices without a client as `unused`.)
    Indices refer to the training set after `data.subset`. The seed has no effect.
    """

    path: str | None = None
    clients: int | None = count(None)  # null = as many as the file has
    # Share of a client's samples that are put aside to test it with.
    local_test: float = number(0.0, at_least=0, below=1)
    incomplete: bool = False  # whether training examples may belong to no client

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        lists = self._read()
        if self.clients is not None:
            rule = f"must be null or {len(lists)}, the number of clients in partition.path"
            require(self.clients == len(lists), "partition.clients", self.clients, rule)
        try:
            return Split(_checked_indices(lists, len(labels), self.incomplete))
        except ValueError as error:
            raise BadInput(f"{self._subject()}: {error}") from error

    def content_hash(self) -> str:
        """Hash of the file's bytes."""
        return file_hash(self._file(), self._subject())

    def _subject(self) -> str:
        return f"partition.path={self.path}"

    def _file(self) -> Path:
        if not self.path:
            raise bad_value("partition.path", self.path, _FORMAT)
        return Path(self.path).expanduser()

    def _read(self) -> list[list[int]]:
        file = self._file()
        require_file(file, self._subject())
        try:
            lists = json.loads(file.read_bytes())
        except OSError as error:
            raise unreadable(self._subject(), error) from error
        # A ValueError is bad JSON, bad UTF-8 or a number of thousands of digits.
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self._subject()}: {_FORMAT} ({error})") from error
        is_list = isinstance(lists, list) and bool(lists)
        if not is_list or not all(isinstance(indices, list) for indices in lists):
            raise BadInput(f"{self._subject()}: {_FORMAT}")
        return lists


def _checked_indices(lists: list[list[int]], samples: int, incomplete: bool) -> list[np.ndarray]:
    owner: dict[int, int] = {}
    for client, indices in enumerate(lists):
        for index in indices:
            if type(index) is not int:  # true and false are integers to isinstance
                raise ValueError(
                    f"client {client} has {json.dumps(index)[:40]}; it must be an integer"
                )
            if not 0 <= index < samples:
                raise ValueError(
                    f"client {client} has index {str(index)[:40]}; it must be 0 to {samples - 1}"
                )
            if index in owner:
                raise ValueError(
                    f"index {index} is in client {owner[index]} and again in client {client}; it"
                    " must be in one"
                )
            owner[index] = client
    if not owner:
        raise ValueError("no client has an index; at least one must have some")
    if len(owner) < samples and not incomplete:
        first = next(index for index in range(samples) if index not in owner)
        raise ValueError(
            f"{samples - len(owner)} of {samples} training examples are in no client, the first is"
            f" {first}; if that is meant, set partition.incomplete=true"
        )
    return [np.sort(np.array(indices, dtype=np.int64)) for indices in lists]

"""A split that is read from a file, and the file that a run writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.fields import count
from fedbench.core.files import file_hash, require_file, unreadable
from fedbench.partitions.base import PartitionSettings, Split

_FORMAT = "must be a JSON file: a list with a list of training indices for each client"
_UNCHECKED = "the partition's file has no fingerprint: whether it was made for this data is unknown"


def file_content(client_indices: Sequence[np.ndarray], fingerprint: str) -> str:
    """The text of a run's partition.json, which `FilePartition` reads."""
    lists = ",\n".join(str(own.tolist()) for own in client_indices)
    return f'{{"fingerprint": "{fingerprint}",\n"clients": [{lists}]}}\n'


@dataclass(frozen=True)
class FilePartition(PartitionSettings):
    """A JSON list with a list of training indices for each client: `[[0, 2], [1, 3]]`.

    A run's own `partition.json` has this list as `clients`, and the `fingerprint` of its training
    set beside it: `{"fingerprint": "0123456789abcdef", "clients": [[0, 2], [1, 3]]}`. Such a file
    is refused on any other training set. A client may be empty, but no index may be repeated. An
    index may be left out only with `incomplete`, because a file that does so was most likely made
    for other data. (`heterogeneity` counts indices without a client as `unused`.) Indices refer to
    the training set after `data.subset` and `data.validation`. The seed decides nothing but which
    samples `local_test` puts aside.
    """

    path: str | None = None
    clients: int | None = count(None)  # null = as many as the file has
    incomplete: bool = False  # whether training examples may belong to no client

    def draw(self, labels: np.ndarray, classes: int, seed: int) -> Split:
        lists, fingerprint = self._read()
        if self.clients is not None:
            rule = f"must be null or {len(lists)}, the number of clients in partition.path"
            require(self.clients == len(lists), "partition.clients", self.clients, rule)
        try:
            indices = _checked_indices(lists, len(labels), self.incomplete)
        except ValueError as error:
            raise BadInput(f"{self._subject()}: {error}") from error
        return Split(indices, note="" if fingerprint else _UNCHECKED)

    def for_run(self, labels: np.ndarray, classes: int, seed: int, fingerprint: str) -> Split:
        _, written = self._read()
        if written not in (None, fingerprint):
            raise BadInput(
                f"{self._subject()}: was drawn on other training data (fingerprint {written}; here"
                f" it is {fingerprint}); data, data.subset, data.subset_seed (or seed) and"
                " data.validation must be those of the run that wrote it"
            )
        return super().for_run(labels, classes, seed, fingerprint)

    def content_hash(self) -> str:
        """Hash of the file's bytes."""
        return file_hash(self._file(), self._subject())

    def _subject(self) -> str:
        return f"partition.path={self.path}"

    def _file(self) -> Path:
        if not self.path:
            raise bad_value("partition.path", self.path, _FORMAT)
        return Path(self.path).expanduser()

    def _read(self) -> tuple[list[list[int]], str | None]:
        """The clients' lists, and the fingerprint of the training set, if the file has it."""
        file = self._file()
        require_file(file, self._subject())
        try:
            content = json.loads(file.read_bytes())
        except OSError as error:
            raise unreadable(self._subject(), error) from error
        # A ValueError is bad JSON, bad UTF-8 or a number of thousands of digits.
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self._subject()}: {_FORMAT} ({error})") from error
        lists: Any = content
        fingerprint = None
        if isinstance(content, dict) and content.keys() == {"fingerprint", "clients"}:
            lists, fingerprint = content["clients"], content["fingerprint"]
        is_list = isinstance(lists, list) and bool(lists)
        if not is_list or not all(isinstance(indices, list) for indices in lists):
            raise BadInput(f"{self._subject()}: {_FORMAT}")
        if not isinstance(fingerprint, str | None):
            raise BadInput(f"{self._subject()}: its fingerprint must be a text")
        return lists, fingerprint


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

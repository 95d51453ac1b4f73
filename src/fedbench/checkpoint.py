"""Checkpoints: a folder of safetensors files that appears whole or not at all.

Every rank writes the memories of its own clients, the leader writes the server's side and, last, a manifest with the
checksum of every file; then the folder is renamed into place. The one before it is kept: should the newest be
damaged, the run goes on from there. A run resumes with any number of ranks, because memories are keyed by client.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbench.files import write_atomically
from fedbench.parallel import Group
from fedbench.runs import versions
from fedbench.state import ExperimentState

PREFIX, UNFINISHED = "checkpoint-", "unfinished-"
KEPT = 2


@dataclass
class Checkpoint:
    """What was read back: progress, the books, and tensors that are not part of the state."""

    done: int
    books: dict[str, Any]
    extra: dict[str, Tensor]


class CheckpointStore:
    def __init__(self, folder: Path, group: Group):
        self.folder, self.group = folder, group

    def save(self, done: int, state: ExperimentState, books: dict[str, Any], extra: dict[str, Tensor]) -> None:
        """Write a checkpoint after round `done`; `books` and `extra` count on the leader only."""
        target = self.folder / f"{PREFIX}{done:06d}"
        building = self.folder / f"{UNFINISHED}{done:06d}"
        if self.group.leader:
            shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(target, ignore_errors=True)  # a damaged one of the same round
            building.mkdir(parents=True)
        self.group.barrier()
        _save(state.client_tensors(), building / f"clients-{self.group.rank}.safetensors")
        if self.group.leader:
            tensors = state.server_tensors() | {f"extra/{name}": value for name, value in extra.items()}
            _save(tensors, building / "server.safetensors")
        self.group.barrier()
        if self.group.leader:
            checksums = {file.name: _checksum(file) for file in sorted(building.iterdir())}
            manifest = {"done": done, "versions": versions(), "files": checksums, "books": books}
            write_atomically(building / "manifest.json", json.dumps(manifest))
            os.rename(building, target)
            for old in self._folders()[:-KEPT]:
                shutil.rmtree(old)
        self.group.barrier()

    def load(self, state: ExperimentState) -> Checkpoint | None:
        """Restore the newest checkpoint that is whole, every rank its own clients; None when there is none."""
        done = self.group.share(self._newest_whole() if self.group.leader else 0)
        if not done:
            return None
        folder = self.folder / f"{PREFIX}{done:06d}"
        tensors = load_file(folder / "server.safetensors")
        extra = {name.removeprefix("extra/"): tensors.pop(name) for name in list(tensors) if name.startswith("extra/")}
        state.restore_server(tensors)
        for file in sorted(folder.glob("clients-*.safetensors")):
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118  (not a dictionary)
                    if state.owners[int(name.split("/")[0])] == self.group.rank:
                        state.restore_client(name, stored.get_tensor(name))
        manifest = json.loads((folder / "manifest.json").read_text())
        return Checkpoint(done, manifest["books"], extra)

    def _newest_whole(self) -> int:
        """Its number; those after it are of no use, and must not outlive the ones that this run will write."""
        for folder in reversed(self._folders()):
            problem = _problem(folder)
            if not problem:
                return _number(folder)
            print(f"checkpoint {folder.name} is not used: {problem}", flush=True)
            shutil.rmtree(folder)
        return 0

    def _folders(self) -> list[Path]:
        return sorted(self.folder.glob(f"{PREFIX}[0-9]*"), key=_number)

    def remove(self) -> None:
        """The run is finished: its files say all."""
        for folder in [*self._folders(), *self.folder.glob(f"{UNFINISHED}*")]:
            shutil.rmtree(folder)


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix(PREFIX))


def _problem(folder: Path) -> str:
    """Why a checkpoint cannot be trusted, or nothing."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        for name, checksum in manifest["files"].items():
            if _checksum(folder / name) != checksum:
                return f"{name} is damaged"
        written, now = manifest["versions"], versions()
        for package in ("fedbench", "torch"):
            if written[package] != now[package]:
                return f"it was written by {package} {written[package]}, this is {now[package]}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest cannot be read ({type(error).__name__})"
    return ""


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}, path)
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()

"""Checkpoints: a folder of safetensors files that appears whole or not at all.

Every rank writes the memories of its own clients and sends the checksum of its file. The leader
writes the server's state and, last, a manifest with the checksums of all files and of itself; then
the folder is renamed into place. The checkpoint before it is kept: should the newest one be
damaged, the run resumes from the older one. A run resumes with any number of ranks, because
memories are keyed by client. A checkpoint names its origin (run, partition, source code, versions)
and is used only there, or by a run that extends this one (`fedbench.runs.extension`).
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbench.core.files import checksum, checksum_of, sync_folder, write_atomically
from fedbench.parallel.failures import as_os_error
from fedbench.parallel.group import Group
from fedbench.training.state import ExperimentState

PREFIX = "checkpoint-"
UNFINISHED = "unfinished-"
KEPT = 2
MANIFEST = "manifest.json"
SERVER_FILE = "server.safetensors"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass
class Checkpoint:
    """What was read back beside the state: the round, and what the writer had stored."""

    done: int
    progress: dict[str, Any]
    tensors: dict[str, Tensor]


class CheckpointStore:
    """Saves and loads the checkpoints of a run; every rank has one, and all ranks call together.

    `origin`, `progress` and `tensors` count on the leader only. A checkpoint after the last of
    `rounds` is kept for runs with more of them; this run does not resume from it.
    """

    def __init__(
        self, folder: Path, group: Group, origin: dict[str, str], rounds: int | None = None
    ):
        self.folder = folder
        self.group = group
        self.origin = origin
        self.rounds = rounds

    def save(
        self,
        done: int,
        state: ExperimentState,
        progress: dict[str, Any],
        tensors: dict[str, Tensor],
    ) -> None:
        """Write a checkpoint after round `done`."""
        building = self.folder / f"{UNFINISHED}{done:06d}"
        if self.group.leader:
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir(parents=True)
        self.group.barrier()
        own = building / _clients_file(self.group.rank)
        _save(state.client_tensors(), own)
        checksums = self.group.gather_text(checksum(own))  # also says that every rank has written
        if self.group.leader:
            server = building / SERVER_FILE
            extra = {f"extra/{name}": value for name, value in tensors.items()}
            _save(state.server_tensors() | extra, server)
            files = {_clients_file(rank): value for rank, value in enumerate(checksums)}
            files[SERVER_FILE] = checksum(server)
            manifest = {
                "done": done,
                "ranks": self.group.size,
                "origin": self.origin,
                "progress": progress,
                "files": files,
            }
            self._complete(building, manifest)
        self.group.barrier()

    def _complete(self, building: Path, manifest: dict[str, Any]) -> None:
        """Make a checkpoint visible, and remove the oldest."""
        manifest["checksum"] = checksum_of(manifest)
        write_atomically(building / MANIFEST, json.dumps(manifest))
        place = self._place(manifest["done"])
        if place.exists():  # of a finished run that is run again, because a file was damaged
            shutil.rmtree(place)
        os.rename(building, place)
        sync_folder(self.folder)  # before an older one is removed
        for old in _folders(self.folder, PREFIX)[:-KEPT]:
            shutil.rmtree(old)

    def load(self, state: ExperimentState) -> Checkpoint | None:
        """Restore the newest whole checkpoint, if there is one; every rank restores its clients."""
        done = self.group.share(self._newest_whole() if self.group.leader else 0)
        return self.read(done, state) if done else None

    def read(self, done: int, state: ExperimentState) -> Checkpoint:
        """Restore the checkpoint after round `done`."""
        folder = self._place(done)
        manifest = json.loads((folder / MANIFEST).read_text())
        server, extra = {}, {}
        for name, value in load_file(folder / SERVER_FILE).items():
            if name.startswith("extra/"):
                extra[name.removeprefix("extra/")] = value
            else:
                server[name] = value
        state.restore_server(server)
        for rank in range(manifest["ranks"]):
            with safe_open(folder / _clients_file(rank), framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118  (not a dictionary)
                    if state.owners[int(name.split("/")[0])] == self.group.rank:
                        state.restore_client(name, stored.get_tensor(name))
        return Checkpoint(done, manifest["progress"], extra)

    def _newest_whole(self) -> int:
        """The round of the newest checkpoint that can be used; what cannot is removed."""
        for unfinished in _folders(self.folder, UNFINISHED):
            shutil.rmtree(unfinished)
        for folder in reversed(_folders(self.folder, PREFIX)):
            if self.rounds is not None and _round(folder) >= self.rounds:
                continue
            problem = self.problem(folder)
            if not problem:
                return _round(folder)
            print(f"checkpoint {folder.name} is not used: {problem}", flush=True)
            shutil.rmtree(folder)
        return 0

    def _place(self, done: int) -> Path:
        return self.folder / f"{PREFIX}{done:06d}"

    def problem(self, folder: Path) -> str:
        """Why a checkpoint cannot be used; empty if it can."""
        try:
            manifest = json.loads((folder / MANIFEST).read_text())
            written = manifest.pop("checksum")
            if written != checksum_of(manifest) or manifest["done"] != _round(folder):
                return f"{MANIFEST} is damaged"
            expected = {SERVER_FILE, *map(_clients_file, range(manifest["ranks"]))}
            if set(manifest["files"]) != expected:
                return "files of some ranks are missing"
            for name, written in manifest["files"].items():
                if checksum(folder / name) != written:
                    return f"{name} is damaged"
            for what, now in self.origin.items():
                before = manifest["origin"].get(what)
                if before != now:
                    return f"it has another {what} ({before}, not {now})"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except UNREADABLE as error:
            return f"{MANIFEST} cannot be read ({type(error).__name__})"
        return ""


def remove_checkpoints(folder: Path, kept: int | None = None) -> None:
    """Remove the checkpoints of a finished run but the one after round `kept`."""
    for old in [*_folders(folder, PREFIX), *_folders(folder, UNFINISHED)]:
        if old.name != f"{PREFIX}{kept or 0:06d}":
            shutil.rmtree(old)


def kept_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a run's folder, each with its round."""
    return [(_round(path), path) for path in _folders(folder, PREFIX)]


def origin_of(checkpoint: Path) -> dict[str, str]:
    """What a checkpoint says of its origin; nothing if it cannot be read."""
    try:
        origin = json.loads((checkpoint / MANIFEST).read_text())["origin"]
    except UNREADABLE:
        return {}
    return origin if isinstance(origin, dict) else {}


def _folders(folder: Path, prefix: str) -> list[Path]:
    """Checkpoints, the oldest first. Somebody's copy, "checkpoint-000002.old", is left alone."""
    found = [path for path in folder.glob(f"{prefix}*") if _number(path).isdigit()]
    return sorted(found, key=_round)


def _round(checkpoint: Path) -> int:
    """The round after which a checkpoint was written, from its name."""
    return int(_number(checkpoint))


def _number(checkpoint: Path) -> str:
    return checkpoint.name.partition("-")[2]


def _clients_file(rank: int) -> str:
    return f"clients-{rank}.safetensors"


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a file and wait until the disk has it. A write that fails leaves no file."""
    stored = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    try:
        save_file(stored, path)
    except SafetensorError as error:
        path.unlink(missing_ok=True)  # the disk is full, mostly: give back what was taken
        raise as_os_error(error, path) from error
    with open(path, "rb+") as file:
        os.fsync(file.fileno())

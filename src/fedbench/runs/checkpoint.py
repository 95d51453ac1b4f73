"""Checkpoints: a folder of safetensors files that appears whole or not at all.

Every rank writes the memories of its own clients and sends the checksum of its file; the leader
writes the server's side and, last, a manifest with the checksums of all files and of itself; then
the folder is renamed into place. The one before it is kept: should the newest be damaged, the run
goes on from there. A run resumes with any number of ranks, because memories are keyed by client. A
checkpoint says where it comes from (run, partition, source code, versions), and serves only there;
what another version has written stays for whoever goes back to that version, until the run is
finished.
"""

from __future__ import annotations

import json
import os
import re
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

PREFIX, UNFINISHED = "checkpoint-", "unfinished-"
NAME = re.compile(rf"{PREFIX}(?P<tag>[0-9a-f]{{8}})-(?P<number>\d{{6,}})")  # tag: of the origin
UNFINISHED_NAME = re.compile(rf"{UNFINISHED}\d{{6,}}")
KEPT = 2
SERVER_FILE = "server.safetensors"


@dataclass
class Checkpoint:
    """What was read back: progress, the books, and tensors that are not part of the state."""

    done: int
    books: dict[str, Any]
    extra: dict[str, Tensor]


class CheckpointStore:
    """`origin` is what a checkpoint must share with the run that goes on from it; it counts on the
    leader only.
    """

    def __init__(self, folder: Path, group: Group, origin: dict[str, str]):
        self.folder, self.group, self.origin = folder, group, origin
        self._tag = f"{group.share(int(checksum_of(origin)[:8], 16)):08x}"

    def save(
        self, done: int, state: ExperimentState, books: dict[str, Any], extra: dict[str, Tensor]
    ) -> None:
        """Write a checkpoint after round `done`; `books` and `extra` count on the leader only."""
        building = self.folder / f"{UNFINISHED}{done:06d}"
        try:
            self._write(building, done, state, books, extra)
        except OSError:  # a full disk, mostly: give back what this one took
            shutil.rmtree(building, ignore_errors=True)
            raise

    def _write(
        self,
        building: Path,
        done: int,
        state: ExperimentState,
        books: dict[str, Any],
        extra: dict[str, Tensor],
    ) -> None:
        target = self._place(done)
        if self.group.leader:
            _make_room(building)
            _make_room(target)  # of a damaged one of the same round
            building.mkdir(parents=True)
        self.group.barrier()
        own = building / _clients_file(self.group.rank)
        _save(state.client_tensors(), own)
        checksums = self.group.gather_text(checksum(own))  # also says that every rank has written
        if self.group.leader:
            tensors = state.server_tensors() | {
                f"extra/{name}": value for name, value in extra.items()
            }
            _save(tensors, building / SERVER_FILE)
            files = {_clients_file(rank): value for rank, value in enumerate(checksums)}
            files[SERVER_FILE] = checksum(building / SERVER_FILE)
            manifest = {
                "done": done,
                "ranks": self.group.size,
                "origin": self.origin,
                "books": books,
                "files": files,
            }
            self._complete(building, target, manifest)
        self.group.barrier()

    def _complete(self, building: Path, target: Path, manifest: dict[str, Any]) -> None:
        manifest["checksum"] = checksum_of(manifest)
        write_atomically(building / "manifest.json", json.dumps(manifest))
        os.rename(building, target)
        sync_folder(self.folder)  # before an older one goes
        for old in _folders(self.folder, self._tag)[:-KEPT]:
            shutil.rmtree(old)

    def load(self, state: ExperimentState) -> Checkpoint | None:
        """Restore the newest checkpoint that is whole, every rank its own clients; None when there
        is none.
        """
        done = self.group.share(self._newest_whole() if self.group.leader else 0)
        if not done:
            return None
        folder = self._place(done)
        manifest = json.loads((folder / "manifest.json").read_text())
        tensors = load_file(folder / SERVER_FILE)
        extra = {
            name.removeprefix("extra/"): tensors.pop(name)
            for name in list(tensors)
            if name.startswith("extra/")
        }
        state.restore_server(tensors)
        for rank in range(manifest["ranks"]):
            with safe_open(folder / _clients_file(rank), framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118  (not a dictionary)
                    if state.owners[int(name.split("/")[0])] == self.group.rank:
                        state.restore_client(name, stored.get_tensor(name))
        return Checkpoint(done, manifest["books"], extra)

    def _newest_whole(self) -> int:
        """Its number; those after it are of no use, and must not outlive the ones that this run
        will write.
        """
        for unfinished in _own(self.folder, UNFINISHED_NAME):
            shutil.rmtree(unfinished)
        self._tell_of_strangers()
        for folder in reversed(_folders(self.folder, self._tag)):
            problem = self._problem(folder)
            if not problem:
                return _number(folder)
            print(f"checkpoint {folder.name} is not used: {problem}", flush=True)
            shutil.rmtree(folder)
        return 0

    def _place(self, done: int) -> Path:
        return self.folder / f"{PREFIX}{self._tag}-{done:06d}"

    def _tell_of_strangers(self) -> None:
        """Of other versions, what got furthest stays; more of it would fill the disk."""
        strangers = [folder for folder in _folders(self.folder) if _tag(folder) != self._tag]
        if not strangers:
            return
        furthest = strangers[-1]
        problem = f"{self._problem(furthest)}; it stays until this run is finished"
        print(f"checkpoint {furthest.name} is not used: {problem}", flush=True)
        for folder in strangers:
            if _tag(folder) != _tag(furthest):
                shutil.rmtree(folder)

    def _problem(self, folder: Path) -> str:
        """Why a checkpoint cannot be trusted, or nothing."""
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            if manifest.pop("checksum") != checksum_of(manifest) or manifest["done"] != _number(
                folder
            ):
                return "manifest.json is damaged"
            if set(manifest["files"]) != {
                SERVER_FILE,
                *map(_clients_file, range(manifest["ranks"])),
            }:
                return "files of some ranks are missing"
            for name, written in manifest["files"].items():
                if checksum(folder / name) != written:
                    return f"{name} is damaged"
            origin = manifest["origin"]
            for what, now in self.origin.items():
                if origin.get(what) != now:
                    return f"it was written by {what} {origin.get(what)}, this is {now}"
        except FileNotFoundError as error:
            return f"{Path(error.filename).name} is missing"
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return f"its manifest cannot be read ({type(error).__name__})"
        return ""


def _own(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Folders that this program made. Somebody's copies, files and links of a similar name are left
    alone.
    """
    found = folder.iterdir() if folder.is_dir() else []
    return [
        path
        for path in found
        if name.fullmatch(path.name) and path.is_dir() and not path.is_symlink()
    ]


def _folders(folder: Path, tag: str | None = None) -> list[Path]:
    """Checkpoints, the oldest first."""
    return sorted((path for path in _own(folder, NAME) if tag in (None, _tag(path))), key=_number)


def remove_checkpoints(folder: Path) -> None:
    """The run is finished: its files say all."""
    for old in [*_own(folder, NAME), *_own(folder, UNFINISHED_NAME)]:
        shutil.rmtree(old)


def _make_room(path: Path) -> None:
    """Nothing may stand where a checkpoint is to be, neither a folder nor a file or link of that
    very name.
    """
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def _clients_file(rank: int) -> str:
    return f"clients-{rank}.safetensors"


def _number(folder: Path) -> int:
    return int(NAME.fullmatch(folder.name)["number"])


def _tag(folder: Path) -> str:
    return NAME.fullmatch(folder.name)["tag"]


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(
            {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}, path
        )
    except SafetensorError as error:
        raise as_os_error(error, path) from error
    with open(path, "rb+") as file:
        os.fsync(file.fileno())

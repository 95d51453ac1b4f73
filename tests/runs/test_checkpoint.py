"""A checkpoint that is damaged, or of another origin, is reported; the one before it is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedbench.core.files import checksum_of
from fedbench.parallel.processes import Group
from fedbench.runs.checkpoint import CheckpointStore, remove_checkpoints

ORIGIN = {"source code": "c0de", "run id": "5"}


class State:
    """As much of an experiment's state as a checkpoint needs: one number on each side."""

    owners = (0,)

    def __init__(self, value: float) -> None:
        self.server = torch.tensor([value])
        self.client = torch.tensor([-value])

    def server_tensors(self) -> dict[str, Tensor]:
        return {"w": self.server}

    def client_tensors(self) -> dict[str, Tensor]:
        return {"0/modifier/memory": self.client}

    def restore_server(self, tensors: dict[str, Tensor]) -> None:
        self.server = tensors["w"]

    def restore_client(self, name: str, value: Tensor) -> None:
        self.client = value


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run with checkpoints after rounds 1, 2 and 3, of which the first was removed again."""
    store = CheckpointStore(tmp_path, Group(), ORIGIN)
    for done in (1, 2, 3):
        store.save(done, State(float(done)), {"rows": [done]}, {"best": torch.tensor([done])})
    return tmp_path


def loaded(folder: Path, origin: dict[str, str] = ORIGIN) -> int:
    """The round of the checkpoint that is used, 0 for none; all parts of it are of that round."""
    state = State(0.0)
    checkpoint = CheckpointStore(folder, Group(), origin).load(state)
    if checkpoint is None:
        return 0
    done = checkpoint.done
    assert checkpoint.progress == {"rows": [done]}
    assert checkpoint.tensors["best"].tolist() == [done]
    assert (state.server.tolist(), state.client.tolist()) == ([done], [-done])
    return done


def test_the_newest_is_used_and_two_are_kept(folder):
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-000002",
        "checkpoint-000003",
    ]
    assert loaded(folder) == 3


def flip(name: str) -> Callable[[Path], None]:
    def harm(checkpoint: Path) -> None:
        content = bytearray((checkpoint / name).read_bytes())
        content[-1] ^= 1
        (checkpoint / name).write_bytes(content)

    return harm


def cut(checkpoint: Path) -> None:
    file = checkpoint / "clients-0.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def rewrite(change: Callable[[dict], object], signed: bool = False) -> Callable[[Path], None]:
    """A manifest that reads well but is not what was written; `signed` with a right checksum."""

    def harm(checkpoint: Path) -> None:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        change(manifest)
        if signed:
            del manifest["checksum"]
            manifest["checksum"] = checksum_of(manifest)
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    return harm


def write(text: str) -> Callable[[Path], object]:
    return lambda checkpoint: (checkpoint / "manifest.json").write_text(text)


HARMS = {
    "a bit of the server's file": (flip("server.safetensors"), "server.safetensors is damaged"),
    "a bit of a rank's file": (flip("clients-0.safetensors"), "clients-0.safetensors is damaged"),
    "a cut file": (cut, "clients-0.safetensors is damaged"),
    "a missing file": (
        lambda checkpoint: (checkpoint / "clients-0.safetensors").unlink(),
        "clients-0.safetensors is missing",
    ),
    "no manifest": (
        lambda checkpoint: (checkpoint / "manifest.json").unlink(),
        "manifest.json is missing",
    ),
    "half a manifest": (write('{"done": '), "manifest.json cannot be read (JSONDecodeError)"),
    "a nested manifest": (write("[" * 100_000), "manifest.json cannot be read (RecursionError)"),
    "another number": (
        rewrite(lambda manifest: manifest["progress"].update(rows=[4])),
        "manifest.json is damaged",
    ),
    "another round": (
        rewrite(lambda manifest: manifest.update(done=9), signed=True),
        "manifest.json is damaged",
    ),
    "a rank without a file": (
        rewrite(lambda manifest: manifest.update(ranks=2), signed=True),
        "files of some ranks are missing",
    ),
    "another run": (
        rewrite(lambda manifest: manifest["origin"].update({"run id": "6"}), signed=True),
        "it has another run id (6, not 5)",
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used(folder, capsys, harm):
    do, problem = HARMS[harm]
    do(folder / "checkpoint-000003")
    assert loaded(folder) == 2
    assert capsys.readouterr().out == f"checkpoint checkpoint-000003 is not used: {problem}\n"
    assert [path.name for path in folder.iterdir()] == ["checkpoint-000002"]


def test_a_checkpoint_of_other_code_is_never_used(folder, capsys):
    assert loaded(folder, {**ORIGIN, "source code": "new"}) == 0
    assert capsys.readouterr().out.count("it has another source code (c0de, not new)") == 2


def test_files_that_are_no_checkpoints_are_left_alone(folder):
    shutil.copytree(folder / "checkpoint-000003", folder / "checkpoint-000003.old")
    (folder / "unfinished-000004").mkdir()
    (folder / "unfinished-notes.txt").write_text("mine")
    assert loaded(folder) == 3
    assert not (folder / "unfinished-000004").exists()
    remove_checkpoints(folder)
    left = ["checkpoint-000003.old", "unfinished-notes.txt"]
    assert sorted(path.name for path in folder.iterdir()) == left

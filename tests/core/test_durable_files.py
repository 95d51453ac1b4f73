"""What is reported as written is on the disk: tests do without, so these look."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedbench.core.files import write_atomically
from fedbench.parallel.group import Group
from fedbench.runs.checkpoint import CheckpointStore


class ServerAlone:
    """As much of an experiment's state as a checkpoint needs."""

    def server_tensors(self) -> dict[str, torch.Tensor]:
        return {"w": torch.zeros(1)}

    def client_tensors(self) -> dict[str, torch.Tensor]:
        return {}


@pytest.fixture
def happened(monkeypatch, tmp_path) -> list[str]:
    """What the disk was asked to write, and what got its name when, by names in `tmp_path`."""
    events: list[str] = []

    def named(what: str, rename: Callable) -> Callable:
        def call(source: Path, target: Path) -> None:
            events.append(f"{what} {Path(target).relative_to(tmp_path)}")
            rename(source, target)

        return call

    def written(file: int) -> None:
        place = Path(os.readlink(f"/proc/self/fd/{file}"))
        events.append(f"written {place.relative_to(tmp_path)}")

    monkeypatch.setattr(os, "fsync", written)
    for rename in ("replace", "rename"):
        monkeypatch.setattr(os, rename, named("named", getattr(os, rename)))
    return events


def part(name: str) -> str:
    return f".{name}.{os.getpid()}.part"


@pytest.mark.parametrize("durable", [True, False])
def test_the_content_is_on_the_disk_before_the_name_is(tmp_path, happened, durable):
    write_atomically(tmp_path / "file", "text", durable)
    if durable:
        assert happened == [f"written {part('file')}", "named file", "written ."]
    else:
        assert happened == ["named file"]


def test_a_checkpoint_is_on_the_disk_before_it_is_one(tmp_path, happened):
    """And its name is, before an older one is removed."""
    CheckpointStore(tmp_path, Group(), {}).save(7, ServerAlone(), {}, {})
    building = "unfinished-000007"
    assert happened == [
        f"written {building}/clients-0.safetensors",
        f"written {building}/server.safetensors",
        f"written {building}/{part('manifest.json')}",
        f"named {building}/manifest.json",
        f"written {building}",
        "named checkpoint-000007",
        "written .",
    ]

"""Files with mistakes: arrays, splits, weights, archives and files of a configuration."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file


class Opened(Exception):
    """Raised by a pickle that was run."""


def explode() -> None:
    raise Opened


class Bomb:
    def __reduce__(self):
        return explode, ()


def write_all(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    write_arrays(folder)
    write_splits(folder)
    write_presets(folder)
    write_weights(folder)
    (folder / "folder.npz").mkdir()
    os.mkfifo(folder / "pipe.npz")
    (folder / "text.txt").write_text("hello")
    write_cut_archive(folder / "cut.tar.gz")


def write_cut_archive(file: Path) -> None:
    content = np.random.default_rng(0).bytes(100_000)
    entry = tarfile.TarInfo("train_32x32.mat")
    entry.size = len(content)
    with tarfile.open(file, "w:gz") as archive:
        archive.addfile(entry, io.BytesIO(content))
    file.write_bytes(file.read_bytes()[:50_000])


def write_arrays(folder: Path) -> None:
    x = np.random.default_rng(0).random((60, 8, 8), dtype=np.float32)
    y = np.arange(60) % 3
    changes = {
        "good": {},
        "missing": {"x_test": None},
        "identifiers": {"y_train": y + 10**6},
        "strangers": {"y_test": y + 5},
        "objects": {"x_train": np.array([Bomb()] * 60)},
    }
    for name, change in changes.items():
        arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, **change}
        np.savez(
            folder / f"{name}.npz",
            **{key: value for key, value in arrays.items() if value is not None},
        )
    content = (folder / "good.npz").read_bytes()
    (folder / "cut.npz").write_bytes(content[: len(content) // 2])
    (folder / "spoilt.npz").write_bytes(content[:300] + b"spoilt" + content[306:])
    with zipfile.ZipFile(folder / "raw.npz", "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(f"{name}.npy", b"no array")
    (folder / "pickle.npz").write_bytes(pickle.dumps(Bomb()))


def write_splits(folder: Path) -> None:
    (folder / "two_clients.json").write_text("[[0, 1], [2]]")
    (folder / "text.json").write_text("hello")


def write_presets(folder: Path) -> None:
    experiments = {
        "old": "client: {local_epochs: 3}",
        "nul_results": 'results: "a\\0b"',
        "nul_weights": 'model: {weights: "a\\0b"}',
        "syntax": "rounds: [1",
        "twice": "rounds: 1\nrounds: 2",
        "tag": "rounds: !!python/object/apply:os.mkdir [PWNED]",
        "control": "results: a\x01b",
        "latin": "results: \xe4",
    }
    presets = {
        **{
            f"experiment/{name}": f"# @package _global_\n{content}\n"
            for name, content in experiments.items()
        },
        "algo/old": "defaults: [fedprox]\nmuu: 3\n",
        "algo/mine": "defaults: [fedprox]\nmu: 3\n",
        "data/lie": "defaults: [digits]\nname: mnist\n",
        "data/escape": "defaults: [mnist]\nname: ../x\n",
    }
    for name, content in presets.items():
        file = folder / "own" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("latin-1"))


def write_weights(folder: Path) -> None:
    good = {
        "fc1.weight": torch.zeros(200, 64),
        "fc1.bias": torch.zeros(200),
        "fc2.weight": torch.zeros(200, 200),
        "fc2.bias": torch.zeros(200),
        "fc3.weight": torch.zeros(10, 200),
        "fc3.bias": torch.zeros(10),
    }
    save_file(
        {name: tensor for name, tensor in good.items() if "fc3" not in name},
        folder / "missing.safetensors",
    )
    save_file({**good, "fc1.bias": torch.full((200,), torch.nan)}, folder / "nan.safetensors")
    torch.save(good, folder / "pickle.safetensors")

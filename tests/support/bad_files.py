"""Files that somebody may give by mistake: arrays, splits and weights that are not what they should
be.
"""

from __future__ import annotations

import json
import os
import pickle
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
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "text.txt").write_text("hello")


def write_arrays(folder: Path) -> None:
    x = np.random.default_rng(0).random((60, 8, 8), dtype=np.float32)
    y = np.arange(60) % 3
    changes = {
        "good": {},
        "missing": {"x_test": None},
        "empty": {"x_train": x[:0], "y_train": y[:0]},
        "words": {"x_train": np.array(["a"] * 60)},
        "nan": {"x_train": x * np.nan},
        "short": {"y_train": y[:50]},
        "other_shape": {"x_test": x[:, :7]},
        "negative": {"y_train": y - 1},
        "identifiers": {"y_train": y + 10**6},
        "fractions": {"y_train": y / 2},
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
    (folder / "text.npz").write_text("x_train")
    (folder / "pickle.npz").write_bytes(pickle.dumps(Bomb()))


def write_splits(folder: Path) -> None:
    splits = {
        "repeated": [[0, 1], [1, 2]],
        "outside": [[0, 1], [1438]],
        "negative": [[-1]],
        "map": {"0": [1]},
        "empty_clients": [[], []],
        "fractions": [[1.5]],
        "two_clients": [[0, 1], [2]],
        "left_out": [[0], [2]],
    }
    for name, split in splits.items():
        (folder / f"{name}.json").write_text(json.dumps(split))
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
    save_file({**good, "fc4.bias": torch.zeros(3)}, folder / "extra.safetensors")
    save_file({**good, "fc1.weight": torch.zeros(200, 65)}, folder / "shape.safetensors")
    save_file(
        {**good, "fc1.weight": torch.zeros(200, 64, dtype=torch.int32)},
        folder / "integers.safetensors",
    )
    save_file({**good, "fc1.bias": torch.full((200,), torch.nan)}, folder / "nan.safetensors")
    torch.save(good, folder / "pickle.safetensors")
    (folder / "text.safetensors").write_text("hello")

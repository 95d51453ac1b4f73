"""Named datasets in the data root: reading them, and files that are missing or damaged."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from support.data_settings import NAMED, data_settings, refusal

from fedbench.data import NamedDataset
from fedbench.data.arrays import write_npz
from fedbench.data.dataset import channel_statistics
from fedbench.data.prepared import data_root as find_data_root


def tiny(root: Path, **changes: object) -> NamedDataset:
    """Settings of an MNIST that has 40 training and 20 test images."""
    return data_settings("mnist", root=str(root), train_size=40, test_size=20, **changes)


def tiny_arrays(size: int) -> dict[str, np.ndarray]:
    images = np.random.default_rng(size).integers(0, 256, (size, 28, 28), dtype=np.uint8)
    return {"images": images, "labels": np.arange(size) % 10}


def write_tiny(root: Path) -> Path:
    folder = root / "mnist"
    folder.mkdir()
    write_npz(folder / "train.npz", **tiny_arrays(40))
    write_npz(folder / "test.npz", **tiny_arrays(20))
    return folder


def test_data_root_order(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "environment"))
    assert find_data_root(str(tmp_path / "key")) == tmp_path / "key"
    assert find_data_root(None) == tmp_path / "environment"
    monkeypatch.setenv("FEDBENCH_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "fedbench" in str(find_data_root(None))


def test_named_dataset_is_read_from_the_data_root(tmp_path):
    write_tiny(tmp_path)
    dataset = tiny(tmp_path).load(0)
    assert dataset.train_x.shape == (40, 28, 28, 1)
    np.testing.assert_array_equal(dataset.train_x[..., 0], tiny_arrays(40)["images"])
    assert (dataset.mean, dataset.std, dataset.source, dataset.note) == (
        (0.1307,),
        (0.3081,),
        "real, unverified",  # there is no info.json
        "",
    )
    computed = tiny(tmp_path, mean=None, std=None).load(0)
    assert (computed.mean, computed.std) == channel_statistics(dataset.train_x)


def test_another_size_than_the_datasets_own_is_stated(tmp_path):
    write_tiny(tmp_path)
    assert (
        "training set of 40 images instead of 60,000"
        in data_settings("mnist", root=str(tmp_path)).load(0).note
    )


@pytest.mark.parametrize("name", NAMED)
def test_missing_dataset_names_the_command_and_the_stand_in(name, tmp_path):
    text = refusal(lambda: data_settings(name, root=str(tmp_path)).load(0))
    assert f"`fedbench-data {name} --root {tmp_path} --download` (or data.download=true)" in text
    assert "data.source=synthetic" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"images": np.zeros((40, 28, 28), np.float32)}, "float32"),
        ({"images": np.zeros((40, 32, 32), np.uint8)}, "must be uint8 [N, 28, 28, 1]"),
        ({"labels": np.arange(39) % 10}, "must be 40 integers"),
        ({"labels": np.arange(40) / 10}, "float64"),
        ({"labels": np.arange(40)}, "from 0 to 39, must run from 0 to 9"),
        ({"labels": np.arange(40) - 1}, "from -1"),
        ({"images": np.zeros((0, 28, 28), np.uint8), "labels": np.zeros(0, int)}, "no images"),
        ({"labels": np.array([{}] * 40)}, "not a readable .npz"),
    ],
)
def test_bad_cache_file_is_named_with_what_is_wrong(change, expected, tmp_path):
    file = write_tiny(tmp_path) / "train.npz"
    write_npz(file, **{**tiny_arrays(40), **change})
    text = refusal(lambda: tiny(tmp_path).load(0))
    assert text.startswith(f"data=mnist: {file}: ")
    assert expected in text


@pytest.mark.parametrize("keep", [0, 10, 5000, -300])
def test_damaged_cache_file(keep, tmp_path):
    file = write_tiny(tmp_path) / "train.npz"
    file.write_bytes(file.read_bytes()[:keep])
    assert refusal(lambda: tiny(tmp_path).load(0)).startswith(
        f"data=mnist: {file}: not a readable .npz"
    )


def test_flipped_bits_in_a_cache_file_are_noticed(tmp_path):
    file = write_tiny(tmp_path) / "train.npz"
    content = bytearray(file.read_bytes())
    content[10_000] ^= 255
    file.write_bytes(content)
    assert "not a readable .npz" in refusal(lambda: tiny(tmp_path).load(0))


def test_missing_keys_and_wrong_data_settings(tmp_path):
    folder = write_tiny(tmp_path)
    assert "data.std" in refusal(lambda: tiny(tmp_path, std=[0.0]).load(0))
    assert "data.mean" in refusal(lambda: tiny(tmp_path, mean=[0.1, 0.2]).load(0))
    assert "real, synthetic" in refusal(lambda: tiny(tmp_path, source="fake").load(0))
    write_npz(folder / "test.npz", pictures=np.zeros(3))
    assert "lacks images, labels (has pictures)" in refusal(lambda: tiny(tmp_path).load(0))


def test_a_reader_keeps_the_file_it_opened(tmp_path):
    file = write_tiny(tmp_path) / "train.npz"
    before = file.read_bytes()
    with file.open("rb") as reader:
        write_npz(file, **tiny_arrays(50))
        assert reader.read() == before
    assert len(np.load(file)["labels"]) == 50


def test_write_is_atomic(tmp_path, monkeypatch):
    file = write_tiny(tmp_path) / "train.npz"
    before = file.read_bytes()

    def broken(handle: io.BufferedWriter, **arrays: np.ndarray) -> None:
        handle.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    with pytest.raises(OSError, match="disk full"):
        write_npz(file, **tiny_arrays(40))
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == ["test.npz", "train.npz"]

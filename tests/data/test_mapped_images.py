"""Large images stay on the disk: a start maps them, and reads only what it touches."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support import original_files as originals
from support.data_settings import data_settings, prepare_small, refusal

from fedbench.data import MappedDataset
from fedbench.data.arrays import write_npy
from fedbench.data.batches import examples
from fedbench.data.dataset import channel_statistics
from fedbench.data.prepared import Info, array_files, modification_time, write_info


def settings(root: Path, **changes: object) -> MappedDataset:
    return data_settings(
        "lc25000", root=str(root), shape=[16, 16, 3], train_size=40, test_size=10, **changes
    )


@pytest.fixture
def root(tmp_path):
    prepare_small("lc25000", originals.lc25000(tmp_path / "given", 10), tmp_path, size=16)
    return tmp_path


def test_images_are_mapped_and_statistics_come_from_the_preparation(root, monkeypatch):
    def must_not(images: np.ndarray) -> None:
        raise AssertionError("a start counted all pixels")

    monkeypatch.setattr("fedbench.data.dataset.channel_statistics", must_not)
    dataset = settings(root).load(0)
    assert isinstance(dataset.train_x, np.memmap)
    assert isinstance(dataset.test_x, np.memmap)
    assert (dataset.mean, dataset.std) == channel_statistics(np.asarray(dataset.train_x))
    assert settings(root, mean=[0.5] * 3).load(0).mean == (0.5, 0.5, 0.5)


def test_batches_of_a_map_are_those_of_an_array(root, recwarn):
    dataset = settings(root).load(0)
    train = examples(dataset, "train", torch.device("cpu"))
    x, y = train.batch(torch.tensor([39, 0, 7]))
    expected = (np.asarray(dataset.train_x)[[39, 0, 7]] / 255 - np.array(dataset.mean)) / np.array(
        dataset.std
    )
    np.testing.assert_allclose(x.permute(0, 2, 3, 1).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(y.numpy(), dataset.train_y[[39, 0, 7]])
    # Torch would warn of an array that cannot be written. Others may warn here of what they left.
    assert not [one for one in recwarn if "writable" in str(one.message)]


def test_a_subset_keeps_the_statistics_of_the_whole_set(root):
    whole, part = settings(root).load(0), settings(root, subset=10).load(0)
    assert (part.mean, part.std) == (whole.mean, whole.std)
    assert part.train_x.shape == (10, 16, 16, 3)


def resident() -> int:
    """Megabytes of this process in memory, those of mapped files among them."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def test_starting_on_gigabytes_reads_megabytes(tmp_path):
    """Files of the real LC25000's size, full of holes: 3.8 GB to read, nothing on the disk."""
    folder = tmp_path / "lc25000"
    folder.mkdir()
    for part, size in (("train", 20_000), ("test", 5000)):
        path = folder / f"{part}-images.npy"
        np.lib.format.open_memmap(path, "w+", np.uint8, (size, 224, 224, 3))
        write_npy(folder / f"{part}-labels.npy", np.arange(size) % 5)
    arrays = array_files(folder)
    info = Info(
        source="made up",
        shape=[224, 224, 3],
        train=20_000,
        test=5000,
        mean=[0.5] * 3,
        std=[0.2] * 3,
        checksums={path.name: "blake2b:read once" for path in arrays},
        modified={path.name: modification_time(path) for path in arrays},
    )
    write_info(folder, info)
    before = resident()
    dataset = data_settings("lc25000", root=str(tmp_path)).load(0)
    dataset.fingerprint()
    train, test = (
        examples(dataset, "train", torch.device("cpu")),
        examples(dataset, "test", torch.device("cpu")),
    )
    for index in (torch.arange(0, 20_000, 2000), slice(0, 10)):
        train.batch(index)
        test.batch(slice(0, 10))
    assert resident() - before < 150  # megabytes; the fingerprint's 256 images are 39


def change_an_image(root: Path) -> Path:
    """One that the fingerprint does not look at."""
    path = root / "lc25000" / "train-images.npy"
    images = np.load(path)
    images[17] = 255 - images[17]
    np.save(path, images)
    return path


def test_a_changed_image_is_noticed_by_the_checksum(root, monkeypatch):
    monkeypatch.setattr("fedbench.data.dataset._MAPPED_IMAGES", 2)
    before = settings(root).load(0).fingerprint()
    path = change_an_image(root)
    text = refusal(lambda: settings(root).load(0))
    assert text.startswith(f"data=lc25000: {path}: not what fedbench-data wrote")
    info = json.loads((root / "lc25000" / "info.json").read_text())
    assert set(info["checksums"]) == {
        f"{part}-{what}.npy" for part in ("train", "test") for what in ("images", "labels")
    }
    del info["checksums"][
        "train-images.npy"
    ]  # somebody's own: nothing says what it should be, but it is another
    (root / "lc25000" / "info.json").write_text(json.dumps(info))
    assert settings(root).load(0).fingerprint() != before


def test_a_file_is_read_only_when_it_was_modified(root, monkeypatch):
    """A copied file, say, is the same, and is read at every start."""

    def must_not(path: Path, subject: str) -> str:
        raise AssertionError(f"a start read all of {path}")

    before = settings(root).load(0).fingerprint()
    with monkeypatch.context() as watched:
        watched.setattr("fedbench.data.prepared.file_hash", must_not)
        assert settings(root).load(0).fingerprint() == before
        os.utime(root / "lc25000" / "train-images.npy")
        with pytest.raises(AssertionError):
            settings(root).load(0)
    assert settings(root).load(0).fingerprint() == before


def test_where_the_files_came_from_decides_nothing(root):
    before = settings(root).load(0).fingerprint()
    path = root / "lc25000" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "source": "elsewhere"}))
    assert settings(root).load(0).fingerprint() == before


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("train-images.npy", b"", "not a readable .npy"),
        ("train-images.npy", None, "not a readable .npy"),
        ("test-labels.npy", b"PK\x03\x04", "not a readable .npy"),
        ("info.json", b"{", "not what fedbench-data writes"),
        ("info.json", b'{"source": 1}', "not what fedbench-data writes"),
        ("info.json", b"[]", "not what fedbench-data writes"),
    ],
)
def test_damaged_files_are_named(file, content, expected, root):
    path = root / "lc25000" / file
    path.write_bytes(path.read_bytes()[:-50] if content is None else content)
    text = refusal(lambda: settings(root).load(0))
    assert text.startswith(f"data=lc25000: {path}: ")
    assert expected in text


def test_without_info_it_is_not_there(root):
    (root / "lc25000" / "info.json").unlink()
    text = refusal(lambda: settings(root).load(0))
    assert text.startswith("data=lc25000: not in")
    assert "tampapath" in text


def test_it_runs_to_the_same_bits_with_any_number_of_workers(root, fedbench):
    shape = ("data.shape=[16,16,3]", "data.train_size=40", "data.test_size=10")
    words = (
        "data=lc25000",
        f"data.root={root}",
        *shape,
        "model=linear",
        "partition=iid",
        "partition.clients=4",
    )
    digests = {}
    for workers in (1, 2):
        run = fedbench(
            *words,
            "rounds=2",
            "client.batch_size=5",
            f"runtime.workers={workers}",
            f"results=r{workers}",
        )
        assert run.status == 0, run.err
        digests[workers] = json.loads((run.folder / "summary.json").read_text())["digest"]
    assert digests[1] == digests[2]

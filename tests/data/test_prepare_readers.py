"""The readers of original files: what they read from exact small copies, and one line for
everything damaged.
"""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat
from support import original_files as originals
from support.data_settings import load, prepare_small, refusal

from fedbench.data.dataset import channel_statistics
from fedbench.data.prepare.catalog import is_prepared

# What is read


@pytest.mark.parametrize("form", ["folder", "parent", "zip", "unpacked"])
def test_emnist_is_turned_upright(form, tmp_path):
    given = originals.emnist(tmp_path / "given")
    if form == "parent":
        given = given.parent
    if form == "zip":
        given = originals.packed(given, tmp_path / "gzip.zip")
    if form == "unpacked":
        for path in given.glob("emnist-byclass*.gz"):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    prepare_small("emnist", given, tmp_path)
    dataset = load("emnist", tmp_path)
    np.testing.assert_array_equal(dataset.train_x[..., 0], originals.pixels(124, 28, 28, seed=124))
    np.testing.assert_array_equal(dataset.train_y, np.arange(124) % 62)
    assert (dataset.shape, len(dataset.test_y), dataset.classes) == ((28, 28, 1), 62, 62)
    assert "training set of 124 images instead of 697,932" in dataset.note
    assert (dataset.mean, dataset.std) == channel_statistics(dataset.train_x)


def test_mnist_comes_from_its_idx_files_too(tmp_path):
    prepare_small("mnist", originals.mnist(tmp_path / "given"), tmp_path)
    np.testing.assert_array_equal(
        load("mnist", tmp_path).test_x[..., 0], originals.pixels(10, 28, 28, seed=10)
    )


def test_cifar_comes_from_the_published_archive_or_a_folder_with_it(tmp_path, monkeypatch):
    archive = originals.cifar10(tmp_path / "given")
    originals.publish_cifar("cifar10", archive, monkeypatch)
    prepare_small("cifar10", archive, tmp_path / "archive")
    prepare_small("cifar10", archive.parent, tmp_path / "folder")
    dataset = load("cifar10", tmp_path / "archive")
    assert dataset.fingerprint() == load("cifar10", tmp_path / "folder").fingerprint()
    channels_first = originals.pixels(10, 3072, seed=5).reshape(10, 3, 32, 32)
    np.testing.assert_array_equal(dataset.test_x, channels_first.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(dataset.test_y, (np.arange(10) + 5) % 10)


def test_svhn_calls_label_ten_digit_zero(tmp_path):
    prepare_small("svhn", originals.svhn(tmp_path / "given"), tmp_path)
    dataset = load("svhn", tmp_path)
    np.testing.assert_array_equal(
        dataset.train_x[7], originals.pixels(32, 32, 3, 40, seed=40)[..., 7]
    )
    np.testing.assert_array_equal(dataset.train_y, (np.arange(40) + 1) % 10)
    assert len(dataset.test_y) == 20


def test_cinic10_from_a_folder_and_from_an_archive_is_the_same(tmp_path):
    given = originals.cinic10(tmp_path / "given")
    prepare_small("cinic10", given, tmp_path / "folder")
    packed = originals.packed(given, tmp_path / "CINIC-10.tar.gz")
    prepare_small("cinic10", packed, tmp_path / "archive")
    folder, archive = (
        load("cinic10", tmp_path / "folder"),
        load("cinic10", tmp_path / "archive"),
    )
    assert folder.fingerprint() == archive.fingerprint()
    np.testing.assert_array_equal(folder.train_y, np.repeat(np.arange(10), 2))
    with Image.open(given / "test" / "deer" / "n04_0.png") as image:
        (row,) = np.flatnonzero((folder.test_x == np.asarray(image)).all(axis=(1, 2, 3)))
    assert folder.test_y[row] == originals.CINIC10.index("deer")
    assert "validation set is not used" in folder.note


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_tinyimagenet_has_sorted_classes_and_three_channels(form, tmp_path):
    given = originals.tinyimagenet(tmp_path / "given")
    prepare_small(
        "tinyimagenet",
        originals.packed(given, tmp_path / "t.zip") if form == "zip" else given,
        tmp_path,
    )
    dataset = load("tinyimagenet", tmp_path)
    np.testing.assert_array_equal(dataset.train_y, [0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(dataset.test_y, [1, 2, 0, 1, 2, 0])
    grey = np.asarray(dataset.train_x[0])
    assert np.ptp(grey, axis=-1).max() == 0
    with Image.open(given / "train" / "n00000002" / "images" / "n00000002_1.JPEG") as image:
        np.testing.assert_array_equal(dataset.train_x[5], np.asarray(image))
    assert "the validation set is the test set" in dataset.note


def test_lc25000_is_resized_and_split_the_same_way_everywhere(tmp_path):
    given = originals.lc25000(tmp_path / "given", per_class=10)
    prepare_small("lc25000", given, tmp_path / "first", size=16)
    elsewhere = shutil.copytree(given, tmp_path / "elsewhere" / "lung_colon_image_set")
    prepare_small(
        "lc25000",
        originals.packed(elsewhere, tmp_path / "LC25000.zip"),
        tmp_path / "second",
        size=16,
    )
    first, second = (
        load("lc25000", tmp_path / root, shape=[16, 16, 3]) for root in ("first", "second")
    )
    assert first.fingerprint() == second.fingerprint()
    np.testing.assert_array_equal(np.bincount(first.train_y), [8] * 5)
    np.testing.assert_array_equal(np.bincount(first.test_y), [2] * 5)
    assert "resized to 16x16" in first.note
    everything = np.concatenate([first.train_x, first.test_x])
    assert len(np.unique(everything.reshape(50, -1), axis=0)) == 50  # no image is in both
    assert "must be [16, 16, 3], as the images in" in refusal(
        lambda: load("lc25000", tmp_path / "first")
    )


# What is damaged


def rewrite(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Change the bytes of the only file of this name."""

    def apply(folder: Path) -> None:
        (path,) = folder.rglob(name)
        path.write_bytes(change(path.read_bytes()))

    return apply


def remove(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = next(iter(sorted(folder.rglob(name))))
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return apply


def put(place: str, content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / place).write_bytes(content)


def idx_of(*shape: int) -> Callable[[bytes], bytes]:
    return lambda content: gzip.compress(originals.idx(originals.pixels(*shape)))


def mat_of(**arrays: np.ndarray) -> Callable[[bytes], bytes]:
    content = io.BytesIO()
    savemat(content, arrays)
    return lambda old: content.getvalue()


TRAIN_IMAGES = "emnist-byclass-train-images-idx3-ubyte.gz"
TRAIN_LABELS = "emnist-byclass-train-labels-idx1-ubyte.gz"
PICTURE = "n00000001_1.JPEG"
CASES = {
    "emnist": [
        (
            rewrite(TRAIN_IMAGES, lambda content: content[:-500]),
            f"{TRAIN_IMAGES} is not a whole gzip file",
        ),
        (rewrite(TRAIN_IMAGES, lambda content: b"html" + content), "is not a whole gzip file"),
        (
            rewrite(TRAIN_IMAGES, lambda content: gzip.compress(b"\0\0\x0d\x03" + bytes(12))),
            "torchvision cannot read the training files",
        ),
        (
            rewrite(TRAIN_IMAGES, lambda content: gzip.compress(gzip.decompress(content)[:-9])),
            "torchvision cannot read the training files (shape '[124, 28, 28]'",
        ),
        (
            rewrite(TRAIN_IMAGES, lambda content: gzip.compress(gzip.decompress(content) + b"x")),
            "torchvision cannot read the training files",
        ),
        (
            rewrite(TRAIN_IMAGES, lambda content: gzip.compress(b"")),
            "torchvision cannot read the training files",
        ),
        (
            rewrite(TRAIN_IMAGES, idx_of(120, 28, 28)),
            "are uint8 [120, 28, 28, 1], must",
        ),
        (rewrite(TRAIN_IMAGES, idx_of(124, 20, 20)), "must be uint8 [124, 28, 28, 1]"),
        (
            rewrite(TRAIN_IMAGES.replace("images-idx3", "labels-idx1"), idx_of(124)),
            "must run from 0 to 61",
        ),
        (remove(TRAIN_IMAGES), f"lacks the file {TRAIN_IMAGES}"),
    ],
    "svhn": [
        (
            rewrite("test_32x32.mat", lambda content: content[: len(content) // 2]),
            "not a readable MATLAB file",
        ),
        (rewrite("test_32x32.mat", lambda content: b""), "not a readable MATLAB file"),
        (
            rewrite("test_32x32.mat", mat_of(X=originals.pixels(32, 32, 3, 4))),
            "must hold X (images)",
        ),
        (
            rewrite("test_32x32.mat", mat_of(X=originals.pixels(32, 32, 3, 4), y=np.ones((5, 1)))),
            "5 labels",
        ),
        (
            rewrite(
                "test_32x32.mat", mat_of(X=originals.pixels(32, 32, 3, 2), y=np.array([[0], [1]]))
            ),
            "must run from 1 to 10",
        ),
        (
            rewrite("test_32x32.mat", mat_of(X=originals.pixels(8, 8, 3, 2), y=np.ones((2, 1)))),
            "must be uint8 [2, 32",
        ),
        (remove("train_32x32.mat"), "lacks the file train_32x32.mat"),
    ],
    "cinic10": [
        (remove("dog"), "CINIC-10/test/dog, or it is empty"),
        (remove("train"), "lacks the folder train/airplane"),
        (put("CINIC-10/train/dog/notes.txt", b"?"), "train/dog/notes.txt is not an image"),
        (
            put("CINIC-10/train/dog/fake.png", b"?"),
            "train/dog/fake.png is not a readable image (no known format)",
        ),
        (
            rewrite("train/cat/n03_0.png", lambda content: content[:200]),
            "n03_0.png is not a readable image",
        ),
        (
            rewrite("train/cat/n03_0.png", lambda content: originals.jpeg(31)),
            "is 31x31 pixels, must be 32x32",
        ),
    ],
    "tinyimagenet": [
        (remove("wnids.txt"), "lacks the file wnids.txt"),
        (rewrite("wnids.txt", lambda content: content + content), "must have 200 different names"),
        (rewrite("wnids.txt", lambda content: b"\xff\xfe\x00"), "is not a text file"),
        (
            rewrite("wnids.txt", lambda content: content + b"n00000009\n"),
            "train/n00000009/images, or it is empty",
        ),
        (remove("val_annotations.txt"), "lacks the file"),
        (
            rewrite("val_annotations.txt", lambda content: content[content.index(b"\n") + 1 :]),
            "no label for",
        ),
        (
            rewrite("val_annotations.txt", lambda content: content.replace(b"val_1.", b"val_7.")),
            "'val_7.JPEG'",
        ),
        (
            rewrite("val_annotations.txt", lambda content: content.replace(b"n00000002", b"n9")),
            "the class 'n9'",
        ),
        (rewrite(PICTURE, lambda content: content[:300]), f"{PICTURE} is not a readable image"),
        (rewrite(PICTURE, lambda content: b""), f"{PICTURE} is not a readable image"),
    ],
    "lc25000": [
        (remove("lung_scc"), "lung_image_sets/lung_scc, or it is empty"),
        (remove("colon_image_sets"), "lacks the folder colon_image_sets/colon_aca"),
        (
            rewrite("lungn1.jpeg", lambda content: originals.jpeg(20)),
            "20x20 pixels, must be a square of at least",
        ),
        (put("lung_colon_image_set/lung_image_sets/lung_n/x.csv", b""), "x.csv is not an image"),
    ],
}


@pytest.mark.parametrize(
    ("name", "damage", "expected"),
    [(name, *case) for name, cases in CASES.items() for case in cases],
    ids=[f"{name}-{number}" for name, cases in CASES.items() for number in range(len(cases))],
)
def test_damaged_originals_are_named_in_one_line(name, damage, expected, tmp_path):
    given = tmp_path / "given"
    getattr(originals, name)(given)
    damage(given)
    size = 32 if name == "lc25000" else None
    text = refusal(lambda: prepare_small(name, given, tmp_path, size=size))
    assert expected in text
    assert str(given) in text or name in text
    assert not is_prepared(name, tmp_path / name)


@pytest.mark.parametrize("keep", [0, 100, 0.5, -200])
@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_archives_that_are_cut_short(ending, keep, tmp_path):
    archive = originals.packed(
        originals.cinic10(tmp_path / "given"), tmp_path / f"archive.{ending}"
    )
    content = archive.read_bytes()
    archive.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    assert refusal(lambda: prepare_small("cinic10", archive, tmp_path)).startswith(f"{archive}: ")
    assert not (tmp_path / "cinic10").exists()


def test_flipped_bits_in_an_archive_are_noticed(tmp_path):
    archive = originals.packed(originals.tinyimagenet(tmp_path / "given"), tmp_path / "t.zip")
    content = bytearray(archive.read_bytes())
    content[5000] ^= 255
    archive.write_bytes(content)
    text = refusal(lambda: prepare_small("tinyimagenet", archive, tmp_path))
    assert "t.zip: damaged or cannot be read (Bad CRC-32 for file 'tiny-imagenet-200/" in text


def test_an_archive_inside_an_archive_is_pointed_out(tmp_path):
    inner = originals.packed(originals.cinic10(tmp_path / "given"), tmp_path / "CINIC-10.tar.gz")
    outer = tmp_path / "DS_10283_3192.zip"
    with zipfile.ZipFile(outer, "w") as file:
        file.write(inner, inner.name)
    text = refusal(lambda: prepare_small("cinic10", outer, tmp_path))
    assert "holds the archive CINIC-10.tar.gz" in text


def test_what_is_no_original_at_all(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("x")
    refused = refusal(lambda: prepare_small("svhn", text, tmp_path))
    assert "must be a folder, or a zip or tar archive" in refused
    assert "no such file" in refusal(lambda: prepare_small("svhn", tmp_path / "none.zip", tmp_path))


@pytest.mark.parametrize("name", sorted(CASES))
def test_an_incomplete_dataset_is_refused_unless_asked_for(name, tmp_path):
    getattr(originals, name)(tmp_path / "given")
    size = 32 if name == "lc25000" else None
    text = refusal(
        lambda: prepare_small(name, tmp_path / "given", tmp_path, any_size=False, size=size)
    )
    assert "instead of" in text or "must have 200" in text
    assert {path.name for path in (tmp_path / name).iterdir()} <= {".lock"}

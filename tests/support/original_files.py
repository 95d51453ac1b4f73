"""Small datasets in the exact formats of the originals: names, folders, headers, quoting."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedbench.core.torchvision_operators import import_torchvision
from fedbench.data.prepare.catalog import ENTRIES, PublishedFile

CINIC10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LC25000 = {
    "colon_image_sets/colon_aca": "colonca",
    "colon_image_sets/colon_n": "colonn",
    "lung_image_sets/lung_aca": "lungaca",
    "lung_image_sets/lung_n": "lungn",
    "lung_image_sets/lung_scc": "lungscc",
}
IMAGE_FORMATS = {".png": "PNG", ".jpeg": "JPEG", ".JPEG": "JPEG"}
QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    """Two zeros, the type (8: unsigned byte), the number of dimensions, big-endian sizes, the
    values.
    """
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def mnist(folder: Path, train: int = 20, test: int = 10) -> Path:
    """As torchvision leaves them, in MNIST/raw."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for prefix, size in (("train", train), ("t10k", test)):
        images, labels = pixels(size, 28, 28, seed=size), np.arange(size) % 10
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{prefix}-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    return folder / "MNIST"


fmnist = mnist


def cifar10(folder: Path, per_file: int = 10) -> Path:
    """cifar-10-python.tar.gz: six pickles of images, and one of names."""
    folder = folder / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        labels = [(number + place) % 10 for place in range(per_file)]
        _pickle(folder / name, data=pixels(per_file, 3072, seed=number), labels=labels)
    _pickle(folder / "batches.meta", label_names=list(CINIC10))
    return packed(folder, folder.parent / "cifar-10-python.tar.gz")


def cifar100(folder: Path, train: int = 30, test: int = 10) -> Path:
    """cifar-100-python.tar.gz: two pickles of images, and one of names."""
    folder = folder / "cifar-100-python"
    folder.mkdir(parents=True)
    for name, size in (("train", train), ("test", test)):
        fine = [7 * place % 100 for place in range(size)]
        coarse = [0] * size
        images = pixels(size, 3072, seed=size)
        _pickle(folder / name, data=images, fine_labels=fine, coarse_labels=coarse)
    _pickle(folder / "meta", fine_label_names=[f"class {number}" for number in range(100)])
    return packed(folder, folder.parent / "cifar-100-python.tar.gz")


def _pickle(path: Path, **content: object) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def publish(
    name: str, files: Iterable[Path], monkeypatch: pytest.MonkeyPatch, address: str = "http://none"
) -> None:
    """Make these files the published ones of a dataset, at an address of their own."""
    published = tuple(
        PublishedFile(file.name, f"{address}/{file.name}", f"md5:{_md5(file.read_bytes())}")
        for file in files
    )
    monkeypatch.setitem(ENTRIES, name, replace(ENTRIES[name], published=published))


def publish_cifar(name: str, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this archive the published one, and its pickles those that torchvision opens."""
    publish(name, [archive], monkeypatch)
    cifar = getattr(import_torchvision().datasets, name.upper())
    with tarfile.open(archive) as tar:
        checksums = {Path(file.name).name: _md5(tar.extractfile(file).read()) for file in tar}
    for files in ("train_list", "test_list"):
        ours = [[file, checksums[file]] for file, _ in getattr(cifar, files)]
        monkeypatch.setattr(cifar, files, ours)
    monkeypatch.setattr(cifar, "meta", {**cifar.meta, "md5": checksums[cifar.meta["filename"]]})


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def emnist(folder: Path, train: int = 124, test: int = 62) -> Path:
    """As inside NIST's gzip.zip, with another split beside it; the images are transposed."""
    folder = folder / "gzip"
    folder.mkdir(parents=True)
    for part, size in (("train", train), ("test", test)):
        images, labels = pixels(size, 28, 28, seed=size), np.arange(size) % 62
        for name, array in (("images-idx3", images.transpose(0, 2, 1)), ("labels-idx1", labels)):
            (folder / f"emnist-byclass-{part}-{name}-ubyte.gz").write_bytes(
                gzip.compress(idx(array))
            )
            (folder / f"emnist-letters-{part}-{name}-ubyte.gz").write_bytes(b"not read")
    return folder


def svhn(folder: Path, train: int = 40, test: int = 20) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, size in (("train", train), ("test", test)):
        x, y = (
            pixels(32, 32, 3, size, seed=size),
            (np.arange(size) % 10 + 1).astype(np.uint8)[:, None],
        )
        savemat(folder / f"{part}_32x32.mat", {"X": x, "y": y}, do_compression=True)
    return folder


def save_image(path: Path, size: int, seed: int, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = pixels(size, size, 3, seed=seed)
    Image.fromarray(array).convert(mode).save(path, format=IMAGE_FORMATS[path.suffix])


def cinic10(folder: Path, per_class: int = 2) -> Path:
    folder = folder / "CINIC-10"
    for part in ("train", "valid", "test"):
        for label, name in enumerate(CINIC10):
            for number in range(per_class):
                stem = f"cifar10-{part}-{label}{number}" if number % 2 else f"n0{label}_{number}"
                save_image(folder / part / name / f"{stem}.png", 32, seed=100 * label + number)
    (folder / "README.md").write_text("CINIC-10")
    (folder / "train" / ".DS_Store").write_bytes(b"clutter")
    return folder


def tinyimagenet(folder: Path, classes: int = 3, per_class: int = 2) -> Path:
    """One training image is grey, as some hundreds are in the original."""
    folder = folder / "tiny-imagenet-200"
    wnids = [f"n0{number:07d}" for number in reversed(range(classes))]  # the file is not sorted
    for label, wnid in enumerate(sorted(wnids)):
        for number in range(per_class):
            mode = "L" if label == number == 0 else "RGB"
            save_image(
                folder / "train" / wnid / "images" / f"{wnid}_{number}.JPEG",
                64,
                10 * label + number,
                mode,
            )
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t63\t63\n")
    lines = []
    for number in range(2 * classes):
        wnid = sorted(wnids)[(number + 1) % classes]
        save_image(folder / "val" / "images" / f"val_{number}.JPEG", 64, seed=1000 + number)
        lines.append(f"val_{number}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    save_image(folder / "test" / "images" / "test_0.JPEG", 64, seed=5)
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (folder / "words.txt").write_text("n00000000\tentity\n")
    return folder


def lc25000(folder: Path, per_class: int = 5, size: int = 32) -> Path:
    folder = folder / "lung_colon_image_set"
    for label, (place, stem) in enumerate(LC25000.items()):
        for number in range(1, per_class + 1):
            save_image(folder / place / f"{stem}{number}.jpeg", size, seed=100 * label + number)
    return folder


def qqp(folder: Path, rows: int = 400, extra: str = "") -> Path:
    """Question i asks about word i % 7. Row 3 is quoted, with quotes inside; row 5 runs over a line
    end.
    """
    folder = folder / "QQP"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train.tsv", rows), ("dev.tsv", rows // 4)):
        lines = [QQP_HEADER]
        for number in range(count):
            word, other = f"thing{number % 7}", f"thing{(number * 3) % 7}"
            first = f"How do I buy a {word}?"
            if number == 3:
                first = f'"What is ""{word}"" for?"'
            if number == 5:
                first = f'"What is a {word}\n"'
            second = (
                f"How can I get {other}s?"
                if name == "train.tsv"
                else f"Where is the unheard {other}s?"
            )
            lines.append(
                f"{number}\t{2 * number}\t{2 * number + 1}\t{first}\t{second}\t{int(word == other)}"
            )
        (folder / name).write_text("\n".join([*lines, *([extra] if extra else [])]) + "\n")
    (folder / "test.tsv").write_text("id\tquestion1\tquestion2\n0\tWhy?\tWhy not?\n")
    return folder


def packed(folder: Path, archive: Path) -> Path:
    """The folder as a zip or tar.gz archive, under its own name."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for path in sorted(folder.rglob("*")):
                file.write(path, path.relative_to(folder.parent))
    else:
        with tarfile.open(archive, "w:gz") as file:
            # Not in the order of the names, as in archives that were packed as a disk had them.
            for path in sorted(folder.rglob("*"), key=lambda path: str(path)[::-1]):
                file.add(path, path.relative_to(folder.parent), recursive=False)
    return archive


def jpeg(size: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels(size, size, 3)).save(content, format="JPEG")
    return content.getvalue()

"""Fetch a dataset through torchvision, which checks the archives' md5, and decode it once into npz files."""

from __future__ import annotations

import contextlib
import io
import shutil
import tarfile
import zlib
from pathlib import Path
from pickle import UnpicklingError

import numpy as np

from fedbench.data.files import write_npz
from fedbench.errors import BadInput

_CLASSES = {"mnist": "MNIST", "fmnist": "FashionMNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}
_PARTS = ("train", "test")
# No network, a broken mirror, a full or read-only disk, a damaged archive.
_FAILURES = (OSError, RuntimeError, EOFError, ValueError, tarfile.TarError, zlib.error, UnpicklingError)


def download(name: str, folder: Path) -> None:
    """Write `folder`/{train,test}.npz. Other processes wait and then use the same files."""
    from filelock import FileLock

    subject = f"data.download: {name} into {folder}"
    if name not in _CLASSES:
        raise BadInput(f"{subject}: only for {', '.join(_CLASSES)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            if not all((folder / f"{part}.npz").exists() for part in _PARTS):
                _fetch(_CLASSES[name], folder)
    except _FAILURES as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadInput(f"{subject}: failed ({reason}); try again, or use data.source=synthetic") from error


def _fetch(class_name: str, folder: Path) -> None:
    from fedbench.torchvision_shim import import_torchvision

    dataset_class = getattr(import_torchvision().datasets, class_name)
    archives = folder / "download"
    # Archives that somebody put there by hand, on a machine without a network, are used and kept.
    keep = archives.exists()
    try:
        # torchvision prints each mirror that fails on standard output, which belongs to the run's own lines.
        with contextlib.redirect_stdout(io.StringIO()):
            datasets = [dataset_class(archives, train=part == "train", download=True) for part in _PARTS]
        for part, dataset in zip(_PARTS, datasets, strict=True):
            labels = np.asarray(dataset.targets, dtype=np.int64)
            write_npz(folder / f"{part}.npz", images=np.asarray(dataset.data), labels=labels)
    finally:
        if not keep:
            shutil.rmtree(archives, ignore_errors=True)

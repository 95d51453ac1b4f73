"""Datasets that torchvision fetches and decodes: it checks the archives' md5, so their pickles can
be trusted.
"""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.files import write_npz
from fedbench.data.info import PARTS, Info, write_info

BY_HAND = (  # folder of original files that somebody put there, on a machine without a network
    "download"
)


def decode(class_name: str, folder: Path, given: Path | None) -> None:
    """Write `folder`/{train,test}.npz from the network, from archives put there by hand, or from a
    given archive.
    """
    from fedbench.models.torchvision_operators import import_torchvision

    dataset_class = getattr(import_torchvision().datasets, class_name)
    archives = folder / BY_HAND
    keep = archives.exists()
    try:
        if given is not None:
            archives = _offered(given, dataset_class, folder / ".given")
        # torchvision prints each mirror that fails on standard output, which belongs to the run's
        # own lines.
        with contextlib.redirect_stdout(io.StringIO()):
            datasets = [
                dataset_class(archives, train=part == "train", download=True) for part in PARTS
            ]
        for part, dataset in zip(PARTS, datasets, strict=True):
            labels = np.asarray(dataset.targets, dtype=np.int64)
            write_npz(folder / f"{part}.npz", images=np.asarray(dataset.data), labels=labels)
    finally:
        shutil.rmtree(folder / ".given", ignore_errors=True)
        if not keep:
            shutil.rmtree(folder / BY_HAND, ignore_errors=True)
    shape = list(np.atleast_3d(datasets[0].data[0]).shape)
    source = str(given.resolve()) if given else f"torchvision.datasets.{class_name}"
    write_info(folder, Info(source, shape, *(len(dataset.targets) for dataset in datasets)))


def _offered(given: Path, dataset_class: type, folder: Path) -> Path:
    """A folder in which torchvision finds the given archive and has nothing to download."""
    from torchvision.datasets.utils import check_integrity

    archive = given / dataset_class.filename if given.is_dir() else given
    if not check_integrity(str(archive), dataset_class.tgz_md5):
        raise BadInput(
            f"{archive}: not the published {dataset_class.filename} (md5 {dataset_class.tgz_md5})"
        )
    folder.mkdir(exist_ok=True)
    (folder / dataset_class.filename).unlink(missing_ok=True)
    (folder / dataset_class.filename).symlink_to(archive.resolve())
    return folder

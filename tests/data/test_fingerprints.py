"""Prepared bytes stay the same: whatever prepares a dataset, its arrays have the known hash.

A changed hash here means that runs on that dataset get other numbers and other ids.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import original_files as originals
from support.data_settings import data_settings

from fedbench.data.prepared import Info

# dataset: hash of the prepared arrays, fingerprint of what a run loads
SMALL = {
    "mnist": ("138f1fb2dc3a4f5c", "a3408fa908579af2"),
    "fmnist": ("138f1fb2dc3a4f5c", "a3408fa908579af2"),
    "emnist": ("7be782ef48b46190", "6b8e470a93b77dce"),
    "cifar10": ("d4ab2871e602c726", "c21d122ca2d28f5d"),
    "cifar100": ("0a82285185f224a6", "00269cfb34116dc3"),
    "svhn": ("a3f11f16b9d3df39", "1dd7cf5ec3dda506"),
    "cinic10": ("6b7c9b67810fb117", "e0eef942789731a3"),
    "tinyimagenet": ("4a77564793fd845b", "966f47b99e715fe7"),
    "lc25000": ("698392d518cd411b", "6622125d372d1af2"),
    "qqp": ("392c44ae4340322c", "eb64c85abeffe509"),
}
# The fingerprints of the real datasets.
REAL = {
    "mnist": "7b6bdd5dda685f3e",
    "fmnist": "51cc5055b562970e",
    "cifar10": "c0c0a33e3bb25e47",
    "cifar100": "f8e14c0ded8d9d16",
}


def prepared_hash(folder: Path) -> str:
    """A hash of all prepared arrays, and of the vocabulary, whatever the files' own headers are."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("[!.]*")):
        if path.suffix == ".txt":
            digest.update(path.read_bytes())
        if path.suffix not in (".npz", ".npy"):
            continue
        content = np.load(path)
        arrays = {"": content} if path.suffix == ".npy" else dict(content)
        for name, array in sorted(arrays.items()):
            digest.update(f"{path.name} {name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]


@pytest.mark.parametrize("name", SMALL)
def test_prepared_arrays_are_known(name, fedbench_data, tmp_path, monkeypatch):
    # Lossless, so that the hash does not depend on the version of the JPEG library.
    for ending in originals.IMAGE_FORMATS:
        monkeypatch.setitem(originals.IMAGE_FORMATS, ending, "PNG")
    given = getattr(originals, name)(tmp_path / "given")
    if name.startswith("cifar"):
        originals.publish_cifar(name, given, monkeypatch)
    size = ("--size", 16) if name == "lc25000" else ()
    status, _, err = fedbench_data(name, "--from", given, "--any-size", *size)
    assert status == 0, err
    shape = {"shape": [16, 16, 3]} if name == "lc25000" else {}
    dataset = data_settings(name, root=str(tmp_path / "root"), **shape).load(0)
    if dataset.mean:  # their last bits, in `content`, depend on the processor
        dataset = replace(dataset, content="")
    assert (prepared_hash(tmp_path / "root" / name), dataset.fingerprint()) == SMALL[name]


def test_the_hash_of_statistics_and_files_is_known():
    checksums = {"train-images.npy": "blake2b:0123", "LC25000.zip": "md5:4567"}
    info = Info("somewhere", [2, 2, 1], 4, 1, mean=[0.5], std=[0.25], checksums=checksums)
    assert info.content() == "35eea54e40bd3754"


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL)
def test_real_datasets_are_known(name, real_data):
    if not (real_data / name).is_dir():
        pytest.skip(f"{name} is not in FEDBENCH_DATA")
    assert data_settings(name, root=str(real_data)).load(0).fingerprint() == REAL[name]

"""What is known of every dataset that can be prepared: who publishes it, on what terms, and which
reader reads it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedbench.core.errors import BadInput, MissingData
from fedbench.core.files import config_folder
from fedbench.data.prepare.archives import SourceFiles
from fedbench.data.prepare.questions import read_qqp
from fedbench.data.prepare.readers import (
    read_cifar10,
    read_cifar100,
    read_cinic10,
    read_emnist,
    read_lc25000,
    read_mnist,
    read_svhn,
    read_tinyimagenet,
)
from fedbench.data.prepare.store import DatasetSpec, DatasetWriter
from fedbench.data.prepared import (
    SPLITS,
    all_exist,
    data_root,
    mapped_files,
    npz_files,
    pair_files,
)


@dataclass(frozen=True)
class PublishedFile:
    """A file at its publisher's address, with the checksum that is known of it."""

    name: str
    url: str
    checksum: str  # "md5:..." or "sha256:..."


@dataclass(frozen=True)
class CatalogEntry:
    """How one dataset gets from its publisher to the data root."""

    original: str  # the files that the reader expects
    obtain: str  # where a person gets them, and on what terms
    read: Callable[[SourceFiles, DatasetWriter], str]  # returns a note for readers of results
    published: tuple[PublishedFile, ...] = ()  # what can be downloaded without asking anybody
    # Whether only the published file is accepted: CIFAR's are pickles, which could run any code.
    only_published: bool = False
    resized: bool = False  # whether the stored size of the images can be chosen


def _published(address: str, checksums: dict[str, str]) -> tuple[PublishedFile, ...]:
    return tuple(
        PublishedFile(name, f"{address}/{name}", checksum) for name, checksum in checksums.items()
    )


_IDX_FILES = "folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

# Addresses and checksums of MNIST, Fashion-MNIST, CIFAR, EMNIST and SVHN are torchvision's.
ENTRIES = {
    "mnist": CatalogEntry(
        _IDX_FILES,
        "http://yann.lecun.com/exdb/mnist",
        read_mnist,
        _published(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            {
                "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
            },
        ),
    ),
    "fmnist": CatalogEntry(
        _IDX_FILES,
        "https://github.com/zalandoresearch/fashion-mnist (MIT)",
        read_mnist,
        _published(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            {
                "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
            },
        ),
    ),
    "cifar10": CatalogEntry(
        "cifar-10-python.tar.gz",
        f"{_TORONTO}/cifar.html",
        read_cifar10,
        _published(_TORONTO, {"cifar-10-python.tar.gz": "md5:c58f30108f718f92721af3b95e74349a"}),
        only_published=True,
    ),
    "cifar100": CatalogEntry(
        "cifar-100-python.tar.gz",
        f"{_TORONTO}/cifar.html",
        read_cifar100,
        _published(_TORONTO, {"cifar-100-python.tar.gz": "md5:eb9058c3a382ffc7106e4002c42a8d85"}),
        only_published=True,
    ),
    "emnist": CatalogEntry(
        "gzip.zip or a folder with emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte.gz",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset (NIST, free)",
        read_emnist,
        _published(
            "https://biometrics.nist.gov/cs_links/EMNIST",
            {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
        ),
    ),
    "svhn": CatalogEntry(
        "folder with train_32x32.mat and test_32x32.mat",
        "http://ufldl.stanford.edu/housenumbers (non-commercial use)",
        read_svhn,
        _published(
            "http://ufldl.stanford.edu/housenumbers",
            {
                "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
                "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
            },
        ),
    ),
    "cinic10": CatalogEntry(
        "CINIC-10.tar.gz or its folder with {train,valid,test}/<class>/*.png",
        "CINIC-10.tar.gz from https://datashare.ed.ac.uk/handle/10283/3192, on ImageNet's terms",
        read_cinic10,
    ),
    "tinyimagenet": CatalogEntry(
        "tiny-imagenet-200.zip or its folder with train, val and wnids.txt",
        "http://cs231n.stanford.edu, on ImageNet's terms (non-commercial research and education)",
        read_tinyimagenet,
        _published(
            "http://cs231n.stanford.edu",
            {"tiny-imagenet-200.zip": "md5:90528d7ca1a48142e341f4ef8d21d0de"},
        ),
    ),
    "lc25000": CatalogEntry(
        "LC25000.zip or its folder lung_colon_image_set with"
        " {colon,lung}_image_sets/<class>/*.jpeg",
        "the archive from https://github.com/tampapath/lung_colon_image_set, which leads to its"
        " download page",
        read_lc25000,
        resized=True,
    ),
    "qqp": CatalogEntry(
        "QQP-clean.zip or its folder with train.tsv and dev.tsv",
        "https://gluebenchmark.com/tasks, on Quora's terms (non-commercial use)",
        read_qqp,
        _published(
            "https://dl.fbaipublicfiles.com/glue/data",
            {
                "QQP-clean.zip": (
                    "sha256:40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"
                )
            },
        ),
    ),
}


def dataset_spec(name: str, size: int | None = None) -> DatasetSpec:
    """What conf/data says of a dataset; `size` is another stored height and width."""
    stored = yaml.safe_load((config_folder() / "data" / f"{name}.yaml").read_text())
    shape = tuple(stored.get("shape", ()))
    if size is not None:
        shape = (size, size, *shape[2:])
    sizes = {split: stored[f"{split}_size"] for split in SPLITS}
    mapped = stored["_target_"].endswith("MappedDataset")
    return DatasetSpec(name, shape, stored["classes"], sizes, mapped)


def prepared_files(name: str, folder: Path) -> list[Path]:
    """The files of the dataset when it is complete."""
    spec = dataset_spec(name)
    if spec.mapped:
        return mapped_files(folder)
    return npz_files(folder) if spec.shape else pair_files(folder)


def is_prepared(name: str, folder: Path) -> bool:
    return all_exist(prepared_files(name, folder))


def command_for(name: str, root: str | None, again: bool = False) -> str:
    """The command line that prepares a dataset."""
    words = ["fedbench-data", name]
    if root:
        words += ["--root", str(root)]
    words.append("--download" if ENTRIES[name].published else "--from FILE_OR_FOLDER")
    if again:
        words.append("--force")
    return " ".join(words)


def missing_data(name: str, root: str | None) -> BadInput:
    """The line for a dataset that nobody prepared: which command does, and what else there is."""
    holder = data_root(root)
    folder = holder / name
    if holder.exists() and not holder.is_dir():
        return MissingData(f"data.root={holder}: must be a folder; it is a file")
    for place in (holder, folder):  # perhaps it is there, so no stand-in may take its place
        if os.path.isdir(place) and not os.access(place, os.R_OK | os.X_OK):
            return BadInput(
                f"data.root={holder}: must be a folder that you may read; {place}: permission"
                " denied"
            )
    how = ""
    if name in ENTRIES and ENTRIES[name].published:
        how = f"`{command_for(name, root)}` (or data.download=true) gets it, "
    elif name in ENTRIES:
        how = f"`{command_for(name, root)}` prepares it (get {ENTRIES[name].obtain}), "
    return MissingData(
        f"data={name}: not in {folder}; {how}data.source=synthetic runs on a stand-in"
    )


def damaged_data(name: str, root: str | None, error: BadInput) -> BadInput:
    """What is wrong with a file of a dataset, and what to do about it."""
    advice = "prepare it again"
    if name in ENTRIES:
        advice = f"`{command_for(name, root, again=True)}` prepares it again"
    return BadInput(f"data={name}: {error}; {advice}")

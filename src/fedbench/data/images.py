"""Datasets known by name (mnist, cifar10, ...): read from the data root, downloaded there or stood
in for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.core.errors import BadInput, MissingData, require
from fedbench.data.augment import check_choices
from fedbench.data.dataset import Dataset, Examples, assemble, check_subset
from fedbench.data.files import data_root, read_npz
from fedbench.data.info import PARTS, Info, npz_files, read_info
from fedbench.data.prepare.catalog import ENTRIES, command_for
from fedbench.data.prepare.preparation import download
from fedbench.data.synthetic import stand_in

SOURCES = ("real", "synthetic")


@dataclass(frozen=True)
class NamedDataset:
    """Settings of one named image dataset.

    `subset` takes a seeded, stratified part of the training set only: the test set stays whole, so
    that accuracies with and without it are measured on the same images. The stand-in has no images
    worth keeping: there, the test set shrinks with the training set. The stand-in is the same for
    every seed and has its own mean and deviation.
    """

    name: str
    shape: list[int]  # height, width, channels
    classes: int
    train_size: int
    test_size: int
    root: str | None = None
    source: str = "real"
    download: bool = False
    subset: int | None = None
    mean: list[float] | None = None
    std: list[float] | None = None
    augment: list[str] = field(default_factory=list)  # of training images: crop, flip

    always_by_checksum: ClassVar[bool] = (
        False  # whether the files' recorded checksums are part of a run's identity
    )

    def load(self, seed: int) -> Dataset:
        require(
            self.source in SOURCES, "data.source", self.source, f"choose from {', '.join(SOURCES)}"
        )
        whole = (
            self.name == Path(self.name).name not in ("", "..")
        )  # a folder of the data root, not a way out of it
        require(
            whole,
            "data.name",
            self.name,
            "the name of a folder in the data root is allowed, without /",
        )
        check_choices(self.augment)
        self._check_form()
        if self.source == "synthetic":
            return self._load_stand_in()
        train, test = self.read()
        info = self.recorded()
        mean, std = self.mean, self.std
        recorded = (
            info is not None and bool(info.mean and info.std) and (mean is None or std is None)
        )
        if (
            recorded
        ):  # computed when the dataset was prepared, so that a start need not count every pixel
            mean, std = mean or info.mean, std or info.std
        return assemble(
            self.name,
            train,
            test,
            self.classes,
            subset=self.subset,
            seed=seed,
            mean=mean,
            std=std,
            notes=[
                info.note if info else "",
                size_note("training", len(train[1]), self.train_size),
                size_note("test", len(test[1]), self.test_size),
            ],
            content=info.content() if info and (recorded or self.always_by_checksum) else "",
        )

    def _check_form(self) -> None:
        """Ranges that hold for real images and for stand-ins, whether or not their value is
        used.
        """
        whole = len(self.shape) == 3 and min(self.shape) >= 1
        require(
            whole, "data.shape", self.shape, "needs height, width and channels, each at least 1"
        )
        require(self.classes >= 2, "data.classes", self.classes, "at least 2")
        check_sizes(self.train_size, self.test_size)
        channels = self.shape[-1]
        for key, values in (("data.mean", self.mean), ("data.std", self.std)):
            good = values is None or (len(values) == channels and bool(np.isfinite(values).all()))
            require(good, key, values, f"needs {channels} finite numbers, one a channel, or null")
        require(
            self.std is None or min(self.std) > 0, "data.std", self.std, "needs numbers above 0"
        )

    def read(self) -> tuple[Examples, Examples]:
        """Training and test examples from the data root, after the download if it is asked for and
        needed.
        """
        folder = self.folder()
        if not is_there(self._files(folder)):
            if not self.download:
                raise missing(self.name, self.root, folder)
            download(self.name, folder)
        try:
            train, test = (self._read_part(folder, part) for part in PARTS)
        except BadInput as error:
            raise damaged(self.name, self.root, error) from error
        return train, test

    def recorded(self) -> Info | None:
        """What was written down when the dataset was prepared."""
        try:
            return read_info(self.folder())
        except BadInput as error:
            raise damaged(self.name, self.root, error) from error

    def folder(self) -> Path:
        return data_root(self.root) / self.name

    def _files(self, folder: Path) -> list[Path]:
        return npz_files(folder)

    def _read_part(self, folder: Path, part: str) -> Examples:
        path = folder / f"{part}.npz"
        images, labels = read_npz(path, ("images", "labels"), str(path))
        if images.ndim == 3 and self.shape[-1] == 1:
            images = images[..., None]
        self._check(path, images, labels)
        return images, labels.astype(np.int64, copy=False)

    def _check(self, path: Path, images: np.ndarray, labels: np.ndarray) -> None:
        problem = ""
        if images.dtype != np.uint8 or list(images.shape[1:]) != list(self.shape):
            need = ", ".join(map(str, self.shape))
            problem = f"images are {images.dtype} {list(images.shape)}, need uint8 [N, {need}]"
        elif labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu":
            problem = f"labels are {labels.dtype} {list(labels.shape)}, need {len(images)} integers"
        elif not len(labels):
            problem = "holds no images"
        elif labels.min() < 0 or labels.max() >= self.classes:
            problem = (
                f"labels run from {labels.min()} to {labels.max()}, need 0 to {self.classes - 1}"
            )
        if problem:
            raise BadInput(f"{path}: {problem}")

    def _load_stand_in(self) -> Dataset:
        train_size, test_size = stand_in_sizes(
            self.classes, self.train_size, self.test_size, self.subset
        )
        train, test = stand_in(self.name, self.shape, self.classes, train_size, test_size)
        note = f"synthetic stand-in for {self.name}"
        size_note = (
            "" if self.subset is None else f"{train_size:,} training and {test_size:,} test images"
        )
        return assemble(
            self.name, train, test, self.classes, source="synthetic", notes=[note, size_note]
        )


def check_sizes(train_size: int, test_size: int) -> None:
    for key, size in (("data.train_size", train_size), ("data.test_size", test_size)):
        require(size >= 1, key, size, "at least 1")


def stand_in_sizes(
    classes: int, train_size: int, test_size: int, subset: int | None
) -> tuple[int, int]:
    """Training and test examples of a stand-in; `subset` shrinks both."""
    if subset is None:
        return train_size, test_size
    check_subset(subset, train_size)
    # Ten test examples a class keep an accuracy readable.
    return subset, min(test_size, max(test_size * subset // train_size, 10 * classes))


def size_note(which: str, found: int, expected: int, unit: str = "images") -> str:
    # Somebody's own selection under the right name is usable, but a reader of the numbers must
    # know.
    return "" if found == expected else f"{which} set of {found:,} {unit} instead of {expected:,}"


def is_there(files: Iterable[Path]) -> bool:
    return all(
        map(os.path.exists, files)
    )  # unlike Path.exists, false in a folder without permission


def missing(name: str, root: str | None, folder: Path) -> BadInput:
    """The line for a dataset that nobody prepared: which command does, and what else there is."""
    holder = data_root(root)
    if holder.exists() and not holder.is_dir():
        return MissingData(f"data.root={holder}: it is a file; a folder is allowed")
    for place in (holder, folder):  # perhaps it is there, so no stand-in may take its place
        if os.path.isdir(place) and not os.access(place, os.R_OK | os.X_OK):
            return BadInput(
                f"data.root={holder}: {place}: permission denied; a folder that you may read is"
                " allowed"
            )
    how = f"`{command_for(name, root)}` " if name in ENTRIES else ""
    if name in ENTRIES and ENTRIES[name].downloads:
        how += "(or data.download=true) gets it, "
    elif name in ENTRIES:
        how += f"prepares it (get {ENTRIES[name].obtain}), "
    return MissingData(
        f"data={name}: not in {folder}; {how}data.source=synthetic runs on a stand-in"
    )


def damaged(name: str, root: str | None, error: BadInput) -> BadInput:
    """What is wrong with a file of a dataset, and what to do about it."""
    redo = (
        f"`{command_for(name, root, again=True)}` makes it anew"
        if name in ENTRIES
        else "make it anew"
    )
    return BadInput(f"data={name}: {error}; {redo}")

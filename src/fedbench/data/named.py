"""Datasets known by name (mnist, cifar10, ...): read from the data root, downloaded there or stood in for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.data.base import Dataset, Examples, assemble, check_subset
from fedbench.data.download import download
from fedbench.data.files import data_root, read_npz
from fedbench.data.synthetic import stand_in
from fedbench.errors import BadInput, require

_SOURCES = ("real", "synthetic")


@dataclass(frozen=True)
class NamedDataset:
    """Settings of one named image dataset.

    `subset` takes a seeded, stratified part of the training set only: the test set stays whole, so that
    accuracies with and without it are measured on the same images. The stand-in has no images worth keeping:
    there, the test set shrinks with the training set. The stand-in is the same for every seed and has its own
    mean and deviation.
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

    def load(self, seed: int) -> Dataset:
        require(self.source in _SOURCES, "data.source", self.source, f"choose from {', '.join(_SOURCES)}")
        if self.source == "synthetic":
            return self._load_stand_in()
        train, test = self.read()
        return assemble(
            self.name,
            train,
            test,
            self.classes,
            subset=self.subset,
            seed=seed,
            mean=self.mean,
            std=self.std,
            notes=[
                self._size_note("training", len(train[1]), self.train_size),
                self._size_note("test", len(test[1]), self.test_size),
            ],
        )

    def read(self) -> tuple[Examples, Examples]:
        """Training and test examples from the data root, after the download if it is asked for and needed."""
        folder = data_root(self.root) / self.name
        files = [folder / "train.npz", folder / "test.npz"]
        if not all(map(os.path.exists, files)):  # unlike Path.exists, false in a folder without permission
            if not self.download:
                raise BadInput(
                    f"data={self.name}: not in {folder}; `{self._download_command()}` gets it, "
                    "data.source=synthetic runs on a stand-in"
                )
            download(self.name, folder)
        train, test = (self._read_file(file) for file in files)
        return train, test

    def _read_file(self, path: Path) -> Examples:
        try:
            images, labels = read_npz(path, ("images", "labels"), str(path))
            if images.ndim == 3 and self.shape[-1] == 1:
                images = images[..., None]
            self._check(path, images, labels)
        except BadInput as error:
            raise BadInput(f"{error}; delete it and `{self._download_command()}` gets it again") from error
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
            problem = f"labels run from {labels.min()} to {labels.max()}, need 0 to {self.classes - 1}"
        if problem:
            raise BadInput(f"{path}: {problem}")

    def _load_stand_in(self) -> Dataset:
        whole = len(self.shape) == 3 and min(self.shape) >= 1
        require(whole, "data.shape", self.shape, "needs height, width and channels, each at least 1")
        require(self.classes >= 2, "data.classes", self.classes, "at least 2")
        train_size, test_size = self.train_size, self.test_size
        for key, size in (("data.train_size", train_size), ("data.test_size", test_size)):
            require(size >= 1, key, size, "at least 1")
        if self.subset is not None:
            check_subset(self.subset, train_size)
            # Ten test images a class keep an accuracy readable.
            test_size = min(test_size, max(test_size * self.subset // train_size, 10 * self.classes))
            train_size = self.subset
        train, test = stand_in(self.name, self.shape, self.classes, train_size, test_size)
        note = f"synthetic stand-in for {self.name}"
        size_note = "" if self.subset is None else f"{train_size:,} training and {test_size:,} test images"
        return assemble(self.name, train, test, self.classes, source="synthetic", notes=[note, size_note])

    def _size_note(self, which: str, found: int, expected: int) -> str:
        # Somebody's own selection under the right name is usable, but a reader of the numbers must know.
        return "" if found == expected else f"{which} set of {found:,} images instead of {expected:,}"

    def _download_command(self) -> str:
        root = f" data.root={self.root}" if self.root else ""
        return f"fedbench data={self.name}{root} data.download=true"

"""Image datasets known by name (mnist, cifar10, ...): read from the data root, downloaded there, or
replaced by a synthetic stand-in.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.fields import check_fields, choice, count
from fedbench.data.arrays import open_mapped, read_npz
from fedbench.data.augment import check_choices
from fedbench.data.dataset import (
    UNVERIFIED,
    Dataset,
    DatasetSettings,
    Examples,
    assemble,
    check_statistics,
    size_note,
    stand_in_sizes,
)
from fedbench.data.prepare.catalog import damaged_data, missing_data
from fedbench.data.prepare.preparation import download
from fedbench.data.prepared import (
    SPLITS,
    Info,
    all_exist,
    current_checksums,
    data_root,
    mapped_files,
    npz_files,
    read_info,
)
from fedbench.data.synthetic import stand_in

SOURCES = ("real", "synthetic")


@dataclass(frozen=True)
class NamedDataset(DatasetSettings):
    """Settings of one named image dataset.

    `subset` takes a seeded, stratified part of the training set only: the test set stays whole, so
    that accuracies with and without it are measured on the same images. The stand-in has no images
    worth keeping: there, the test set shrinks with the training set. The stand-in is the same for
    every seed and has its own mean and deviation.
    """

    name: str
    shape: list[int]  # height, width, channels
    classes: int = count(at_least=2)
    train_size: int = count()
    test_size: int = count()
    root: str | None = None
    source: str = choice("real", SOURCES)
    download: bool = False
    mean: list[float] | None = None
    std: list[float] | None = None
    augment: list[str] = field(default_factory=list)  # of training images: crop, flip

    # Whether the files' recorded checksums are part of a run's identity.
    always_by_checksum: ClassVar[bool] = False

    def load(self, seed: int) -> Dataset:
        self._check_settings()
        if self.source == "synthetic":
            return self._load_stand_in()
        train, test = self.read()
        info = self.info()
        mean = self.mean
        std = self.std
        content = ""
        if info is not None:
            # Recorded when the dataset was prepared, so that a start need not count every pixel.
            recorded = bool(info.mean and info.std) and (mean is None or std is None)
            if recorded:
                mean = mean or info.mean
                std = std or info.std
            if recorded or self.always_by_checksum:
                content = info.content()
        notes = [
            info.note if info is not None else "",
            size_note("training", len(train[1]), self.train_size),
            size_note("test", len(test[1]), self.test_size),
        ]
        return assemble(
            self.name,
            train,
            test,
            self.classes,
            source=self.verified(info),
            subset=self.subset,
            seed=seed,
            mean=mean,
            std=std,
            notes=notes,
            content=content,
        )

    def _check_settings(self) -> None:
        """Ranges that hold for real images and for stand-ins, whether or not their value is
        used.
        """
        check_fields(self, "data")
        inside = self.name == Path(self.name).name not in ("", "..")
        require(
            inside, "data.name", self.name, "must be the name of a folder in the data root, no path"
        )
        check_choices(self.augment)
        whole = len(self.shape) == 3 and min(self.shape) >= 1
        require(
            whole,
            "data.shape",
            self.shape,
            "must be height, width and channels, each at least 1",
        )
        check_statistics(self.mean, self.std, self.shape[-1])

    def read(self) -> tuple[Examples, Examples]:
        """Training and test examples from the data root, after the download if it is asked for and
        needed.
        """
        folder = self.folder()
        if not all_exist(self._files(folder)):
            if not self.download:
                raise missing_data(self.name, self.root)
            download(self.name, folder)
        try:
            train, test = (self._read_split(folder, split) for split in SPLITS)
        except BadInput as error:
            raise damaged_data(self.name, self.root, error) from error
        return train, test

    def info(self) -> Info | None:
        """What was written down when the dataset was prepared."""
        try:
            return self._read_info()
        except BadInput as error:
            raise damaged_data(self.name, self.root, error) from error

    def verified(self, info: Info | None) -> str:
        """How real examples are called: files that nothing is known about may be anything."""
        return UNVERIFIED if info is None else "real"

    def folder(self) -> Path:
        return data_root(self.root) / self.name

    def _files(self, folder: Path) -> list[Path]:
        return npz_files(folder)

    def _read_info(self) -> Info | None:
        return read_info(self.folder())

    def _read_split(self, folder: Path, split: str) -> Examples:
        path = folder / f"{split}.npz"
        images, labels = read_npz(path, ("images", "labels"), str(path))
        if images.ndim == 3 and self.shape[-1] == 1:
            images = images[..., None]
        self._check_arrays(path, images, labels)
        return images, labels.astype(np.int64, copy=False)

    def _check_arrays(self, path: Path, images: np.ndarray, labels: np.ndarray) -> None:
        problem = ""
        if images.dtype != np.uint8 or list(images.shape[1:]) != list(self.shape):
            needed = ", ".join(map(str, self.shape))
            problem = f"images are {images.dtype} {list(images.shape)}, must be uint8 [N, {needed}]"
        elif labels.ndim != 1 or len(labels) != len(images) or labels.dtype.kind not in "iu":
            problem = (
                f"labels are {labels.dtype} {list(labels.shape)}, must be {len(images)} integers"
            )
        elif not len(labels):
            problem = "holds no images"
        elif labels.min() < 0 or labels.max() >= self.classes:
            problem = (
                f"labels run from {labels.min()} to {labels.max()}, must run from 0 to"
                f" {self.classes - 1}"
            )
        if problem:
            raise BadInput(f"{path}: {problem}")

    def _load_stand_in(self) -> Dataset:
        train_size, test_size = stand_in_sizes(
            self.classes, self.train_size, self.test_size, self.subset
        )
        train, test = stand_in(self.name, self.shape, self.classes, train_size, test_size)
        notes = [f"synthetic stand-in for {self.name}"]
        if self.subset is not None:
            notes.append(f"{train_size:,} training and {test_size:,} test images")
        return assemble(self.name, train, test, self.classes, source="synthetic", notes=notes)


@dataclass(frozen=True)
class MappedDataset(NamedDataset):
    """Settings of one dataset whose images stay on the disk, as {train,test}-images.npy, until a
    batch needs them.

    Only a `subset` is read into memory. Mean and deviation come from info.json, as do the files'
    checksums, which are part of a run's identity: nothing else shows, without reading everything,
    that an image in the middle has changed. A file that was modified after it was prepared is read
    whole, and refused when it is another one.
    """

    always_by_checksum: ClassVar[bool] = True

    def _files(self, folder: Path) -> list[Path]:
        return mapped_files(folder)

    def _read_info(self) -> Info | None:
        info = super()._read_info()
        if info is None:
            return None
        checksums = current_checksums(self.folder(), info)
        return replace(info, checksums={**info.checksums, **checksums})

    def _read_split(self, folder: Path, split: str) -> Examples:
        images_path = folder / f"{split}-images.npy"
        labels_path = folder / f"{split}-labels.npy"
        images = open_mapped(images_path, str(images_path))
        labels = np.array(open_mapped(labels_path, str(labels_path)))  # small, and used whole
        stored = list(images.shape[1:])
        if images.ndim == 4 and stored != list(self.shape):
            raise bad_value(
                "data.shape",
                self.shape,
                f"must be {stored}, as the images in {folder} are stored",
            )
        self._check_arrays(images_path, images, labels)
        return images, labels.astype(np.int64, copy=False)

"""Where a dataset is written: aside first, and into its folder of the data root when all of it is
there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.arrays import write_npy, write_npz
from fedbench.data.dataset import channel_statistics
from fedbench.data.prepared import (
    INFO,
    Info,
    array_files,
    modification_time,
    prepared_checksum,
    write_info,
)

_BLOCK = 256  # images that are decoded at a time


@dataclass(frozen=True)
class DatasetSpec:
    """What conf/data says of a dataset."""

    name: str
    shape: tuple[int, ...]  # of one image; () for sentences
    classes: int
    sizes: dict[str, int]  # examples in train and test
    mapped: bool = False  # kept as memory-mapped .npy files instead of .npz


class DatasetWriter:
    """Writes the training and the test set of one dataset.

    Files appear in `staging` first; `finish` moves them into the dataset's folder. `any_size`
    allows other numbers of examples than the dataset has.
    """

    def __init__(self, staging: Path, spec: DatasetSpec, any_size: bool = False) -> None:
        self.staging = staging
        self.spec = spec
        self.any_size = any_size
        self.counts: dict[str, int] = {}
        self.mean: list[float] | None = None
        self.std: list[float] | None = None
        staging.mkdir(parents=True)

    def write_arrays(self, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        """Write a set of images that is in memory."""
        self.check_size(split, len(labels))
        self._check_arrays(split, images, labels)
        images = np.ascontiguousarray(images)
        self._describe(split, images)
        if self.spec.mapped:
            write_npy(self.staging / f"{split}-images.npy", images)
            write_npy(self.staging / f"{split}-labels.npy", labels)
        else:
            write_npz(self.staging / f"{split}.npz", images=images, labels=labels)

    def write_images(
        self, split: str, labels: dict[str, int], decode: Callable[[str], np.ndarray]
    ) -> None:
        """Decode and write a set of single image files, sorted by name.

        `labels` has the names of the files, `decode` returns the pixels of one.
        """
        from rich.console import Console  # a run, which prepares nothing, starts without it
        from rich.progress import track

        self.check_size(split, len(labels))
        names = sorted(labels)
        path = self.staging / f"{split}-images.npy"
        images = np.lib.format.open_memmap(path, "w+", np.uint8, (len(names), *self.spec.shape))

        def store(row: int) -> None:
            images[row] = decode(names[row])

        console = Console(stderr=True)
        blocks = track(
            range(0, len(names), _BLOCK),
            f"{self.spec.name}: {split}",
            console=console,
            disable=not console.is_terminal,
        )
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in blocks:
                list(pool.map(store, range(start, min(start + _BLOCK, len(names)))))
        images.flush()
        self._describe(split, images)
        ordered = np.array([labels[name] for name in names], dtype=np.int64)
        if self.spec.mapped:
            write_npy(self.staging / f"{split}-labels.npy", ordered)
        else:
            write_npz(self.staging / f"{split}.npz", images=images, labels=ordered)
            path.unlink()

    def write_pairs(self, split: str, **arrays: np.ndarray) -> None:
        """Write a set of sentence pairs, given as words, lengths and labels."""
        self.counts[split] = len(arrays["labels"])
        write_npz(self.staging / f"{split}.npz", **arrays)

    def check_size(self, split: str, found: int, tolerance: float = 0.0) -> None:
        expected = self.spec.sizes[split]
        if not found or (abs(found - expected) > tolerance * expected and not self.any_size):
            raise BadInput(
                f"{self.spec.name}: the {split} set has {found:,} examples instead of {expected:,}:"
                " incomplete? (--any-size prepares what is there, and every result says so)"
            )

    def finish(self, folder: Path, source: str, note: str, checksums: dict[str, str]) -> None:
        """Move the files into the dataset's folder; info.json, written last, makes it complete."""
        (folder / INFO).unlink(missing_ok=True)  # from here on, old and new files may be mixed
        for path in sorted(self.staging.iterdir()):
            os.replace(path, folder / path.name)
        modified: dict[str, int] = {}
        if self.spec.mapped:
            arrays = array_files(folder)
            checksums = checksums | {path.name: prepared_checksum(path) for path in arrays}
            modified = {path.name: modification_time(path) for path in arrays}
        info = Info(
            source=source,
            shape=list(self.spec.shape),
            train=self.counts["train"],
            test=self.counts["test"],
            note=note,
            mean=self.mean,
            std=self.std,
            checksums=checksums,
            modified=modified,
        )
        write_info(folder, info)

    def _describe(self, split: str, images: np.ndarray) -> None:
        self.counts[split] = len(images)
        if split == "train":
            mean, std = channel_statistics(images)
            self.mean = list(mean)
            self.std = list(std)

    def _check_arrays(self, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        subject = f"{self.spec.name}: the {split}"
        expected = (len(labels), *self.spec.shape)
        if images.dtype != np.uint8 or images.shape != expected:
            raise BadInput(
                f"{subject} images are {images.dtype} {list(images.shape)}, must be uint8"
                f" {list(expected)}"
            )
        if labels.min() < 0 or labels.max() >= self.spec.classes:
            raise BadInput(
                f"{subject} labels run from {labels.min()} to {labels.max()}, must run from 0 to"
                f" {self.spec.classes - 1}"
            )

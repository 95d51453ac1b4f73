"""Datasets of large images: memory-mapped, so that a start does not read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.data.base import Examples
from fedbench.data.files import open_mapped
from fedbench.data.info import mapped_files
from fedbench.data.named import NamedDataset
from fedbench.errors import bad_value


@dataclass(frozen=True)
class MappedDataset(NamedDataset):
    """Settings of one dataset whose images stay on the disk, as {train,test}-images.npy, until a batch needs them.

    Only a `subset` is read into memory. Mean and deviation come from info.json, as do the files' checksums, which are
    part of a run's identity: nothing else tells without reading everything that an image in the middle has changed.
    """

    always_by_checksum: ClassVar[bool] = True

    def _files(self, folder: Path) -> list[Path]:
        return mapped_files(folder)

    def _read_part(self, folder: Path, part: str) -> Examples:
        images_path, labels_path = folder / f"{part}-images.npy", folder / f"{part}-labels.npy"
        images = open_mapped(images_path, str(images_path))
        labels = np.array(open_mapped(labels_path, str(labels_path)))  # small, and used whole
        stored = list(images.shape[1:])
        if images.ndim == 4 and stored != list(self.shape):
            raise bad_value(
                "data.shape", self.shape, f"the images in {folder} are stored as {stored}, which is allowed"
            )
        self._check(images_path, images, labels)
        return images, labels.astype(np.int64, copy=False)

"""Datasets of large images: memory-mapped, so that a start does not read them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedbench.core.errors import BadInput, bad_value
from fedbench.data.checked import checksums_of
from fedbench.data.dataset import Examples
from fedbench.data.files import open_mapped
from fedbench.data.images import NamedDataset, damaged
from fedbench.data.info import FILE, Info, mapped_files


@dataclass(frozen=True)
class MappedDataset(NamedDataset):
    """Settings of one dataset whose images stay on the disk, as {train,test}-images.npy, until a
    batch needs them.

    Only a `subset` is read into memory. Mean and deviation come from info.json, as do the files'
    checksums, which are part of a run's identity: nothing else tells without reading everything
    that an image in the middle has changed. A file whose size or time of change is not that of the
    last look is read, and refused when it is another one.
    """

    always_by_checksum: ClassVar[bool] = True

    def recorded(self) -> Info | None:
        info = super().recorded()
        found = checksums_of(path for path in mapped_files(self.folder()) if path.suffix == ".npy")
        for name, checksum in found.items():
            if info.checksums.get(name, checksum) != checksum:
                problem = (
                    f"{self.folder() / name}: not what fedbench-data wrote (another checksum than"
                    f" in {FILE})"
                )
                raise damaged(self.name, self.root, BadInput(problem))
        return replace(info, checksums={**info.checksums, **found})

    def _files(self, folder: Path) -> list[Path]:
        return mapped_files(folder)

    def _read_part(self, folder: Path, part: str) -> Examples:
        images_path, labels_path = folder / f"{part}-images.npy", folder / f"{part}-labels.npy"
        images = open_mapped(images_path, str(images_path))
        labels = np.array(open_mapped(labels_path, str(labels_path)))  # small, and used whole
        stored = list(images.shape[1:])
        if images.ndim == 4 and stored != list(self.shape):
            raise bad_value(
                "data.shape",
                self.shape,
                f"the images in {folder} are stored as {stored}, which is allowed",
            )
        self._check(images_path, images, labels)
        return images, labels.astype(np.int64, copy=False)

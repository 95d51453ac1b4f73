"""What is in the data root, told from headers and info.json without reading any array."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.files import DAMAGED
from fedbench.data.info import PARTS, mapped_files, npz_files, pair_files, read_info
from fedbench.data.prepare.catalog import ENTRIES
from fedbench.data.prepare.preparation import facts_of, is_prepared
from fedbench.data.prepare.store import is_unfinished

_COLUMNS = ("dataset", "size", "training", "test", "classes", "source")


def table(root: Path) -> str:
    """A line a dataset: size on the disk, number and shape of the examples, classes, source."""
    rows = [_COLUMNS, *(_row(name, root / name) for name in ENTRIES)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def describe(name: str, folder: Path) -> str:
    """The same in a few words, for one dataset that is there."""
    _, size, train, test, classes, _ = _row(name, folder)
    return f"{train} training and {test} test examples, {classes} classes, {size}"


def _row(name: str, folder: Path) -> tuple[str, ...]:
    facts = facts_of(name)
    if not is_prepared(name, folder):
        state = (
            "begun, not finished"
            if is_unfinished(folder) or (folder / ".download").is_dir()
            else "not there"
        )
        how = "--download" if ENTRIES[name].downloads else "--from FILE_OR_FOLDER"
        return name, "-", "-", "-", str(facts.classes), f"{state}: fedbench-data {name} {how}"
    files = (
        mapped_files(folder)
        if facts.mapped
        else npz_files(folder)
        if facts.shape
        else pair_files(folder)
    )
    try:
        info = read_info(folder)
        counts = [
            _examples(folder / (f"{part}-images.npy" if facts.mapped else f"{part}.npz"))
            for part in PARTS
        ]
    except (BadInput, *DAMAGED, KeyError) as error:
        return name, "-", "-", "-", str(facts.classes), f"damaged ({' '.join(str(error).split())})"
    size = sum(path.stat().st_size for path in files if path.exists())
    return (
        name,
        _bytes(size),
        *counts,
        str(facts.classes),
        info.source if info else "unknown (no info.json)",
    )


def _examples(path: Path) -> str:
    """Such as 60,000 x 28x28x1, from the header of the file itself."""
    if path.suffix == ".npy":
        with path.open("rb") as file:
            shape = _header(file)
    else:
        with zipfile.ZipFile(path) as archive:
            name = "images.npy" if "images.npy" in archive.namelist() else "lengths.npy"
            with archive.open(name) as file:
                shape = _header(file)
        if name == "lengths.npy":
            return f"{shape[0]:,} pairs"
    return f"{shape[0]:,} x {'x'.join(map(str, shape[1:]))}"


def _header(file: IO[bytes]) -> tuple[int, ...]:
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    return read(file)[0]


def _bytes(size: int) -> str:
    step = min(int(math.log(max(size, 1), 1000)), 4)
    return f"{size / 1000**step:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[step]}"

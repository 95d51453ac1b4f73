"""Files of arrays: reading them or saying what is wrong with them, and writing them whole."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, one_line
from fedbench.core.files import require_file, unreadable, whole_file

# What numpy and zipfile raise for a file that is damaged, cut short, encrypted or something else
# altogether. The last four come from headers that promise nonsense.
_DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    SyntaxError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    MemoryError,
    OverflowError,
    AttributeError,
    tokenize.TokenError,
)


def read_npz(path: Path, names: Sequence[str], subject: str) -> list[np.ndarray]:
    """The named arrays of an .npz file, never pickles.

    A bad file is a BadInput that starts with `subject`.

    Example:
        images, labels = read_npz(path, ["images", "labels"], str(path))
    """
    require_file(path, subject)
    needed = ", ".join(names)
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise BadInput(f"{subject}: must be an .npz file with {needed}, not a single array")
        with archive:
            missing = [name for name in names if name not in archive]
            if missing:
                has = ", ".join(archive.files) or "nothing"
                raise BadInput(f"{subject}: lacks {', '.join(missing)} (has {has}); needs {needed}")
            arrays = [archive[name] for name in names]
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise unreadable(subject, error) from error
    except _DAMAGED as error:
        reason = one_line(error)
        if "pickle" in reason:  # numpy would advise to allow what can run any code
            reason = "it holds Python objects or is no such file; must be arrays of numbers"
        raise BadInput(f"{subject}: not a readable .npz file ({reason})") from error
    for name, array in zip(names, arrays, strict=True):
        if not isinstance(array, np.ndarray):  # numpy returns what is no .npy file as it is
            raise BadInput(f"{subject}: {name} is no array (.npy); needs {needed}")
    return arrays


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    with whole_file(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def write_npy(path: Path, array: np.ndarray) -> None:
    with whole_file(path) as file:
        np.save(file, array)


def open_mapped(path: Path, subject: str) -> np.memmap:
    """The array of an .npy file as a memory map: only what is touched is read from the disk.

    The map is copy-on-write, because torch warns about arrays that cannot be written; the file
    never changes.
    """
    require_file(path, subject)
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise unreadable(subject, error) from error
    except _DAMAGED as error:
        raise BadInput(f"{subject}: not a readable .npy file ({one_line(error)})") from error
    if not isinstance(array, np.memmap):
        raise BadInput(f"{subject}: must be a single array (.npy), not an archive of arrays")
    return array


@dataclass(frozen=True)
class MappedRows:
    """Some rows of a memory-mapped array. They stay on the disk until they are asked for."""

    array: np.memmap
    rows: np.ndarray  # int64, ascending

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        return self.array[self.rows[index]]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

"""Files of arrays: where they live, reading them or saying what is wrong, writing them
atomically.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from fedbench.core.errors import BadInput

# What numpy and zipfile raise for a file that is damaged, cut short, encrypted or something else
# altogether.
DAMAGED = (
    *(OSError, ValueError, EOFError, SyntaxError, RuntimeError, zipfile.BadZipFile, zlib.error),
    *(
        MemoryError,
        OverflowError,
        AttributeError,
        tokenize.TokenError,
    ),  # from headers that promise nonsense
)


def data_root(root: str | None) -> Path:
    """`data.root`, else the environment's FEDBENCH_DATA, else a cache folder in the user's home."""
    chosen = root or os.environ.get("FEDBENCH_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # only a machine without FEDBENCH_DATA needs it

    return platformdirs.user_cache_path("fedbench") / "data"


def require_file(path: Path, subject: str) -> None:
    """A pipe would be waited for, and a device read without end. What is not there at all, opening
    it tells.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise BadInput(f"{subject}: neither a pipe nor a device; an ordinary file is allowed")


def read_npz(path: Path, names: Sequence[str], subject: str) -> list[np.ndarray]:
    """The named arrays of a file, never pickles. A bad file is a BadInput that starts with
    `subject`.
    """
    require_file(path, subject)
    try:
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise BadInput(
                f"{subject}: a single array (.npy); needs an .npz file with {', '.join(names)}"
            )
        with archive:
            missing = [name for name in names if name not in archive]
            if missing:
                has = ", ".join(archive.files) or "nothing"
                raise BadInput(
                    f"{subject}: lacks {', '.join(missing)} (has {has}); needs {', '.join(names)}"
                )
            arrays = [archive[name] for name in names]
            for name, array in zip(names, arrays, strict=True):
                if not isinstance(array, np.ndarray):  # numpy returns what is no .npy file as it is
                    raise BadInput(
                        f"{subject}: {name} is no array (.npy); needs {', '.join(names)}"
                    )
            return arrays
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise unreadable(subject, error) from error
    except DAMAGED as error:
        reason = one_line(error)
        if "pickle" in reason:  # numpy would advise to allow what can run any code
            reason = (
                "it holds Python objects or is no such file; only arrays of numbers are allowed"
            )
        raise BadInput(f"{subject}: not a readable .npz file ({reason})") from error


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write the file whole or not at all: a reader never sees a part of it, a crash leaves the old
    one.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_npz(path: Path, **arrays: np.ndarray) -> None:
    with whole_file(path) as file:
        np.savez(file, **arrays)


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
    except DAMAGED as error:
        raise BadInput(f"{subject}: not a readable .npy file ({one_line(error)})") from error
    if not isinstance(array, np.memmap):
        raise BadInput(f"{subject}: an archive of arrays; needs a single array (.npy)")
    return array


def file_hash(path: Path, subject: str) -> str:
    """Hash of a file's bytes: a file given by path enters a run's identity by its contents, not its
    name.
    """
    require_file(path, subject)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise unreadable(subject, error) from error


def unreadable(subject: str, error: OSError) -> BadInput:
    """The line for a file that is missing, a folder or not permitted."""
    return BadInput(f"{subject}: {(error.strerror or 'cannot be read').lower()}")


def one_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__

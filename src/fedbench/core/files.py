"""Files that are written whole or not at all, and files that a user names."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from fedbench.core.errors import BadInput


def config_folder() -> Path:
    """`conf/` inside the installed package, or at the top of the checkout."""
    packaged = Path(__file__).parents[1] / "conf"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "conf"


@contextmanager
def whole_file(path: Path, durable: bool = True) -> Iterator[IO[bytes]]:
    """Write beside the file and rename: a reader never sees a part of it, two writers never share
    a temporary file, and neither a full disk nor an interruption leaves one.

    `durable` waits until the disk has it. Without, a crash of the machine (not of the process) may
    lose the change.

    Example:
        with whole_file(folder / "train.npz") as file:
            np.savez(file, images=images, labels=labels)
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.errno is None:  # a library's own message, without the system's
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    if durable:
        sync_folder(path.parent)


def write_atomically(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write the content as a whole file; see `whole_file`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, durable) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def append(path: Path, text: str) -> None:
    """Add whole lines: in one call, and when the disk is full, none of them."""
    data = text.encode()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(file).st_size
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError as error:
            os.ftruncate(file, before)
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in a folder, so that what follows is never there without
    them.
    """
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_made(made: Sequence[Path]) -> None:
    """Take back files and folders that were new, from the innermost one to the first that holds
    anything else.
    """
    for place in made:
        try:
            place.rmdir() if place.is_dir() else place.unlink(missing_ok=True)
        except (OSError, ValueError):  # the latter: a name that cannot be, with a NUL character
            return


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a process that was killed while it wrote. Only for who holds the folder's
    lock.
    """
    for file in folder.glob(".*.part"):
        if file.is_symlink() or not file.is_dir():  # a folder is nothing that this program left
            file.unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """Processors have instructions for this one: 1.4 s for a gigabyte, half of what hashlib's
    blake2b takes.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of(content: dict[str, Any]) -> str:
    """Of what stands in a JSON file, which keeps every bit of a number."""
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()


# Files that a user names


def require_file(path: Path, subject: str) -> None:
    """Refuse a pipe, which would be waited for, and a device, which may have no end.

    A file that does not exist is left to whoever opens it.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise BadInput(f"{subject}: must be an ordinary file, neither a pipe nor a device")


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

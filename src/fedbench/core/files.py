"""Files that readers see whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes, durable: bool = True) -> None:
    """Write beside the file and rename: two writers never share a temporary file, and a full disk
    leaves none.

    `durable` waits until the disk has it. Without, a crash of the machine (not of the process) may
    lose the change.
    """
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
    if durable:
        sync_folder(path.parent)


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

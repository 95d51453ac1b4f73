"""The original files of a dataset: a folder, or an archive that pooch unpacks into one."""

from __future__ import annotations

import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from fedbench.core.errors import BadInput, one_line
from fedbench.core.files import unreadable

# What an archive raises when it is cut short, damaged or encrypted.
_DAMAGED = (
    OSError,
    EOFError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)
GIBIBYTE = 2**30
_CLUTTER = ("Thumbs.db", "desktop.ini", "__MACOSX")
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


class SourceFiles:
    """The files in a folder, found by the end of their names; hidden ones are left out.

    `path` is what the user gave, which messages name: the folder itself or its archive. `scratch`
    is a folder for temporary files.
    """

    def __init__(self, path: Path, folder: Path, scratch: Path) -> None:
        self.path = path
        self.folder = folder
        self.scratch = scratch
        self.names = sorted(filter(_is_wanted, self._walk()))

    def _walk(self) -> Iterable[str]:
        def refuse(error: OSError) -> None:
            raise unreadable(str(error.filename), error)

        for folder, _, names in os.walk(self.folder, onerror=refuse, followlinks=True):
            for name in names:
                yield Path(folder, name).relative_to(self.folder).as_posix()

    def find(self, *endings: str) -> str:
        """The name that ends with the first of these that is there, nearest to the top.

        Example:
            source.find("val/val_annotations.txt")  # "tiny-imagenet-200/val/val_annotations.txt"
        """
        for ending in endings:
            found = [name for name in self.names if f"/{name}".endswith(f"/{ending}")]
            if found:
                return min(found, key=lambda name: (name.count("/"), name))
        raise BadInput(f"{self.path}: lacks the file {endings[0]}{self._hint()}")

    def find_folder(self, ending: str) -> str:
        """What comes before this folder in the names, nearest to the top.

        Example:
            source.find_folder("train/airplane")  # "CINIC-10/", or "" at the top
        """
        found = {f"/{name}".partition(f"/{ending}/") for name in self.names}
        before = {start for start, folder, _ in found if folder}
        if not before:
            raise BadInput(f"{self.path}: lacks the folder {ending}{self._hint()}")
        return f"{min(before, key=lambda start: (start.count('/'), start))}/".lstrip("/")

    @cached_property
    def by_folder(self) -> dict[str, list[str]]:
        """The names of the files directly in each folder."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(name.rpartition("/")[0], []).append(name)
        return found

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise unreadable(f"{self.path}: {name}", error) from error

    def bad_file(self, name: str, problem: str) -> BadInput:
        """The line for a file that is not what it should be."""
        return BadInput(f"{self.path}: {name} {problem}")

    def _hint(self) -> str:
        inner = [name for name in self.names if name.endswith(_ARCHIVES)]
        if not inner:
            return ""
        return f"; it holds the archive {inner[0]}: unpack that and give it instead"


def _is_wanted(name: str) -> bool:
    return not any(part.startswith(".") or part in _CLUTTER for part in name.split("/"))


def check_source(path: Path) -> None:
    """Refuse what is neither a folder nor a harmless archive, before anything is written."""
    if not path.is_dir():
        _processor(path)


def open_source(path: Path, scratch: Path) -> SourceFiles:
    """The files of a folder, or of an archive after it is unpacked into `scratch`."""
    if path.is_dir():
        return SourceFiles(path, path, scratch)
    processor, size = _processor(path)
    folder = (scratch / "source").absolute()  # pooch takes a relative one from the archive's folder
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if size > free:
        needed = (
            f"{size / GIBIBYTE:.1f} GiB, and {folder.parent} has {free / GIBIBYTE:.1f} GiB left"
        )
        raise BadInput(f"{path}: unpacked it takes {needed}")
    try:
        processor(extract_dir=str(folder))(str(path), "download", None)
    except _DAMAGED as error:
        if getattr(error, "errno", None) is not None:  # of the disk, not of the archive
            raise
        raise BadInput(f"{path}: damaged or cannot be read ({one_line(error)})") from error
    return SourceFiles(path, folder, scratch)


def _processor(path: Path) -> tuple[Any, int]:
    """pooch's class that unpacks this archive, and how many bytes that makes."""
    try:
        return _inspect(path, path.stat().st_mtime_ns)
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(str(path), error) from error
    except _DAMAGED as error:
        raise BadInput(f"{path}: damaged or cannot be read ({one_line(error)})") from error


@lru_cache(maxsize=1)  # asked twice, and a compressed tar is read to its end each time
def _inspect(path: Path, changed: int) -> tuple[Any, int]:
    """Python 3.11 unpacks a tar archive wherever its names say: names and kinds are checked."""
    import pooch  # only preparing a dataset needs it

    pooch.get_logger().setLevel("WARNING")  # it would report every file that it unpacks
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            _check_names(path, archive.namelist())
            return pooch.Unzip, sum(member.file_size for member in archive.infolist())
    if path.stat().st_size and tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            members = tar.getmembers()
        _check_names(path, [member.name for member in members])
        for member in members:
            if not (member.isfile() or member.isdir()):
                kind = f"{member.name} is a link or a device"
                raise BadInput(f"{path}: must hold only files and folders; {kind}")
        return pooch.Untar, sum(member.size for member in members)
    raise BadInput(f"{path}: must be a folder, or a zip or tar archive that can be read")


def _check_names(path: Path, names: list[str]) -> None:
    for name in names:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts:
            raise BadInput(f"{path}: must hold only paths inside its own folder; {name} is outside")

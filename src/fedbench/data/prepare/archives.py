"""A dataset's original files, read where they lie: a folder, a zip or a tar archive.

Nothing is unpacked, so a name inside an archive, whatever it looks like, never becomes a path on
this machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from fedbench.core.errors import BadInput
from fedbench.data.files import one_line, unreadable

# What a folder or an archive raises when a file cannot be read, is cut short, damaged or encrypted.
DAMAGED = (
    OSError,
    EOFError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
    KeyError,
)
_CLUTTER = ("Thumbs.db", "desktop.ini", "__MACOSX")
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.xz", ".tar.bz2")


class Original:
    """Names of regular files, with `/` between folders, and their bytes. Hidden files are left
    out.
    """

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        self.path = path
        self.names = sorted(filter(_wanted, names))

    def read(self, name: str) -> bytes:
        return next(self.contents([name]))[1]

    def contents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Names with bytes, in the order that is the same every time and cheapest to read."""
        for name in self.order(names):
            with self.telling(name):
                content = self._bytes(name)
            yield name, content

    def order(self, names: Iterable[str]) -> list[str]:
        return sorted(names)

    def _bytes(self, name: str) -> bytes:
        raise NotImplementedError

    def file(self, *endings: str) -> str:
        """The name that ends with the first of these that is there, nearest to the top:
        `val/annotations.txt`, say.
        """
        for ending in endings:
            found = [name for name in self.names if f"/{name}".endswith(f"/{ending}")]
            if found:
                return min(found, key=lambda name: (name.count("/"), name))
        raise BadInput(f"{self.path}: lacks the file {endings[0]}{self._hint()}")

    def base(self, folder: str) -> str:
        """What stands before this folder in the names: "" or such as "CINIC-10/"."""
        found = {f"/{name}".partition(f"/{folder}/") for name in self.names}
        prefixes = {before for before, between, _ in found if between}
        if not prefixes:
            raise BadInput(f"{self.path}: lacks the folder {folder}{self._hint()}")
        return f"{min(prefixes, key=lambda prefix: (prefix.count('/'), prefix))}/".lstrip("/")

    @cached_property
    def folders(self) -> dict[str, list[str]]:
        """The names of the files directly in each folder."""
        found: dict[str, list[str]] = {}
        for name in self.names:
            found.setdefault(name.rpartition("/")[0], []).append(name)
        return found

    def identity(self) -> str:
        """Whether a second call works on the same files: names and sizes, not their contents."""
        digest = hashlib.blake2b(
            f"{self.path.resolve()} {self.path.stat().st_size}".encode(), digest_size=8
        )
        for name in self.names:
            digest.update(name.encode(errors="surrogateescape") + b"\n")
        return digest.hexdigest()

    @contextlib.contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Whatever fails inside is told with the file's name."""
        try:
            yield
        except DAMAGED as error:
            raise BadInput(
                f"{self.path}: {name} is damaged or cannot be read ({one_line(error)})"
            ) from error

    def _hint(self) -> str:
        inner = [name for name in self.names if name.endswith(_ARCHIVES)]
        return (
            f"; it holds the archive {inner[0]}: unpack that and give it instead" if inner else ""
        )


class Folder(Original):
    def __init__(self, path: Path) -> None:
        def refuse(error: OSError) -> None:
            raise unreadable(str(error.filename), error)

        found = [
            Path(folder, name).relative_to(path).as_posix()
            for folder, _, names in os.walk(path, onerror=refuse, followlinks=True)
            for name in names
        ]
        super().__init__(path, found)

    def _bytes(self, name: str) -> bytes:
        return (self.path / name).read_bytes()


class Zip(Original):
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        super().__init__(
            path, [entry.filename for entry in archive.infolist() if not entry.is_dir()]
        )

    def _bytes(self, name: str) -> bytes:
        return self.archive.read(name)


class Tar(Original):
    """A tar archive is read from front to back, once for the names and once for each set of
    contents.
    """

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as archive:
            names = [member.name.removeprefix("./") for member in archive if member.isfile()]
        self.positions = {name: position for position, name in enumerate(names)}
        super().__init__(path, self.positions)

    def order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=lambda name: self.positions[name])

    def contents(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        wanted = {self.positions[name]: name for name in names}
        position = -1
        with self.telling("the archive"), tarfile.open(self.path) as archive:
            for member in archive:
                position += member.isfile()
                if member.isfile() and position in wanted:
                    yield wanted[position], archive.extractfile(member).read()


@contextlib.contextmanager
def open_original(path: Path) -> Iterator[Original]:
    """The folder or archive that somebody gave, or one line that says what is wrong with it."""
    with contextlib.ExitStack() as stack:
        try:
            original = _opened(path, stack)
        except (FileNotFoundError, PermissionError) as error:
            raise unreadable(str(path), error) from error
        except DAMAGED as error:
            raise BadInput(f"{path}: damaged or cannot be read ({one_line(error)})") from error
        yield original


def _opened(path: Path, stack: contextlib.ExitStack) -> Original:
    if path.is_dir():
        return Folder(path)
    if zipfile.is_zipfile(path):
        return Zip(path, stack.enter_context(zipfile.ZipFile(path)))
    if path.stat().st_size and tarfile.is_tarfile(path):
        return Tar(path)
    raise BadInput(f"{path}: neither a folder nor a readable zip or tar archive")


def _wanted(name: str) -> bool:
    return not any(part.startswith(".") or part in _CLUTTER for part in name.split("/"))

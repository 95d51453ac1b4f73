"""Prepare a dataset once: find or fetch its original files, read them, write arrays into the data
root.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.errors import BadInput, one_line
from fedbench.data.prepare.archives import check_source, open_source
from fedbench.data.prepare.catalog import ENTRIES, CatalogEntry, dataset_spec, is_prepared
from fedbench.data.prepare.download import fetch, matches
from fedbench.data.prepare.store import DatasetWriter

# Folders beside the prepared files: original files that somebody put there, on a machine without a
# network; what this program downloaded, until the dataset is prepared; temporary files.
_BY_HAND = "download"
_FETCHED = ".download"
_SCRATCH = ".preparing"


@dataclass(frozen=True)
class PrepareRequest:
    """What somebody asks for."""

    name: str
    given: Path | None = None  # the original files
    download: bool = False
    force: bool = False
    any_size: bool = False
    size: int | None = None  # of the stored images, where it can be chosen


def download(name: str, folder: Path) -> None:
    """What `data.download=true` does: prepare the dataset from the publisher's files."""
    subject = f"data.download: {name} into {folder}"
    if name not in ENTRIES or not ENTRIES[name].published:
        known = ", ".join(known for known, entry in ENTRIES.items() if entry.published)
        how = ""
        if name in ENTRIES:
            how = f"; get {ENTRIES[name].obtain}, then `fedbench-data {name} --from FILE`"
        raise BadInput(f"{subject}: only for {known}{how}")
    try:
        prepare(PrepareRequest(name, download=True), folder)
    except OSError as error:  # no network, a full or read-only disk
        raise BadInput(
            f"{subject}: failed ({one_line(error)}); try again, or use data.source=synthetic"
        ) from error


def prepare(request: PrepareRequest, folder: Path) -> bool:
    """Write the dataset's files, or return False when they were there already.

    Other processes wait, and then use the same files. An interruption leaves what was there before,
    and downloaded files, which the next call uses.
    """
    from filelock import FileLock

    if is_prepared(request.name, folder) and not request.force:
        return False
    entry = ENTRIES[request.name]
    given = _given(request, entry, folder)  # nothing is written before there is something to read
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if is_prepared(request.name, folder) and not request.force:
            return False
        path = given
        if path is None:
            path = fetch(entry.published, folder / _FETCHED)
        scratch = folder / _SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)  # of a process that was killed
        try:
            source = open_source(path, scratch)
            spec = dataset_spec(request.name, request.size)
            writer = DatasetWriter(scratch / "prepared", spec, request.any_size)
            note = entry.read(source, writer)
            origin = str(path.resolve())
            if given is None:
                origin = ", ".join(file.url for file in entry.published)
            writer.finish(folder, origin, note, _checksums(entry, path))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(folder / _FETCHED, ignore_errors=True)
    return True


def _given(request: PrepareRequest, entry: CatalogEntry, folder: Path) -> Path | None:
    """The original files that somebody has, after a check; None when they are to be downloaded."""
    given = request.given
    if given is None and (folder / _BY_HAND).is_dir():
        given = _only_file(folder / _BY_HAND)
    if given is None:
        if request.download and entry.published:
            return None
        raise _unobtainable(request.name, entry)
    if entry.only_published:
        (file,) = entry.published
        given = given / file.name if given.is_dir() else given
        if not given.is_file() or not matches(given, file):
            raise BadInput(f"{given}: must be the published {file.name} ({file.checksum})")
    check_source(given)
    return given


def _unobtainable(name: str, entry: CatalogEntry) -> BadInput:
    if entry.published:
        return BadInput(
            f"{name}: --download fetches it; --from takes the {entry.original} ({entry.obtain})"
        )
    return BadInput(
        f"{name}: cannot be downloaded by a program; get {entry.obtain}, and give --from the"
        f" {entry.original}"
    )


def _only_file(folder: Path) -> Path:
    """The file in a folder if it is the only one, such as an archive, else the folder."""
    files = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return files[0] if len(files) == 1 else folder


def _checksums(entry: CatalogEntry, path: Path) -> dict[str, str]:
    """Checksums of original files that are archives or published one by one.

    A difference is reported, not refused: somebody may have packed the same images anew, and their
    contents are checked one by one in any case.
    """
    checksums = {}
    # An archive of several published files is none of them.
    comparable = entry.published if path.is_dir() or len(entry.published) == 1 else ()
    for published in comparable:
        file = path / published.name if path.is_dir() else path
        if not file.is_file():
            continue
        if matches(file, published):
            checksums[published.name] = published.checksum
        else:
            print(
                f"{file}: not byte for byte the published file ({published.checksum})",
                file=sys.stderr,
                flush=True,
            )
    if path.is_file() and not checksums:
        with path.open("rb") as content:
            checksums[path.name] = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    return checksums

"""Prepare a dataset once: find or fetch its original files, read them, write arrays into the data
root.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import yaml

from fedbench.core.errors import BadInput
from fedbench.data.files import one_line
from fedbench.data.info import PARTS, mapped_files, npz_files, pair_files
from fedbench.data.prepare.archives import Original, open_original
from fedbench.data.prepare.by_torchvision import BY_HAND, decode
from fedbench.data.prepare.catalog import ENTRIES, Entry
from fedbench.data.prepare.download import fetch, matches
from fedbench.data.prepare.store import Facts, Workshop, clear_notes, is_unfinished

# No network, a broken mirror, a full or read-only disk, a damaged archive.
FAILURES = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    tarfile.TarError,
    zlib.error,
    UnpicklingError,
)
_FETCHED = (  # folder of what this program downloaded; it goes when the dataset is prepared
    ".download"
)


@dataclass(frozen=True)
class Wish:
    """What somebody asks for."""

    name: str
    given: Path | None = None  # the original files
    download: bool = False
    force: bool = False
    any_size: bool = False
    size: int | None = None  # of the stored images, where it can be chosen


def facts_of(name: str, size: int | None = None) -> Facts:
    """The dataset's facts from conf/data, the only place that has them."""
    from fedbench.config.validate import config_folder

    stored = yaml.safe_load((config_folder() / "data" / f"{name}.yaml").read_text())
    shape = tuple(stored.get("shape", ()))
    mapped = stored["_target_"].endswith("MappedDataset")
    sizes = {part: stored[f"{part}_size"] for part in PARTS}
    return Facts(
        name, (size, size, *shape[2:]) if size else shape, stored["classes"], sizes, mapped
    )


def is_prepared(name: str, folder: Path) -> bool:
    """Whether all files of the dataset are there."""
    facts = facts_of(name)
    if facts.mapped:
        return all(path.exists() for path in mapped_files(folder))
    return all(path.exists() for path in (npz_files(folder) if facts.shape else pair_files(folder)))


def download(name: str, folder: Path) -> None:
    """What `data.download=true` does: prepare the dataset from the publisher's files."""
    subject = f"data.download: {name} into {folder}"
    if name not in ENTRIES or not ENTRIES[name].downloads:
        known = ", ".join(known for known, entry in ENTRIES.items() if entry.downloads)
        how = (
            f"; get {ENTRIES[name].obtain}, then `fedbench-data {name} --from FILE`"
            if name in ENTRIES
            else ""
        )
        raise BadInput(f"{subject}: only for {known}{how}")
    try:
        prepare(Wish(name, download=True), folder)
    except FAILURES as error:
        raise BadInput(
            f"{subject}: failed ({one_line(error)}); try again, or use data.source=synthetic"
        ) from error


def prepare(wish: Wish, folder: Path) -> bool:
    """Write the dataset's files. False: they were there already. Other processes wait and then use
    the same files.
    """
    from filelock import FileLock

    entry = ENTRIES[wish.name]
    torchvision = bool(entry.torchvision) and (wish.given is None or entry.prepare is None)
    original = None
    with contextlib.ExitStack() as stack:
        # Nothing is written before there is something to read.
        if wish.given is not None and not torchvision:
            original = stack.enter_context(open_original(wish.given))
        elif wish.given is None and (wish.force or not is_prepared(wish.name, folder)):
            _check_reachable(wish, entry, folder)
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(FileLock(folder / ".lock"))
        goes_on = is_unfinished(folder) and (wish.given is not None or wish.download)
        if is_prepared(wish.name, folder) and not wish.force and not goes_on:
            return False
        if wish.force:
            clear_notes(folder)
        if torchvision:
            decode(entry.torchvision, folder, wish.given)
            return True
        if original is None:
            original = stack.enter_context(open_original(_find(entry, folder)))
        _build(wish, entry, original, folder)
    shutil.rmtree(folder / _FETCHED, ignore_errors=True)
    return True


def _check_reachable(wish: Wish, entry: Entry, folder: Path) -> None:
    if (wish.download and entry.downloads) or (folder / BY_HAND).is_dir():
        return
    if entry.downloads:
        raise BadInput(
            f"{wish.name}: --download fetches it; --from takes the {entry.original}"
            f" ({entry.obtain})"
        )
    raise BadInput(
        f"{wish.name}: cannot be downloaded by a program; get {entry.obtain}, and give --from the"
        f" {entry.original}"
    )


def _find(entry: Entry, folder: Path) -> Path:
    """The original files that somebody put beside the prepared ones, or those from the
    publisher.
    """
    place = folder / BY_HAND
    if not place.is_dir():
        place = folder / _FETCHED
        for published in entry.published:
            fetch(published, place)
    files = [path for path in place.iterdir() if not path.name.startswith(".")]
    return files[0] if len(files) == 1 else place


def _build(wish: Wish, entry: Entry, original: Original, folder: Path) -> None:
    fetched = original.path.parent == folder / _FETCHED or original.path == folder / _FETCHED
    source = (
        ", ".join(published.url for published in entry.published)
        if fetched
        else str(original.path.resolve())
    )
    shop = Workshop(folder, facts_of(wish.name, wish.size), original.identity(), wish.any_size)
    note = entry.prepare(original, shop)
    shop.complete(source, note, _checksums(entry, original.path))


def _checksums(entry: Entry, path: Path) -> dict[str, str]:
    """Checksums of original files that are archives or published one by one. A difference is told,
    not refused:

    somebody may have packed the same images anew, and their contents are checked one by one in any
    case.
    """
    checksums = {}
    for published in entry.published:
        file = path / published.file if path.is_dir() else path
        if file.is_file() and matches(file, published):
            checksums[published.file] = published.checksum
        elif file.is_file():
            print(
                f"{file}: not byte for byte the published file ({published.checksum})",
                file=sys.stderr,
                flush=True,
            )
    if path.is_file() and not checksums:
        with path.open("rb") as content:
            checksums[path.name] = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    return checksums

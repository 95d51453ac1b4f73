"""A prepared dataset in the data root: `<data root>/<name>/`, its files, and info.json beside them.

info.json says what a start or a reader needs to know without reading the arrays. Where several
files must fit together it is one of them: it is removed before the first of them is replaced, and
written after the last.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fedbench.core.errors import BadInput
from fedbench.core.files import file_hash, unreadable, write_atomically

INFO = "info.json"
VOCABULARY = "vocabulary.txt"
SPLITS = ("train", "test")


def data_root(root: str | None) -> Path:
    """`data.root`, else the environment's FEDBENCH_DATA, else a cache folder in the user's home."""
    chosen = root or os.environ.get("FEDBENCH_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # only a machine without FEDBENCH_DATA needs it

    return platformdirs.user_cache_path("fedbench") / "data"


def npz_files(folder: Path) -> list[Path]:
    """The files of images that are read into memory."""
    return [folder / f"{split}.npz" for split in SPLITS]


def array_files(folder: Path) -> list[Path]:
    """The arrays of images that are memory-mapped."""
    return [folder / f"{split}-{array}.npy" for split in SPLITS for array in ("images", "labels")]


def mapped_files(folder: Path) -> list[Path]:
    """All files of images that are memory-mapped."""
    return [*array_files(folder), folder / INFO]


def pair_files(folder: Path) -> list[Path]:
    """The files of pairs of sentences."""
    return [*npz_files(folder), folder / VOCABULARY, folder / INFO]


def all_exist(files: list[Path]) -> bool:
    # Unlike Path.exists, os.path.exists is false in a folder without permission.
    return all(os.path.exists(path) for path in files)


@dataclass(frozen=True)
class Info:
    """What info.json holds."""

    source: str  # where the original files came from
    shape: list[int]  # of one example
    train: int  # number of examples
    test: int
    note: str = ""  # what a reader of a result must know
    mean: list[float] | None = None  # of the training images / 255, one for each channel
    std: list[float] | None = None
    # Of original and prepared files, "algorithm:digest"; prepared ones have blake2b.
    checksums: dict[str, str] = field(default_factory=dict)
    modified: dict[str, int] = field(default_factory=dict)  # prepared files' mtime in nanoseconds

    def content(self) -> str:
        """Hash of what decides a run's numbers: the statistics and the prepared files, not where
        they came from.
        """
        prepared = {
            name: value for name, value in self.checksums.items() if value.startswith("blake2b:")
        }
        decisive = json.dumps([self.mean, self.std, prepared], sort_keys=True)
        return hashlib.blake2b(decisive.encode(), digest_size=8).hexdigest()


def read_info(folder: Path) -> Info | None:
    """What info.json says, None without one. A damaged one is a BadInput."""
    path = folder / INFO
    try:
        content = json.loads(path.read_text())
        known = {entry.name for entry in fields(Info)}
        info = Info(**{key: value for key, value in content.items() if key in known})
        _check(info)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(str(path), error) from error
    except (ValueError, TypeError, AttributeError) as error:
        raise BadInput(f"{path}: not what fedbench-data writes") from error
    return info


def _check(info: Info) -> None:
    texts = isinstance(info.source, str) and isinstance(info.note, str)
    counts = all(
        isinstance(count, int) and count >= 1 for count in (info.train, info.test, *info.shape)
    )
    statistics = [values for values in (info.mean, info.std) if values is not None]
    numbers = all(isinstance(value, float) for values in statistics for value in values)
    tables = isinstance(info.checksums, dict) and isinstance(info.modified, dict)
    if not (texts and counts and numbers and tables):
        raise ValueError("a value of the wrong type")


def write_info(folder: Path, info: Info) -> None:
    write_atomically(folder / INFO, json.dumps(asdict(info), indent=2) + "\n")


def current_checksums(folder: Path, info: Info) -> dict[str, str]:
    """Checksums of the memory-mapped arrays as they are now.

    A file that has not been modified since it was prepared keeps the checksum of info.json; any
    other is read. One that differs from its recorded checksum is a BadInput.
    """
    checksums = {}
    for path in array_files(folder):
        recorded = info.checksums.get(path.name)
        if recorded is not None and info.modified.get(path.name) == modification_time(path):
            checksums[path.name] = recorded
            continue
        checksums[path.name] = prepared_checksum(path)
        if recorded not in (None, checksums[path.name]):
            raise BadInput(
                f"{path}: not what fedbench-data wrote (another checksum than in {INFO})"
            )
    return checksums


def prepared_checksum(path: Path) -> str:
    return f"blake2b:{file_hash(path, str(path))}"


def modification_time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError as error:
        raise unreadable(str(path), error) from error

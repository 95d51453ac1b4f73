"""info.json beside a prepared dataset: what a start or a reader needs to know without reading the
arrays.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from fedbench.core.errors import BadInput
from fedbench.data.files import unreadable, whole_file

FILE = "info.json"
VOCABULARY = "vocabulary.txt"
PARTS = ("train", "test")


@dataclass(frozen=True)
class Info:
    """Facts of a prepared dataset. It is written last: a folder that has it is complete."""

    source: str  # where the original files came from
    shape: list[int]  # of one example
    train: int  # number of examples
    test: int
    note: str = ""  # what a reader of a result must know
    mean: list[float] | None = None  # of the training images / 255, one a channel
    std: list[float] | None = None
    checksums: dict[str, str] = field(
        default_factory=dict
    )  # of original and prepared files, "algorithm:digest"

    def content(self) -> str:
        """Hash of what decides a run's numbers: the statistics and the prepared files, not where
        they came from.
        """
        prepared = {
            name: value for name, value in self.checksums.items() if value.startswith("blake2b:")
        }
        facts = json.dumps([self.mean, self.std, prepared], sort_keys=True)
        return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()


def read_info(folder: Path) -> Info | None:
    """What info.json says, None without one. A damaged one is a BadInput."""
    path = folder / FILE
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
    if not (texts and counts and numbers and isinstance(info.checksums, dict)):
        raise ValueError("a value of the wrong type")


def write_info(folder: Path, info: Info) -> None:
    with whole_file(folder / FILE) as file:
        file.write((json.dumps(asdict(info), indent=2) + "\n").encode())


# The files of a complete dataset. Where several must fit together, info.json is one of them: it is
# removed before the first of them is replaced, and written after the last.


def npz_files(folder: Path) -> list[Path]:
    """Images that are read into memory."""
    return [folder / f"{part}.npz" for part in PARTS]


def mapped_files(folder: Path) -> list[Path]:
    """Images that are memory-mapped."""
    return [
        *(folder / f"{part}-{array}.npy" for part in PARTS for array in ("images", "labels")),
        folder / FILE,
    ]


def pair_files(folder: Path) -> list[Path]:
    """Pairs of sentences."""
    return [*npz_files(folder), folder / VOCABULARY, folder / FILE]

"""Where a dataset is prepared: parts are written whole, and a second call goes on where the first
was stopped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.checked import checksums_of
from fedbench.data.dataset import Examples, channel_statistics
from fedbench.data.files import read_npz, whole_file, write_npy, write_npz
from fedbench.data.info import FILE, PARTS, Info, mapped_files, npz_files, write_info
from fedbench.data.prepare.archives import Original
from fedbench.data.prepare.progress_bar import bar

Decode = Callable[[str, bytes], np.ndarray]  # an image file's name and bytes to its pixels
_BLOCK = 256  # images between two notes of how far it has come


@dataclass(frozen=True)
class Facts:
    """What conf/data says of a dataset."""

    name: str
    shape: tuple[int, ...]  # of one image; () for sentences
    classes: int
    sizes: dict[str, int]  # examples in train and test
    mapped: bool = False  # kept as memory-mapped .npy files instead of .npz


class Workshop:
    """Writes `train` and `test` of one dataset into its folder of the data root.

    `key` names the original files: what an interrupted call left is used only for the same ones.
    `any_size` allows other numbers of examples than the dataset has.
    """

    def __init__(self, folder: Path, facts: Facts, key: str, any_size: bool = False) -> None:
        self.folder, self.facts, self.any_size = folder, facts, any_size
        self.key = f"{key} {list(facts.shape)} {facts.mapped}"
        self.counts: dict[str, int] = {}

    # Parts

    def arrays(self, part: str, read: Callable[[], Examples]) -> None:
        """A part that is read into memory at once, unless an earlier call finished it."""
        state = self._state(part)
        if not state.get("finished"):
            images, labels = read()
            self.check_size(part, len(labels))
            self._check(part, images, labels)
            self._store(part, np.ascontiguousarray(images), labels)
            state = self._note(part, done=len(labels), finished=True)
        self.counts[part] = state["done"]

    def images(self, original: Original, parts: dict[str, dict[str, int]], decode: Decode) -> None:
        """Parts of single image files, given as names with labels, which are stored sorted by
        name.
        """
        for part, labels in parts.items():
            self.check_size(part, len(labels))
            self.counts[part] = len(labels)
        for part, labels in parts.items():
            if not self._state(part).get("finished"):
                self._decode(part, original, labels, decode)

    def _decode(
        self, part: str, original: Original, labels: dict[str, int], decode: Decode
    ) -> None:
        """Goes on after the last block of an interrupted call."""
        names = sorted(labels)
        partial = self.folder / f".{part}-images.partial.npy"
        done = self._state(part).get("done", 0) if partial.exists() else 0
        rows = {name: row for row, name in enumerate(names)}
        store = np.lib.format.open_memmap(
            partial, "r+" if done else "w+", np.uint8, (len(names), *self.facts.shape)
        )
        self._note(part, done=done, finished=False)
        title = f"{self.facts.name}: {part}"
        with bar(title, len(names), done) as advance, ThreadPoolExecutor(os.cpu_count()) as pool:
            for block in _blocks(original.contents(original.order(names)[done:])):
                decoded = pool.map(lambda entry: decode(*entry), block)
                for (name, _), image in zip(block, decoded, strict=True):
                    store[rows[name]] = image
                store.flush()
                done += len(block)
                self._note(part, done=done, finished=False)
                advance(len(block))
        self._store(
            part, store, np.array([labels[name] for name in names], dtype=np.int64), partial
        )
        self._note(part, done=done, finished=True)

    def check_size(self, part: str, found: int, tolerance: float = 0.0) -> None:
        expected = self.facts.sizes[part]
        if not found or (abs(found - expected) > tolerance * expected and not self.any_size):
            raise BadInput(
                f"{self.facts.name}: the {part} set has {found:,} examples instead of {expected:,}:"
                " incomplete? (--any-size prepares what is there, and every result says so)"
            )

    # The end

    def complete(self, source: str, note: str, checksums: dict[str, str]) -> None:
        """Write info.json, which makes the dataset complete, and forget the notes of the way."""
        mean, std = (
            map(list, channel_statistics(self._train_images()))
            if self.facts.shape
            else (None, None)
        )
        if self.facts.mapped:
            checksums = {
                **checksums,
                **checksums_of(path for part in PARTS for path in self._files(part)),
            }
        counts = (self.counts["train"], self.counts["test"])
        write_info(
            self.folder, Info(source, list(self.facts.shape), *counts, note, mean, std, checksums)
        )
        clear_notes(self.folder)

    def _train_images(self) -> np.ndarray:
        if self.facts.mapped:
            return np.load(self.folder / "train-images.npy", mmap_mode="r")
        path = self.folder / "train.npz"
        return read_npz(path, ["images"], str(path))[0]

    # Files

    def unseal(self) -> None:
        """Called before the first file is replaced: from here on, old and new ones may stand side
        by side.
        """
        (self.folder / FILE).unlink(missing_ok=True)

    def _store(
        self, part: str, images: np.ndarray, labels: np.ndarray, partial: Path | None = None
    ) -> None:
        self.unseal()
        if not self.facts.mapped:
            write_npz(self.folder / f"{part}.npz", images=images, labels=labels)
            if partial is not None:
                partial.unlink()
            return
        write_npy(self.folder / f"{part}-labels.npy", labels)
        final = self.folder / f"{part}-images.npy"
        if partial is not None:
            os.replace(partial, final)
        else:
            write_npy(final, images)

    def _check(self, part: str, images: np.ndarray, labels: np.ndarray) -> None:
        if images.dtype != np.uint8 or images.shape != (len(labels), *self.facts.shape):
            need = ", ".join(map(str, (len(labels), *self.facts.shape)))
            found = f"{images.dtype} {list(images.shape)}"
            raise BadInput(f"{self.facts.name}: the {part} images are {found}, need uint8 [{need}]")
        if labels.min() < 0 or labels.max() >= self.facts.classes:
            found = f"from {labels.min()} to {labels.max()}"
            raise BadInput(
                f"{self.facts.name}: the {part} labels run {found}, need 0 to"
                f" {self.facts.classes - 1}"
            )

    def _files(self, part: str) -> list[Path]:
        files = mapped_files(self.folder) if self.facts.mapped else npz_files(self.folder)
        return [path for path in files if path.name.startswith(part)]

    def _state(self, part: str) -> dict[str, Any]:
        """How far an earlier call on the same files came."""
        try:
            state = json.loads(_state_file(self.folder, part).read_text())
            lost = state["finished"] and not all(path.exists() for path in self._files(part))
            return state if state["key"] == self.key and not lost else {}
        except (FileNotFoundError, ValueError, TypeError, KeyError):
            return {}

    def _note(self, part: str, **progress: Any) -> dict[str, Any]:
        state = {"key": self.key, **progress}
        with whole_file(_state_file(self.folder, part)) as file:
            file.write(json.dumps(state).encode())
        return state


def _state_file(folder: Path, part: str) -> Path:
    return folder / f".{part}.state.json"


def is_unfinished(folder: Path) -> bool:
    """Whether a call was stopped on its way."""
    return any(_state_file(folder, part).exists() for part in PARTS)


def clear_notes(folder: Path) -> None:
    """Forget how far earlier calls came."""
    for part in PARTS:
        _state_file(folder, part).unlink(missing_ok=True)
        (folder / f".{part}-images.partial.npy").unlink(missing_ok=True)


def _blocks(entries: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    block: list[tuple[str, bytes]] = []
    for entry in entries:
        block.append(entry)
        if len(block) == _BLOCK:
            yield block
            block = []
    if block:
        yield block

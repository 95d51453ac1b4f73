"""Pairs of sentences that mean the same or not (QQP), as padded sequences of word ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, require
from fedbench.core.seeding import numpy_generator
from fedbench.data.dataset import Dataset, Examples, assemble
from fedbench.data.files import data_root, read_npz, unreadable
from fedbench.data.images import (
    SOURCES,
    check_sizes,
    damaged,
    is_there,
    missing,
    size_note,
    stand_in_sizes,
)
from fedbench.data.info import VOCABULARY, npz_files, pair_files, read_info
from fedbench.data.prepare.preparation import download
from fedbench.data.prepare.questions import FIRST_WORD, PADDING, TOLERANCE, padded

_TOPICS, _WORDS = 32, 512  # of the stand-in; a real vocabulary's frequent words are few, too
_HINT = 0.55  # how often a word of the stand-in comes from the half that its label prefers


@dataclass(frozen=True)
class PairDataset:
    """Settings of question pairs: x is int32 [N, 2, 1 + length], a sentence's length and then its
    words' ids.
    """

    name: str
    classes: int
    train_size: int
    test_size: int
    length: int = 30  # words of a sentence that count; the rest is cut off
    vocabulary: int = 20000  # most frequent words of the training set that have an id of their own
    root: str | None = None
    source: str = "real"
    download: bool = False
    subset: int | None = None

    def load(self, seed: int) -> Dataset:
        require(
            self.source in SOURCES, "data.source", self.source, f"choose from {', '.join(SOURCES)}"
        )
        require(self.length >= 1, "data.length", self.length, "at least 1")
        require(self.vocabulary >= 1, "data.vocabulary", self.vocabulary, "at least 1")
        require(
            self.classes == 2,
            "data.classes",
            self.classes,
            "pairs mean the same or not: only 2 is allowed",
        )
        check_sizes(self.train_size, self.test_size)
        if self.source == "synthetic":
            return self._load_stand_in()
        folder = data_root(self.root) / self.name
        if not is_there(pair_files(folder)):
            if not self.download:
                raise missing(self.name, self.root, folder)
            download(self.name, folder)
        try:
            info = read_info(folder)
            words = _read_words(folder / VOCABULARY)
            used = words[: self.vocabulary]
            train, test = (
                self._read_part(path, len(words), len(used)) for path in npz_files(folder)
            )
        except BadInput as error:
            raise damaged(self.name, self.root, error) from error
        sizes = (("training", train, self.train_size), ("test", test, self.test_size))
        return assemble(
            self.name,
            train,
            test,
            self.classes,
            subset=self.subset,
            seed=seed,
            notes=[
                info.note if info else "",
                *(_size_note(which, len(y), size) for which, (_, y), size in sizes),
            ],
            vocabulary=len(used) + FIRST_WORD,
            content=hashlib.blake2b("\n".join(used).encode(), digest_size=8).hexdigest(),
        )

    def _read_part(self, path: Path, known: int, used: int) -> Examples:
        words, lengths, labels = read_npz(path, ("words", "lengths", "labels"), str(path))
        whole = all(array.dtype.kind in "iu" for array in (words, lengths, labels))
        whole = (
            whole
            and words.ndim == labels.ndim == 1
            and lengths.shape == (len(labels), 2)
            and len(labels) > 0
        )
        if not whole or lengths.min() < 0 or lengths.sum() != len(words):
            shapes = ", ".join(
                f"{array.dtype} {list(array.shape)}" for array in (words, lengths, labels)
            )
            raise BadInput(f"{path}: words, lengths and labels do not fit together ({shapes})")
        if (len(words) and not 0 <= words.min() <= words.max() <= known) or not set(
            np.unique(labels)
        ) <= {0, 1}:
            raise BadInput(f"{path}: words outside the vocabulary or labels other than 0 and 1")
        return padded(words, lengths, self.length, used), labels.astype(np.int64, copy=False)

    def _load_stand_in(self) -> Dataset:
        train_size, test_size = stand_in_sizes(
            self.classes, self.train_size, self.test_size, self.subset
        )
        parts = [
            self._draw(part, size) for part, size in (("train", train_size), ("test", test_size))
        ]
        notes = [f"synthetic stand-in for {self.name}"]
        if self.subset is not None:
            notes.append(f"{train_size:,} training and {test_size:,} test pairs")
        ids = self.vocabulary + FIRST_WORD
        return assemble(
            self.name, *parts, self.classes, source="synthetic", notes=notes, vocabulary=ids
        )

    def _draw(self, part: str, size: int) -> Examples:
        """Pairs with a topic each: a duplicate's questions share it, and every label has words that
        it prefers.

        Counting the preferred words finds most labels, comparing the topics finds the others.
        """
        rng = numpy_generator(0, f"synthetic {self.name} {part}")
        labels = rng.permutation(np.arange(size, dtype=np.int64) % 2)
        known = min(self.vocabulary, _WORDS)
        topics = max(1, min(_TOPICS, known // 2))
        first = rng.integers(0, topics, size)
        second = np.where(
            labels == 1, first, (first + rng.integers(1, max(topics, 2), size)) % topics
        )
        # Word w belongs to topic w % topics, and to the words that label (w // topics) % 2 prefers.
        half = np.where(
            rng.random((size, 2, self.length)) < _HINT,
            labels[:, None, None],
            1 - labels[:, None, None],
        )
        block = 2 * rng.integers(0, max(1, known // (2 * topics)), half.shape) + half
        words = (block * topics + np.stack([first, second], axis=1)[:, :, None]) % known
        lengths = rng.integers((self.length + 1) // 2, self.length + 1, (size, 2, 1))
        ids = np.where(np.arange(self.length) < lengths, words + FIRST_WORD, PADDING)
        return np.concatenate([lengths, ids], axis=2).astype(np.int32), labels


def _size_note(which: str, found: int, expected: int) -> str:
    return (
        ""
        if abs(found - expected) <= TOLERANCE * expected
        else size_note(which, found, expected, "pairs")
    )


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode().split("\n")[:-1]
    except OSError as error:
        raise unreadable(str(path), error) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not a text file") from error

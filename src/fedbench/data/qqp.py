"""Pairs of sentences that mean the same or not (QQP), as padded sequences of word ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, require
from fedbench.core.fields import check_fields, choice, count
from fedbench.core.files import unreadable
from fedbench.core.seeding import numpy_generator
from fedbench.data.arrays import read_npz
from fedbench.data.dataset import (
    Dataset,
    DatasetSettings,
    Examples,
    assemble,
    size_note,
    stand_in_sizes,
)
from fedbench.data.images import SOURCES
from fedbench.data.prepare.catalog import damaged_data, missing_data
from fedbench.data.prepare.preparation import download
from fedbench.data.prepare.questions import TOLERANCE
from fedbench.data.prepared import (
    VOCABULARY,
    all_exist,
    data_root,
    npz_files,
    pair_files,
    read_info,
)

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2  # ids
_TOPICS, _WORDS = 32, 512  # of the stand-in; a real vocabulary's frequent words are few, too
_HINT = 0.55  # how often a word of the stand-in comes from the half that its label prefers


@dataclass(frozen=True)
class PairDataset(DatasetSettings):
    """Settings of question pairs: x is int32 [N, 2, 1 + length], a sentence's length and then its
    words' ids.
    """

    name: str
    classes: int
    train_size: int = count()
    test_size: int = count()
    length: int = count(30)  # words of a sentence that count; the rest is cut off
    # Most frequent words of the training set that have an id of their own.
    vocabulary: int = count(20000)
    root: str | None = None
    source: str = choice("real", SOURCES)
    download: bool = False

    def load(self, seed: int) -> Dataset:
        check_fields(self, "data")
        require(
            self.classes == 2, "data.classes", self.classes, "must be 2: pairs mean the same or not"
        )
        if self.source == "synthetic":
            return self._load_stand_in()
        folder = data_root(self.root) / self.name
        if not all_exist(pair_files(folder)):
            if not self.download:
                raise missing_data(self.name, self.root)
            download(self.name, folder)
        try:
            info = read_info(folder)
            words = _read_words(folder / VOCABULARY)
            used = words[: self.vocabulary]
            train, test = (
                self._read_split(path, len(words), len(used)) for path in npz_files(folder)
            )
        except BadInput as error:
            raise damaged_data(self.name, self.root, error) from error
        return assemble(
            self.name,
            train,
            test,
            self.classes,
            subset=self.subset,
            seed=seed,
            notes=[
                info.note if info else "",
                _size_note("training", len(train[1]), self.train_size),
                _size_note("test", len(test[1]), self.test_size),
            ],
            vocabulary=len(used) + FIRST_WORD,
            content=hashlib.blake2b("\n".join(used).encode(), digest_size=8).hexdigest(),
        )

    def _read_split(self, path: Path, known: int, used: int) -> Examples:
        words, lengths, labels = read_npz(path, ("words", "lengths", "labels"), str(path))
        arrays = (words, lengths, labels)
        fits = (
            all(array.dtype.kind in "iu" for array in arrays)
            and words.ndim == labels.ndim == 1
            and lengths.shape == (len(labels), 2)
            and len(labels) > 0
            and lengths.min() >= 0
            and lengths.sum() == len(words)
        )
        if not fits:
            shapes = ", ".join(f"{array.dtype} {list(array.shape)}" for array in arrays)
            raise BadInput(f"{path}: words, lengths and labels do not fit together ({shapes})")
        known_words = not len(words) or (words.min() >= 0 and words.max() <= known)
        known_labels = set(np.unique(labels)) <= {0, 1}
        if not (known_words and known_labels):
            raise BadInput(f"{path}: words outside the vocabulary or labels other than 0 and 1")
        return padded(words, lengths, self.length, used), labels.astype(np.int64, copy=False)

    def _load_stand_in(self) -> Dataset:
        train_size, test_size = stand_in_sizes(
            self.classes, self.train_size, self.test_size, self.subset
        )
        notes = [f"synthetic stand-in for {self.name}"]
        if self.subset is not None:
            notes.append(f"{train_size:,} training and {test_size:,} test pairs")
        return assemble(
            self.name,
            self._draw("train", train_size),
            self._draw("test", test_size),
            self.classes,
            source="synthetic",
            notes=notes,
            vocabulary=self.vocabulary + FIRST_WORD,
        )

    def _draw(self, split: str, size: int) -> Examples:
        """Pairs with a topic each: a duplicate's questions share it, and every label has words that
        it prefers.

        Counting the preferred words finds most labels, comparing the topics finds the others.
        """
        rng = numpy_generator(0, f"synthetic {self.name} {split}")
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


def padded(words: np.ndarray, lengths: np.ndarray, length: int, vocabulary: int) -> np.ndarray:
    """int32 [N, 2, 1 + length]: the number of words that count, then their ids; 0 pads.

    Words from rank `vocabulary` on are unknown. An empty question is one unknown word, so that
    every sequence has one.
    """
    ids = np.where(words < vocabulary, words + FIRST_WORD, UNKNOWN).astype(np.int32)
    flat = lengths.reshape(-1)
    starts = np.cumsum(flat, dtype=np.int64) - flat
    x = np.empty((len(flat), 1 + length), dtype=np.int32)
    x[:, 0] = np.minimum(flat, length)
    # As many words as fit from every question's first on, then those of the next questions out
    # again.
    x[:, 1:] = np.lib.stride_tricks.sliding_window_view(
        np.append(ids, np.zeros(length, np.int32)), length
    )[starts]
    x[:, 1:] *= np.arange(length) < x[:, :1]
    empty = flat == 0
    x[empty, 0] = 1
    x[empty, 1] = UNKNOWN
    return x.reshape(-1, 2, 1 + length)


def _size_note(which: str, found: int, expected: int) -> str:
    if abs(found - expected) <= TOLERANCE * expected:
        return ""
    return size_note(which, found, expected, "pairs")


def _read_words(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode().split("\n")[:-1]
    except OSError as error:
        raise unreadable(str(path), error) from error
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not a text file") from error

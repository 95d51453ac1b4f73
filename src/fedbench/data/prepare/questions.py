"""QQP from GLUE: two files of question pairs become numbers of words, and padded ids when they are
loaded.

The cache holds every question as the ranks of its words in the whole vocabulary, the most frequent
word first. The vocabulary of n words is the first n lines of `vocabulary.txt`, so one cache serves
every `data.vocabulary` and `data.length`; padding all pairs for one of them takes half a second.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.files import whole_file, write_npz
from fedbench.data.info import VOCABULARY
from fedbench.data.prepare.archives import Original
from fedbench.data.prepare.progress_bar import bar
from fedbench.data.prepare.store import Workshop

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2  # ids
_COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
TOLERANCE = (
    0.01  # of the known size: how many rows are malformed depends on the release and the reader
)
_LONGEST_ROW = 4  # lines that a quoted question may spread a row over
_MOST_MALFORMED = 0.01
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")  # u2019: the apostrophe of typesetters


@dataclass(frozen=True)
class Pairs:
    """Question pairs as words, before they have numbers."""

    questions: list[list[str]]  # two for every label: first and second question in turn
    labels: np.ndarray
    malformed: int  # lines that are no row


def words_of(question: str) -> list[str]:
    """Words in lower case, with their apostrophes; every other sign is a word of its own."""
    # Interned: a word's million occurrences are one string.
    return [sys.intern(word) for word in _WORD.findall(question.lower())]


def read_pairs(original: Original, file: str) -> Pairs:
    """The rows of a tsv file. Malformed ones are counted; more than 1 % of them are not this
    dataset any more.
    """
    subject = f"{original.path}: {file}"
    lines = [
        line.removesuffix(b"\r").decode(errors="replace")
        for line in original.read(file).split(b"\n")
    ]
    header = lines[0].removeprefix("\ufeff").split("\t")
    if tuple(header) != _COLUMNS:
        raise BadInput(
            f"{subject} starts with the columns {', '.join(header)[:80]}; needs"
            f" {', '.join(_COLUMNS)}"
        )
    questions, labels, malformed = [], [], []
    for number, row in _rows(lines):
        if row is None:
            malformed.append(number)
        else:
            questions += [words_of(row[3]), words_of(row[4])]
            labels.append(int(row[5]))
    if len(malformed) > _MOST_MALFORMED * (len(labels) + len(malformed)):
        total = len(labels) + len(malformed)
        found = (
            f"{len(malformed):,} of {total:,} rows are malformed, the first in line {malformed[0]}"
        )
        raise BadInput(f"{subject}: {found}; at most {_MOST_MALFORMED:.0%} is allowed")
    return Pairs(questions, np.array(labels, dtype=np.int64), len(malformed))


def _rows(lines: list[str]) -> Iterator[tuple[int, list[str] | None]]:
    """Line numbers with six fields, or None for a line that belongs to no row.

    Quotes are used here and there, and not always closed: reading the whole file by the rules of
    quoting would swallow rows. So a line with six fields is a row. Only elsewhere, where a question
    holds a tab or a line end, quotes count.
    """
    position = 1
    while position < len(lines):
        taken, row = 1, _plain(lines[position])
        while row is None and taken <= _LONGEST_ROW and '"' in lines[position]:
            row = _quoted(lines[position : position + taken])
            taken += row is None
        taken = taken if row else 1
        if row or lines[position].strip():
            yield position + 1, row
        position += taken


def _plain(line: str) -> list[str] | None:
    fields = [_unquoted(field) for field in line.split("\t")]
    return fields if _is_row(fields) else None


def _quoted(lines: list[str]) -> list[str] | None:
    try:
        rows = list(csv.reader([f"{line}\n" for line in lines], delimiter="\t", strict=True))
    except csv.Error:
        return None
    return rows[0] if len(rows) == 1 and _is_row(rows[0]) else None


def _is_row(fields: list[str]) -> bool:
    return len(fields) == len(_COLUMNS) and fields[5] in ("0", "1")


def _unquoted(field: str) -> str:
    return (
        field[1:-1].replace('""', '"') if len(field) > 1 and field[0] == field[-1] == '"' else field
    )


def rank_words(pairs: Pairs) -> list[str]:
    """All words, the most frequent first, equally frequent ones in the order of the alphabet."""
    counts = Counter(chain.from_iterable(pairs.questions))
    return sorted(counts, key=lambda word: (-counts[word], word))


def write_pairs(path: Path, pairs: Pairs, ranks: dict[str, int]) -> None:
    """Ranks of all words in a row, the number of words of every question, labels. An unknown word
    has the last rank.
    """
    words = [ranks.get(word, len(ranks)) for word in chain.from_iterable(pairs.questions)]
    lengths = np.array([len(question) for question in pairs.questions], dtype=np.int32).reshape(
        -1, 2
    )
    write_npz(path, words=np.array(words, dtype=np.int32), lengths=lengths, labels=pairs.labels)


def prepare_pairs(original: Original, shop: Workshop) -> str:
    """train.tsv and dev.tsv to {train,test}.npz and the vocabulary of the training questions.

    GLUE's test set has no labels, so the dev set is the test set.
    """
    parts = {}
    files = {"train": original.file("train.tsv"), "test": original.file("dev.tsv")}
    with bar(f"{shop.facts.name}: train and dev", 2, unit="files") as advance:
        for part, file in files.items():
            parts[part] = read_pairs(original, file)
            shop.check_size(part, len(parts[part].labels), TOLERANCE)
            advance(1)
    vocabulary = rank_words(parts["train"])
    ranks = {word: rank for rank, word in enumerate(vocabulary)}
    shop.unseal()
    with whole_file(shop.folder / VOCABULARY) as file:
        file.write("".join(f"{word}\n" for word in vocabulary).encode())
    for part, pairs in parts.items():
        write_pairs(shop.folder / f"{part}.npz", pairs, ranks)
        shop.counts[part] = len(pairs.labels)
    malformed = sum(pairs.malformed for pairs in parts.values())
    return "GLUE's dev set is the test set" + (
        f", {malformed:,} malformed rows left out" if malformed else ""
    )


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
    x[empty, 0], x[empty, 1] = 1, UNKNOWN
    return x.reshape(-1, 2, 1 + length)

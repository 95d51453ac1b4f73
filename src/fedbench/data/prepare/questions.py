"""The reader of QQP from GLUE: two files of question pairs become the ranks of their words.

Every question is stored as the ranks of its words in the whole vocabulary, the most frequent word
first. The vocabulary of n words is the first n lines of `vocabulary.txt`, so one preparation serves
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

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.core.files import write_atomically
from fedbench.data.prepare.archives import SourceFiles
from fedbench.data.prepare.store import DatasetWriter
from fedbench.data.prepared import VOCABULARY

_COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
# Of the known size: how many rows are malformed depends on the release and the reader.
TOLERANCE = 0.01
_LONGEST_ROW = 4  # lines that a quoted question may spread a row over
_MOST_MALFORMED = 0.01
_WORD = re.compile(r"\w+(?:['\u2019]\w+)*|[^\w\s]")  # u2019: the apostrophe of typesetters


@dataclass(frozen=True)
class Pairs:
    """Question pairs as words, before they have numbers."""

    questions: list[list[str]]  # two for every label: first and second question in turn
    labels: np.ndarray
    malformed: int  # number of lines that are no row


def words_of(question: str) -> list[str]:
    """Words in lower case, with their apostrophes; every other sign is a word of its own."""
    # Interned: a word's million occurrences are one string.
    return [sys.intern(word) for word in _WORD.findall(question.lower())]


def read_qqp(source: SourceFiles, writer: DatasetWriter) -> str:
    """train.tsv and dev.tsv to {train,test}.npz and the vocabulary of the training questions.

    GLUE's test set has no labels, so the dev set is the test set.
    """
    pairs = {}
    files = {"train": source.find("train.tsv"), "test": source.find("dev.tsv")}
    for split, name in files.items():
        pairs[split] = _read_pairs(source, name)
        writer.check_size(split, len(pairs[split].labels), TOLERANCE)
    vocabulary = _words_by_frequency(pairs["train"])
    ranks = {word: rank for rank, word in enumerate(vocabulary)}
    lines = "".join(f"{word}\n" for word in vocabulary)
    write_atomically(writer.staging / VOCABULARY, lines)
    for split, split_pairs in pairs.items():
        _write_pairs(writer, split, split_pairs, ranks)
    malformed = sum(split_pairs.malformed for split_pairs in pairs.values())
    note = "GLUE's dev set is the test set"
    return f"{note}, {malformed:,} malformed rows left out" if malformed else note


def _read_pairs(source: SourceFiles, name: str) -> Pairs:
    """The rows of a tsv file. Malformed ones are counted; more than 1 % of them are not this
    dataset any more.
    """
    content = source.read(name)
    lines = [line.removesuffix(b"\r").decode(errors="replace") for line in content.split(b"\n")]
    header = lines[0].removeprefix("\ufeff").split("\t")
    if tuple(header) != _COLUMNS:
        found = f"starts with the columns {', '.join(header)[:80]}"
        raise source.bad_file(name, f"{found}; must start with {', '.join(_COLUMNS)}")
    questions = []
    labels = []
    malformed = []
    for number, row in _rows(lines):
        if row is None:
            malformed.append(number)
        else:
            questions += [words_of(row[3]), words_of(row[4])]
            labels.append(int(row[5]))
    total = len(labels) + len(malformed)
    if len(malformed) > _MOST_MALFORMED * total:
        raise BadInput(
            f"{source.path}: {name}: {len(malformed):,} of {total:,} rows are malformed, the first"
            f" in line {malformed[0]}; must be at most {_MOST_MALFORMED:.0%}"
        )
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
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"')
    return field


def _words_by_frequency(pairs: Pairs) -> list[str]:
    """All words, the most frequent first, equally frequent ones in the order of the alphabet."""
    counts = Counter(chain.from_iterable(pairs.questions))
    return sorted(counts, key=lambda word: (-counts[word], word))


def _write_pairs(writer: DatasetWriter, split: str, pairs: Pairs, ranks: dict[str, int]) -> None:
    """Ranks of all words in a row, the number of words of every question, labels. An unknown word
    has the last rank.
    """
    words = [ranks.get(word, len(ranks)) for word in chain.from_iterable(pairs.questions)]
    lengths = np.array([len(question) for question in pairs.questions], dtype=np.int32)
    writer.write_pairs(
        split,
        words=np.array(words, dtype=np.int32),
        lengths=lengths.reshape(-1, 2),
        labels=pairs.labels,
    )

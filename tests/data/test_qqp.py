"""Question pairs: rows and quoting, the vocabulary of the training text only, padding, identity,
the stand-in.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support import experiments
from support import original_files as originals
from support.data_settings import data_settings, load, prepare_small, refusal

from fedbench.data.batches import examples
from fedbench.data.dataset import Dataset
from fedbench.data.prepare.questions import words_of
from fedbench.data.qqp import UNKNOWN, padded

PADDED = 4


def made(root: Path, **content: object) -> Path:
    return prepare_small("qqp", originals.qqp(root / "given", **content), root)


def loaded(root: Path, **changes: object) -> Dataset:
    return load("qqp", root, **changes)


def sentences(folder: Path, dataset: Dataset, part: str = "train") -> list[list[str]]:
    """Both questions of every pair, as words again."""
    words = ["<pad>", "<unknown>", *(folder / "vocabulary.txt").read_text().split("\n")]
    x = dataset.train_x if part == "train" else dataset.test_x
    return [[words[i] for i in row[1 : 1 + row[0]]] for row in x.reshape(-1, x.shape[2])]


# Reading


def test_rows_with_quotes_and_line_ends_are_read(tmp_path):
    folder = made(tmp_path)
    dataset = loaded(tmp_path)
    assert (len(dataset.train_y), len(dataset.test_y), dataset.shape) == (400, 100, (2, 31))
    assert (dataset.train_x.dtype, dataset.train_y.dtype, dataset.mean) == (
        np.int32,
        np.int64,
        None,
    )
    back = sentences(folder, dataset)
    assert " ".join(back[0]) == "how do i buy a thing0 ?"
    assert " ".join(back[6]) == 'what is " thing3 " for ?'
    assert " ".join(back[10]) == "what is a thing5"
    assert " ".join(back[11]) == "how can i get thing1s ?"
    np.testing.assert_array_equal(dataset.train_y[:8], [1, 0, 0, 0, 0, 0, 0, 1])
    assert "dev set is the test set" in dataset.note
    assert "malformed" not in dataset.note
    assert "training set of 400 pairs instead of 363,846" in dataset.note


def test_a_few_malformed_rows_are_counted_in_the_note(tmp_path):
    made(tmp_path, extra="400\t1\t2\tcut short")
    assert "2 malformed rows left out" in loaded(tmp_path).note


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("\n".join(["no row"] * 6), "6 of 106 rows are malformed, the first in line 103"),
        ("\n".join(f"{n}\t1\t2\ta\tb\tmaybe" for n in range(9)), "9 of 109 rows"),
    ],
)
def test_many_malformed_rows_are_an_error(extra, expected, tmp_path):
    given = originals.qqp(tmp_path / "given", rows=400)
    (given / "train.tsv").write_text((given / "dev.tsv").read_text() + extra)
    assert expected in refusal(lambda: prepare_small("qqp", given, tmp_path))
    assert not list((tmp_path / "qqp").glob("*.*z"))


def test_an_open_quote_does_not_swallow_rows(tmp_path):
    given = originals.qqp(tmp_path / "given")
    path = given / "train.tsv"
    path.write_text(path.read_text().replace("How do I buy a thing1?", '"How do I buy a thing1?'))
    prepare_small("qqp", given, tmp_path)
    assert len(loaded(tmp_path).train_y) == 400


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            "train.tsv",
            "id\tquestion1\tquestion2\n0\ta\tb\n",
            "starts with the columns id, question1, question2",
        ),
        ("train.tsv", "", "starts with the columns"),
        ("train.tsv", "\x00\x01", "starts with the columns"),
        ("dev.tsv", originals.QQP_HEADER + "\n", "the test set has 0 examples"),
        ("dev.tsv", None, "lacks the file dev.tsv"),
    ],
)
def test_files_that_are_not_the_tables(file, content, expected, tmp_path):
    given = originals.qqp(tmp_path / "given")
    if content is None:
        (given / file).unlink()
    else:
        (given / file).write_text(content)
    assert expected in refusal(lambda: prepare_small("qqp", given, tmp_path))


def test_too_few_rows_are_refused(tmp_path):
    given = originals.qqp(tmp_path / "given")
    archive = originals.packed(given, tmp_path / "q.zip")
    text = refusal(lambda: prepare_small("qqp", archive, tmp_path, any_size=False))
    assert "400 examples instead of 363,846" in text


def test_words():
    assert words_of("What's  the U.S. price, in £?") == [
        "what's",
        "the",
        "u",
        ".",
        "s",
        ".",
        "price",
        ",",
        "in",
        "£",
        "?",
    ]
    assert words_of("") == words_of(" \t\x85") == []


# Ids


def test_padding_cuts_pads_and_leaves_no_sequence_empty():
    words = np.array([0, 1, 2, 3, 4, 5, 6, 7, 1], dtype=np.int32)
    lengths = np.array([[6, 2], [0, 1]], dtype=np.int32)
    x = padded(words, lengths, PADDED, vocabulary=5)
    assert x.dtype == np.int32
    expected = [
        [
            [4, 2, 3, 4, 5],
            [2, UNKNOWN, UNKNOWN, 0, 0],
        ],  # ranks 0-3 of six; 6 and 7 are not in the vocabulary
        [[1, UNKNOWN, 0, 0, 0], [1, 3, 0, 0, 0]],
    ]
    np.testing.assert_array_equal(x, expected)


def test_the_vocabulary_is_of_the_training_text_only_and_by_frequency(tmp_path):
    folder = made(tmp_path)
    words = (folder / "vocabulary.txt").read_text().split()
    assert words[:3] == ["?", "how", "i"]
    assert "unheard" not in words
    dataset = loaded(tmp_path)
    assert dataset.vocabulary == len(words) + 2
    assert dataset.train_x[:, :, 1:].max() < dataset.vocabulary
    assert (
        " ".join(sentences(folder, dataset, "test")[1])
        == "<unknown> is <unknown> <unknown> thing0s ?"
    )
    few = loaded(tmp_path, vocabulary=3, length=5)
    assert (few.vocabulary, few.shape) == (5, (2, 6))
    np.testing.assert_array_equal(few.train_x[0, 0], [5, 3, UNKNOWN, 4, UNKNOWN, UNKNOWN])


def test_another_vocabulary_is_another_run(tmp_path):
    folder = made(tmp_path)
    dataset = loaded(tmp_path)
    path = folder / "vocabulary.txt"
    path.write_text(path.read_text().replace("how\n", "why\n"))
    changed = loaded(tmp_path)
    np.testing.assert_array_equal(changed.train_x, dataset.train_x)
    assert changed.fingerprint() != dataset.fingerprint()
    # A word beyond the vocabulary that is used decides nothing.
    few = loaded(tmp_path, vocabulary=2).fingerprint()
    path.write_text(path.read_text().removesuffix("\n") + "s\n")
    assert loaded(tmp_path, vocabulary=2).fingerprint() == few


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"length": 0}, "data.length=0"),
        ({"vocabulary": 0}, "data.vocabulary=0"),
        ({"subset": 0}, "data.subset=0"),
    ],
)
@pytest.mark.parametrize("source", ["real", "synthetic"])
def test_impossible_settings(change, expected, source, tmp_path):
    made(tmp_path)
    assert refusal(lambda: loaded(tmp_path, source=source, **change)).startswith(expected)


@pytest.mark.parametrize("file", ["train.npz", "vocabulary.txt", "info.json"])
def test_damaged_cache(file, tmp_path):
    path = made(tmp_path) / file
    path.write_bytes(b"\xff\xfe damaged")
    text = refusal(lambda: loaded(tmp_path))
    assert text.startswith(f"data=qqp: {path}: ")
    assert f"`fedbench-data qqp --root {tmp_path} --download --force`" in text


def test_a_vocabulary_that_is_too_short_is_noticed(tmp_path):
    path = made(tmp_path) / "vocabulary.txt"
    path.write_text("how\n")
    assert "words outside the vocabulary" in refusal(lambda: loaded(tmp_path))


def test_missing_pairs_name_the_command(tmp_path):
    text = refusal(lambda: loaded(tmp_path))
    assert f"`fedbench-data qqp --root {tmp_path} --download`" in text


# Batches and the stand-in


def test_a_batch_passes_ids_untouched(tmp_path):
    made(tmp_path)
    dataset = loaded(tmp_path, subset=50)
    train = examples(dataset, "train", torch.device("cpu"))
    x, y = train.batch(torch.tensor([3, 1]))
    assert (x.dtype, y.dtype) == (torch.int32, torch.int64)
    np.testing.assert_array_equal(x.numpy(), dataset.train_x[[3, 1]])


def test_stand_in_has_the_form_of_the_real_pairs():
    dataset = data_settings("qqp", source="synthetic", subset=500, length=12, vocabulary=300).load(
        0
    )
    assert (dataset.shape, dataset.vocabulary, dataset.classes) == ((2, 13), 302, 2)
    assert dataset.note.startswith("synthetic stand-in for qqp")
    for x in (dataset.train_x, dataset.test_x):
        lengths, ids = x[..., :1], x[..., 1:]
        assert x.dtype == np.int32
        assert 1 <= lengths.min() <= lengths.max() <= 12
        assert ((ids > 1) == (np.arange(12) < lengths)).all()
        assert ids.max() < 302
    assert (
        dataset.fingerprint()
        == data_settings("qqp", source="synthetic", subset=500, length=12, vocabulary=300)
        .load(1)
        .fingerprint()
    )
    for tiny in ({"vocabulary": 1}, {"length": 1}):
        data_settings("qqp", source="synthetic", subset=20, **tiny).load(0)


def test_stand_in_is_learnable_but_not_trivial():
    dataset = data_settings("qqp", source="synthetic", subset=4000, vocabulary=600).load(0)
    train, test = (
        examples(dataset, "train", torch.device("cpu")),
        examples(dataset, "test", torch.device("cpu")),
    )
    torch.manual_seed(0)
    words = torch.nn.EmbeddingBag(dataset.vocabulary, 2, mode="mean", padding_idx=0)
    optimizer = torch.optim.Adam(words.parameters(), 0.1)
    for step in range(60):
        x, y = train.batch(slice(500 * (step % 8), 500 * (step % 8 + 1)))
        loss = torch.nn.functional.cross_entropy(words(x[:, :, 1:].flatten(1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, y = test.batch(slice(0, len(test)))
    accuracy = (words(x[:, :, 1:].flatten(1)).argmax(1) == y).float().mean()
    assert 0.6 < accuracy < 0.9


@pytest.mark.parametrize("name", ["emnist", "svhn", "cinic10", "tinyimagenet", "lc25000"])
def test_image_stand_ins_train_a_round(name):
    words = (
        f"data={name}",
        "data.subset=100",
        "model=linear",
        "rounds=1",
        "client.batch_size=20",
        "client.lr=0.001",
    )
    federation = experiments.federation(*words)
    before = federation.state.w.clone()
    (record,) = federation.rounds()
    assert not record.diverged
    assert not torch.equal(before, federation.state.w)

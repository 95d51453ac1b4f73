"""Your own data in a file: every layout that is allowed, and one clear line for everything else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.data_settings import refusal

from fedbench.data import NpzDataset


def npz_arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.normal(size=(12, 4)),
        "y_train": np.arange(12) % 3,
        "x_test": rng.normal(size=(6, 4)),
        "y_test": np.arange(6) % 3,
    }
    return {name: array for name, array in {**arrays, **changes}.items() if array is not None}


def npz(folder: Path, **changes: np.ndarray | None) -> NpzDataset:
    np.savez(folder / "own.npz", **npz_arrays(**changes))
    return NpzDataset(path=str(folder / "own.npz"))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.bool_])
def test_numbers_are_used_as_they_are(dtype, tmp_path):
    given_x = npz_arrays()["x_train"].astype(dtype)
    dataset = npz(tmp_path, x_train=given_x).load(0)
    assert dataset.train_x.dtype == np.float32
    np.testing.assert_array_equal(dataset.train_x, given_x.astype(np.float32))
    assert (dataset.mean, dataset.std, dataset.classes, dataset.shape) == (None, None, 3, (4,))


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((9, 7), np.uint8, (9, 7, 1)),
        ((9, 7, 3), np.uint8, (9, 7, 3)),
        ((9, 7), np.float64, (9, 7, 1)),
        ((3, 8, 8), np.uint8, (8, 8, 3)),  # PyTorch's layout
        ((1, 9, 7), np.float32, (1, 9, 7)),  # a series of seven channels, not PyTorch's layout
    ],
)
def test_images(shape, dtype, expected, tmp_path):
    rng = np.random.default_rng(0)
    x_train, x_test = (rng.integers(0, 256, (size, *shape)).astype(dtype) for size in (12, 6))
    dataset = npz(tmp_path, x_train=x_train, x_test=x_test).load(0)
    assert dataset.shape == dataset.test_x.shape[1:] == expected
    assert (dataset.mean is not None) == (dtype == np.uint8)
    if len(shape) == 3 and expected != shape:
        np.testing.assert_array_equal(dataset.train_x, x_train.transpose(0, 2, 3, 1))
        assert "[N, C, H, W]" in dataset.note


def test_npz_subset_and_classes_of_both_sets(tmp_path):
    dataset = replace(npz(tmp_path, y_test=np.full(6, 4)), subset=6).load(0)
    assert dataset.classes == 5
    np.testing.assert_array_equal(np.bincount(dataset.train_y), [2, 2, 2])


def test_npz_hash_follows_the_contents_not_the_name(tmp_path):
    first = npz(tmp_path)
    before = first.content_hash()
    other = tmp_path / "other.npz"
    other.write_bytes(Path(first.path).read_bytes())
    assert replace(first, path=str(other)).content_hash() == before
    assert npz(tmp_path, y_test=np.zeros(6, int)).content_hash() != before


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test"),
        ({"x_train": np.array([{}] * 12)}, "holds Python objects"),
        ({"x_train": np.array(["a"] * 12)}, "must be numbers"),
        ({"x_train": np.zeros((12, 4), complex)}, "must be numbers"),
        ({"x_train": np.zeros(12)}, "[N, H, W, C]"),
        ({"x_train": np.zeros((12, 1, 1, 1, 1))}, "[N, H, W, C]"),
        ({"x_train": np.zeros((0, 4)), "y_train": np.zeros(0, int)}, "none of them 0"),
        ({"x_test": np.zeros((6, 0))}, "none of them 0"),
        ({"y_train": np.arange(11) % 3}, "12 examples and y_train 11 labels"),
        ({"x_test": np.zeros((6, 5))}, "must be the same"),
        ({"x_test": np.zeros((6, 4), np.uint8)}, "must both be uint8, or neither"),
        ({"x_train": np.full((12, 4), np.nan)}, "NaN or infinite"),
        ({"x_test": np.full((6, 4), np.inf)}, "NaN or infinite"),
        ({"x_test": np.full((6, 4), 1e300)}, "NaN or infinite"),
        ({"y_train": np.arange(12) / 2}, "integers from 0"),
        ({"y_train": np.array(["cat"] * 12)}, "integers from 0"),
        ({"y_train": np.zeros((12, 1), int)}, "integers from 0"),
        ({"y_test": np.arange(6) - 1}, "label -1"),
        ({"y_test": np.full(6, 2**63, np.uint64)}, "label 9223372036854775808"),
    ],
)
def test_bad_npz_is_refused_in_one_line(changes, expected, tmp_path):
    text = refusal(lambda: npz(tmp_path, **changes).load(0))
    assert text.startswith(f"data.path={tmp_path / 'own.npz'}: ")
    assert expected in text


def test_npz_that_is_no_such_file(tmp_path):
    text, single = tmp_path / "own.txt", tmp_path / "own.npy"
    text.write_text("x_train")
    np.save(single, np.zeros(3))
    cases = {
        None: "x_train",
        tmp_path / "none.npz": "no such file",
        tmp_path: "directory",
        text: "not a",
        single: "single",
    }
    for path, expected in cases.items():
        line = refusal(lambda path=path: NpzDataset(path=path and str(path)).load(0))
        assert line.startswith(f"data.path={path}: ")
        assert expected in line
    assert "no such file" in refusal(NpzDataset(path=str(tmp_path / "none.npz")).content_hash)


def test_the_example_of_the_manual_trains(fedbench):
    """docs/datasets.md: the program that makes the file, and the command that trains on it."""
    manual = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    program = manual.partition("```python\n")[2].partition("```")[0]
    exec(program, {})  # writes squares.npz into the test's own folder
    (command,) = re.findall(r"^    fedbench (data=npz .*)$", manual, flags=re.MULTILINE)
    run = fedbench(*command.split())
    assert run.status == 0, run.err
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["final_accuracy"] > 0.9

"""Settings, digits, subsets, statistics, the synthetic stand-in, and the real datasets' facts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from support.data_settings import CONF, NAMED, data_config, data_settings, refusal

from fedbench.data import Dataset, DatasetSettings, stratified_subset
from fedbench.data.dataset import channel_statistics

# Configuration


@pytest.mark.parametrize("name", sorted(path.stem for path in (CONF / "data").glob("[!_]*.yaml")))
def test_every_file_names_every_setting_with_the_right_type(name):
    config = data_config(name)
    target = type(instantiate(config))
    assert {one.name for one in fields(target)} == set(config) - {"_target_"}
    del config["_target_"]
    OmegaConf.merge(OmegaConf.structured(target), config)  # raises on a wrong type


# Digits


def test_digits_are_all_there_split_alike_for_every_seed():
    first, second = data_settings("digits").load(0), data_settings("digits").load(1)
    assert first.fingerprint() == second.fingerprint()
    assert (first.shape, first.classes, first.mean, first.note) == ((8, 8, 1), 10, None, "")
    assert first.train_x.dtype == np.float32
    assert (first.train_x.min(), first.train_x.max()) == (0, 1)
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    both = np.concatenate([first.train_x, first.test_x]).reshape(-1, 64) * 16
    found = np.column_stack([both, np.concatenate([first.train_y, first.test_y])])
    expected = np.column_stack([pixels, labels])
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])
    shares = np.bincount(first.test_y) / np.bincount(labels)
    assert np.abs(shares - 0.2).max() < 0.01


def test_digits_need_no_data_root_no_slow_import_and_say_nothing():
    script = (
        "import sys; from fedbench.data import Digits;"
        "Digits('digits', [8, 8, 1], 10, 1438, 359, root='/proc/nowhere').load(0);"
        "assert 'sklearn' not in sys.modules"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_digits_without_the_table_fall_back_to_scikit_learn(monkeypatch):
    expected = data_settings("digits").load(0).fingerprint()
    monkeypatch.setattr("fedbench.data.digits.importlib.util.find_spec", lambda name: None)
    assert data_settings("digits").load(0).fingerprint() == expected


def test_float_data_refuses_a_mean():
    assert "data.mean" in refusal(lambda: data_settings("digits", mean=[0.1]).load(0))


# Subset


@settings(deadline=None)  # a busy machine is not a failure
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80).map(np.array),
    share=st.floats(0, 1),
    seed=st.integers(0, 5),
)
def test_subset_is_sorted_unique_and_keeps_the_class_shares(labels, share, seed):
    size = max(1, round(share * len(labels)))
    chosen = stratified_subset(labels, size, np.random.default_rng(seed))
    assert len(chosen) == size
    assert (np.diff(chosen) > 0).all()
    exact = np.bincount(labels, minlength=7) * size / len(labels)
    assert np.abs(np.bincount(labels[chosen], minlength=7) - exact).max() < 1


def test_subset_depends_on_the_seed_and_leaves_the_test_set_whole():
    whole, first, again, other = (
        data_settings("digits", subset=subset).load(seed)
        for subset, seed in ((None, 0), (100, 0), (100, 0), (100, 1))
    )
    assert len(first.train_y) == 100
    assert "subset of 100" in first.note
    assert first.fingerprint() == again.fingerprint() != other.fingerprint()
    np.testing.assert_array_equal(first.test_x, whole.test_x)


@pytest.mark.parametrize("source", ["real", "synthetic"])
@pytest.mark.parametrize("subset", [0, -1, 1439])
def test_impossible_subset(subset, source):
    text = refusal(lambda: data_settings("digits", subset=subset, source=source).load(0))
    assert text.startswith(f"data.subset={subset}: ")
    assert "1438" in text


# Statistics and fingerprint


def test_channel_statistics_match_numpy_and_survive_a_constant_channel():
    images = np.random.default_rng(0).integers(0, 256, (3000, 4, 5, 2), dtype=np.uint8)
    images[..., 1] = 7
    mean, std = channel_statistics(images)
    scaled = images / 255
    np.testing.assert_allclose(mean, scaled.mean(axis=(0, 1, 2)), rtol=1e-10)
    np.testing.assert_allclose(std, [scaled[..., 0].std(), 1.0], rtol=1e-10)


@pytest.mark.parametrize("array", ["train_x", "train_y", "test_x", "test_y"])
def test_fingerprint_changes_with_every_array(array):
    dataset = data_settings("digits").load(0)
    for place in range(
        0, len(getattr(dataset, array)), 7
    ):  # every example counts, not a choice of them
        changed = getattr(dataset, array).copy()
        changed[place] = 1 - changed[place]
        assert replace(dataset, **{array: changed}).fingerprint() != dataset.fingerprint()


# Synthetic stand-in


@pytest.mark.parametrize("name", ["digits", *NAMED])
def test_stand_in_has_the_shape_and_says_what_it_is(name, tmp_path):
    chosen = data_settings(name, source="synthetic", subset=500, root=str(tmp_path))
    dataset = chosen.load(0)
    assert list(dataset.shape) == chosen.shape
    assert dataset.train_x.dtype == np.uint8
    assert (dataset.source, dataset.classes) == ("synthetic", chosen.classes)
    assert dataset.note.startswith(f"synthetic stand-in for {name}")
    assert len(dataset.train_y) == 500
    assert len(dataset.test_y) == min(
        chosen.test_size, max(500 * chosen.test_size // chosen.train_size, 10 * chosen.classes)
    )
    assert np.ptp(np.bincount(dataset.train_y, minlength=chosen.classes)) <= 1
    assert chosen.load(1).fingerprint() == dataset.fingerprint()


def test_stand_ins_differ_by_name_and_have_full_size():
    first, second = (
        data_settings(name, source="synthetic").load(0) for name in ("mnist", "fmnist")
    )
    assert (len(first.train_y), len(first.test_y)) == (60_000, 10_000)
    assert first.fingerprint() != second.fingerprint()


@pytest.mark.parametrize(
    ("name", "at_least"), [("mnist", 0.4), ("cifar10", 0.4), ("cifar100", 0.2)]
)
def test_stand_in_is_learnable_but_not_trivial(name, at_least):
    dataset = data_settings(name, source="synthetic", subset=2000).load(0)
    train, test = (x.reshape(len(x), -1) / 255 for x in (dataset.train_x, dataset.test_x))
    centroids = np.stack(
        [train[dataset.train_y == label].mean(axis=0) for label in range(dataset.classes)]
    )
    scores = test @ centroids.T - (centroids**2).sum(axis=1) / 2
    accuracy = (scores.argmax(axis=1) == dataset.test_y).mean()
    assert at_least < accuracy < 0.95


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [28, 28]},
        {"shape": [0, 28, 1]},
        {"classes": 1},
        {"train_size": 0},
        {"test_size": -1},
    ],
)
def test_stand_in_refuses_impossible_facts(change):
    key = next(iter(change))
    assert refusal(lambda: data_settings("mnist", source="synthetic", **change).load(0)).startswith(
        f"data.{key}="
    )


# Real data


@pytest.mark.realdata
@pytest.mark.parametrize("name", NAMED)
def test_real_dataset_has_its_facts_and_its_conventional_statistics(name, real_data):
    if not (real_data / name).is_dir():
        pytest.skip(f"{name} is not in FEDBENCH_DATA")
    chosen = data_settings(name, root=str(real_data))
    dataset = chosen.load(0)
    assert dataset.note == ""
    assert list(dataset.shape) == chosen.shape
    assert len(np.unique(dataset.train_y)) == len(np.unique(dataset.test_y)) == dataset.classes
    mean, std = channel_statistics(dataset.train_x)
    np.testing.assert_allclose(dataset.mean, mean, atol=2e-3)
    np.testing.assert_allclose(dataset.std, std, atol=2e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_x": np.zeros((4, 2))}, "train_x as float64 [4, 2], must be as `Dataset` says"),
        ({"test_x": np.zeros(4, np.float32)}, "test_x as float32 [4]"),
        ({"train_y": np.zeros(3, np.int64)}, "train_y as int64 [3], must be int64 [4]"),
        ({"test_y": np.zeros(4, np.int32)}, "test_y as int32 [4], must be int64 [4]"),
        ({"test_y": np.array([0, 1, 2, 0])}, "labels from 0 to 2 in test_y, must be 0 to 1"),
        ({"train_x": np.zeros((4, 2, 2, 1), np.uint8)}, "uint8 images without mean and deviation"),
    ],
)
def test_what_an_own_dataset_does_wrong_is_one_line(changes, words):
    x, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    facts = {"classes": 2, "source": "real", "mean": None, "std": None, "note": ""}
    arrays = {"train_x": x, "train_y": labels, "test_x": x, "test_y": labels}

    @dataclass(frozen=True)
    class Own(DatasetSettings):
        given: dict = field(default_factory=dict)

        def load(self, seed):
            return Dataset("own", **facts, **(arrays | self.given))

    assert refusal(lambda: Own(given=changes).for_run(0)).startswith(f"data: Own.load gave {words}")
    assert len(Own().for_run(0).train_y) == 4

"""The validation set: which examples it has, and that nobody trains on them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from support import experiments, run_files
from support.data_settings import refusal

from fedbench.data import Dataset, Digits
from fedbench.data.arrays import MappedRows
from fedbench.data.batches import examples
from fedbench.data.dataset import with_validation
from fedbench.runs.objective import objective
from fedbench.runs.writer import RunWriter
from fedbench.training.evaluation import Score
from fedbench.training.round_metrics import Record

SHARE = "data.validation=0.2"
SHORT = ("rounds=2", "client.epochs=1", *experiments.PLAIN)


def digits(**changes: object) -> Dataset:
    sizes = {"train_size": 1438, "test_size": 359}
    return Digits("digits", [8, 8, 1], 10, **sizes, **changes).for_run(0)


def test_it_is_a_stratified_part_and_the_rest_keeps_its_order():
    whole, data = digits(), digits(validation=0.1)
    assert (len(data.train_y), len(data.val_y), len(data.test_y)) == (1294, 144, 359)
    shares = np.bincount(data.val_y) / np.bincount(whole.train_y)
    np.testing.assert_allclose(shares, 0.1, atol=0.006)
    rows = {row.tobytes(): place for place, row in enumerate(whole.train_x)}
    kept = [rows[row.tobytes()] for row in data.train_x]
    held_out = [rows[row.tobytes()] for row in data.val_x]
    assert kept == sorted(kept)
    assert sorted(kept + held_out) == sorted(rows.values())
    np.testing.assert_array_equal(data.val_y, whole.train_y[held_out])


def test_its_seed_decides_which_examples_it_has():
    first, other = digits(validation=0.1), digits(validation=0.1, subset_seed=1)
    assert first.fingerprint() == digits(validation=0.1, subset_seed=0).fingerprint()
    assert first.fingerprint() != other.fingerprint() != digits().fingerprint()
    assert first.training_fingerprint() != other.training_fingerprint()
    part = digits(subset=300, validation=0.1)
    assert (len(part.train_y), len(part.val_y)) == (270, 30)


@pytest.mark.parametrize("share", [0.0003, 0.9999])
def test_a_share_that_leaves_nothing_is_refused(share):
    assert "must leave at least one of 1,438" in refusal(lambda: digits(validation=share))


def test_memory_mapped_images_stay_on_the_disk(tmp_path):
    """And give the same batches and fingerprints of their own as images in memory."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "images.npy", images)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="c")
    labels = np.arange(50) // 5  # sorted, as Tiny-ImageNet's: they do not show which were taken
    facts = {"classes": 10, "source": "real", "mean": (0.5,) * 3, "std": (0.2,) * 3, "note": ""}
    in_memory = Dataset("x", images, labels, images[:9], labels[:9], **facts)
    on_disk = replace(in_memory, train_x=mapped)
    first, second = with_validation(in_memory, 0.2, 0), with_validation(on_disk, 0.2, 0)
    assert isinstance(second.train_x, MappedRows)
    assert second.train_x.shape == first.train_x.shape
    for split in ("train", "val"):
        plain, lazy = (examples(one, split, torch.device("cpu")) for one in (first, second))
        index = torch.tensor([3, 0, 7])
        for chosen in (index, slice(2, 6)):
            for one, other in zip(plain.batch(chosen), lazy.batch(chosen), strict=True):
                assert torch.equal(one, other)
    other = with_validation(on_disk, 0.2, 1)
    np.testing.assert_array_equal(second.train_y, other.train_y)
    assert second.fingerprint() != other.fingerprint()
    assert second.training_fingerprint() != other.training_fingerprint()


def scores(*words: str, change: Callable[[Dataset], Dataset]) -> tuple[list[Score], str]:
    """Of every round, with another view of the data, and the digest of the final model."""
    made = experiments.parts(*SHORT, SHARE, *words)
    federation = experiments.assemble(replace(made, data=change(made.data)))
    found = [record.score for record in federation.rounds()]
    return found, experiments.model_digest(federation)


def as_test_set(data: Dataset) -> Dataset:
    return replace(data, test_x=data.val_x, test_y=data.val_y, val_x=None, val_y=None)


def without(data: Dataset) -> Dataset:
    return replace(data, val_x=None, val_y=None)


@pytest.mark.parametrize(
    "words", ["algo=feddyn", "algo=fedper attack=label_shift", "algo=pfedsim", "algo=local"]
)
def test_it_is_scored_like_a_test_set_and_changes_no_training(words):
    """Also where clients have models of their own."""
    both, digest = scores(*words.split(), change=lambda data: data)
    validated, _ = scores(*words.split(), change=as_test_set)
    tested, without_digest = scores(*words.split(), change=without)
    for score, on_validation, on_test in zip(both, validated, tested, strict=True):
        assert score.validation.accuracy == on_validation.accuracy
        assert score.validation.loss == on_validation.loss
        assert (score.accuracy, score.others) == (on_test.accuracy, on_test.others)
        assert on_test.validation is None
    assert digest == without_digest


def test_sentences_have_a_validation_set_too():
    words = ("data=qqp", "data.source=synthetic", "data.subset=60", "logger=none", "rounds=1")
    small = ("model.embedding=4", "model.hidden=4", "partition.clients=3", "data.length=4")
    made = experiments.prepare(experiments.config(*words, *small, SHARE))
    (record,) = experiments.assemble(made).rounds()
    assert len(made.data.val_y) == 12
    assert 0 <= record.score.validation.accuracy <= 1


def test_the_files_agree_for_any_number_of_workers_and_a_search_gets_the_validation(fedbench):
    words = ("data.validation=0.2", "rounds=3", "client.epochs=1", "partition.clients=4")
    runs = [fedbench(*words, f"runtime.workers={n}", f"results=r{n}") for n in (1, 2)]
    first, second = ([{**row, "seconds": ""} for row in run_files.rows(run.folder)] for run in runs)
    assert first == second
    facts = run_files.summary(runs[0].folder)
    best = max(first, key=lambda row: float(row["val_accuracy"]))
    assert facts["best_val_accuracy"] == float(best["val_accuracy"])
    assert facts["best_val_round"] == int(best["round"])
    assert facts["accuracy_at_best_val"] == float(best["test_accuracy"])
    assert (facts["data"]["train_examples"], facts["data"]["validation_examples"]) == (1150, 288)
    assert "1,150 training, 288 validation and 359 test examples" in runs[0].out
    assert f"in the best round by validation (round {best['round']})" in runs[0].out
    assert objective(None, runs[0].folder) == facts["best_val_accuracy"]
    assert objective("val_loss", runs[0].folder) == float(first[-1]["val_loss"])


def test_a_resumed_run_remembers_the_best_validation_round(fedbench, monkeypatch):
    """The rate falls to nothing after the second round, so the later rounds are no better."""
    words = ("data.validation=0.2", "rounds=4", "client.epochs=1", "runtime.workers=1")
    words += ("client.lr_decay.factor=1e-9", "client.lr_decay.first=2", "checkpoint.every=1")
    whole = fedbench(*words, "results=whole")
    add = RunWriter.add

    def add_three(writer: RunWriter, record: Record) -> None:
        add(writer, record)
        if record.round == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunWriter, "add", add_three)
    assert fedbench(*words).status == 130
    monkeypatch.setattr(RunWriter, "add", add)
    resumed = fedbench(*words)
    assert "resuming after round 3" in resumed.out
    facts = [run_files.summary(run.folder) for run in (whole, resumed)]
    for key in ("best_val_round", "best_val_accuracy", "accuracy_at_best_val", "digest"):
        assert facts[0][key] == facts[1][key]
    assert facts[0]["best_val_round"] == 2

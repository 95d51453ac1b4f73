"""Conformal prediction sets: coverage as promised, sizes by hand, and the files of a run."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from support import experiments

from fedbench.training.conformal import LEVELS, METHODS, aps, coverage_table, quantile, raps


def calibrated(count: int = 4000, classes: int = 8, sharpness: float = 2.0):
    """Probabilities, and labels that follow them."""
    rng = np.random.default_rng(0)
    logits = sharpness * rng.normal(size=(count, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = np.array([rng.choice(classes, p=row) for row in probabilities])
    return probabilities, labels


def test_coverage_is_what_was_asked_for():
    table = coverage_table(*calibrated(), seed=0)
    assert len(table) == len(METHODS) * len(LEVELS)
    for row in table:
        assert row["coverage"] == pytest.approx(row["level"], abs=0.01), row


def test_coverage_holds_for_a_model_that_is_wrong_about_itself():
    probabilities, labels = calibrated()
    overconfident = probabilities**4 / (probabilities**4).sum(axis=1, keepdims=True)
    for row in coverage_table(overconfident, labels, seed=0):
        assert row["coverage"] == pytest.approx(row["level"], abs=0.015), row


def test_sets_grow_with_the_level_and_shrink_with_certainty():
    sizes = {}
    for sharpness in (1.0, 4.0):
        table = coverage_table(*calibrated(sharpness=sharpness), seed=0)
        for method in METHODS:
            own = [row["size"] for row in table if row["method"] == method]
            assert own == sorted(own)
            sizes[method, sharpness] = own[LEVELS.index(0.90)]
    for method in METHODS:
        assert sizes[method, 4.0] < sizes[method, 1.0]


def test_the_threshold_by_hand():
    scores = np.array([0.4, 0.1, 0.3, 0.2])
    assert quantile(scores, 0.6) == 0.3  # rank ceil(5 * 0.6) = 3 of 4
    assert quantile(scores, 0.8) == 0.4
    assert quantile(scores, 0.81) == np.inf  # four examples cannot promise more than 80 %


def test_adaptive_scores_by_hand():
    probabilities = np.array([[0.2, 0.5, 0.3]])
    assert aps(probabilities, np.array([0.0]))[0] == pytest.approx([1.0, 0.5, 0.8])
    assert aps(probabilities, np.array([0.5]))[0] == pytest.approx([0.9, 0.25, 0.65])
    many = np.full((1, 10), 0.1)
    extra = raps(many, np.zeros(1)) - aps(many, np.zeros(1))
    assert extra[0] == pytest.approx([0.0] * 5 + [0.01, 0.02, 0.03, 0.04, 0.05])


def test_a_run_stores_outputs_and_coverage(fedbench):
    setting = (
        *experiments.DATA,
        *experiments.PLAIN,
        "rounds=2",
        "eval.conformal=true",
        "eval.batch_size=7",
    )
    runs = [fedbench(*setting, f"runtime.workers={n}", f"results=with{n}") for n in (1, 2)]
    assert [run.status for run in runs] == [0, 0], runs[1].err
    stored = [np.load(run.folder / "softmax.npz") for run in runs]
    assert np.array_equal(stored[0]["probabilities"], stored[1]["probabilities"])
    assert stored[0]["probabilities"].sum(axis=1) == pytest.approx(1.0, abs=1e-5)
    predictions = np.load(runs[0].folder / "predictions.npz")["final"]
    assert np.array_equal(stored[0]["probabilities"].argmax(axis=1), predictions)
    rows = list(csv.DictReader((runs[0].folder / "conformal.csv").read_text().splitlines()))
    expected = coverage_table(stored[0]["probabilities"], stored[0]["labels"], seed=0)
    assert [float(row["coverage"]) for row in rows] == [row["coverage"] for row in expected]


def test_it_needs_a_global_model(fedbench):
    run = fedbench(*experiments.DATA, *experiments.PLAIN, "algo=fedper", "eval.conformal=true")
    assert run.status == 2
    rule = "must be false with algo=fedper, which has no global model"
    assert run.err == f"fedbench: eval.conformal=true: {rule}\n"

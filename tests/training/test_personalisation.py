"""Clients' own test data: held out of training, scored before and after one round of local
training.
"""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from support import experiments

from fedbench.core.errors import BadInput
from fedbench.partitions.base import Split, hold_out
from fedbench.training.federation import Federation

OWN_TESTS = "partition.local_test=0.25"
QUICK = (*experiments.DATA, "rounds=2", "client.epochs=1", "client.lr=0.05", OWN_TESTS)


def made(*words: str) -> Federation:
    return experiments.federation(
        "rounds=3", "client.epochs=1", "client.lr=0.05", OWN_TESTS, *words
    )


def test_every_sample_trains_or_tests():
    whole, parts = (
        experiments.parts(*experiments.PLAIN),
        experiments.parts(OWN_TESTS, *experiments.PLAIN),
    )
    for all_own, train, test in zip(
        whole.shards, parts.shards, parts.split.local_tests, strict=True
    ):
        assert np.array_equal(np.sort(np.concatenate([train, test])), all_own)
        assert len(test) == min(max(1, round(0.25 * len(all_own))), len(all_own) - 1)
        assert len(train) >= 1
    assert parts.partition_hash() != whole.partition_hash()


def test_only_the_clients_of_the_next_round_are_scored_when_that_is_asked():
    every = made(*experiments.PLAIN, "cohort=2")
    some = made(*experiments.PLAIN, "cohort=2", "eval.population=cohort")
    for one, other in zip(every.rounds(), some.rounds(), strict=True):
        scored = [row["client"] for row in other.score.clients]
        assert scored == some._draw_cohort(other.round)
        assert len(scored) == 2
        # The same rows as those clients have where all are scored.
        assert other.score.clients == [row for row in one.score.clients if row["client"] in scored]
        assert other.score.accuracy == one.score.accuracy


def test_a_pool_is_tested_on_what_its_clients_put_aside():
    plain = experiments.parts(OWN_TESTS, *experiments.PLAIN)
    pool = experiments.parts(OWN_TESTS, "data.pool=true", *experiments.PLAIN)
    assert len(pool.data.train_y) == len(plain.data.train_y) + len(plain.data.test_y)
    np.testing.assert_array_equal(
        pool.data.train_y, np.concatenate([plain.data.train_y, plain.data.test_y])
    )
    own = np.concatenate([*pool.shards, *pool.split.local_tests])
    np.testing.assert_array_equal(np.sort(own), np.arange(len(pool.data.train_y)))
    tested = np.sort(np.concatenate(pool.split.local_tests))
    np.testing.assert_array_equal(pool.data.test_y, pool.data.train_y[tested])
    np.testing.assert_array_equal(pool.data.test_x, pool.data.train_x[tested])
    assert "pooled" in pool.data.note
    assert pool.id != plain.id
    federation = experiments.assemble(pool)
    (record,) = [one for one in federation.rounds() if one.round == 1]
    # The share of all held-out examples that the global model has right.
    weighted = record.score.others["local_before_accuracy_weighted"]
    assert record.score.accuracy == pytest.approx(weighted)


def test_small_clients_keep_a_training_sample():
    sizes = [0, 1, 2, 3, 10]
    split = hold_out(Split([np.arange(n) for n in sizes]), 0.9, seed=0)
    assert [len(own) for own in split.client_indices] == [0, 1, 1, 1, 1]
    assert [len(own) for own in split.local_tests] == [0, 0, 1, 2, 9]


def test_somebody_must_have_samples_to_spare():
    with pytest.raises(BadInput, match=r"partition\.local_test=0\.5: must be 0: no client has two"):
        hold_out(Split([np.arange(1), np.arange(0)]), 0.5, seed=0)


def test_the_share_must_leave_something():
    with pytest.raises(
        BadInput, match=r"partition\.local_test=1\.0: must be at least 0 and below 1"
    ):
        experiments.parts("partition.local_test=1", *experiments.PLAIN)


SCORED = ["fedavg", "scaffold", "fedbn", "fedrep", "pfedsim", "moon", "fedgen"]
WITH_BATCH_NORM = [
    pytest.param(
        algo,
        experiments.BATCH_NORM,
        id=f"{algo}-batch_norm",
        marks=() if algo in ("fedavg", "fedbn") else pytest.mark.heavy,
    )
    for algo in SCORED
]


@pytest.mark.parametrize(
    ("algo", "network"),
    [
        *(pytest.param(algo, experiments.PLAIN, id=f"{algo}-plain") for algo in SCORED),
        *WITH_BATCH_NORM,
    ],
)
def test_scoring_clients_changes_nothing(algo, network):
    """Local training for the score is thrown away: the same weights, memories and statistics as
    without it.
    """
    digests = []
    for watched in (True, False):
        federation = made(f"algo={algo}", *network)
        if not watched:
            federation.local_tests = None
        digests.append(experiments.final_digest(federation))
    assert digests[0] == digests[1]


def test_before_and_after_by_hand():
    federation = made(*experiments.PLAIN)
    record = next(federation.rounds())
    rows, start = record.score.clients, federation.state.w.clone()
    plan = federation.plan_for(
        1, federation.eligible, [federation.planned[k] for k in federation.eligible]
    )
    for position, row in enumerate(rows):
        client = row["client"]
        x, y = federation.trainer.train.batch(federation.local_tests[client])
        expected = []
        for trained in (False, True):
            before, memories = federation.state.receive(client)
            if trained:
                federation.trainer(plan, position, federation.shards[client], before, memories)
            federation.model.module.eval()
            with torch.no_grad():
                expected.append(
                    float((federation.model.module(x).argmax(dim=1) == y).double().mean())
                )
        assert [row["accuracy_before"], row["accuracy_after"]] == pytest.approx(expected)
    assert torch.equal(federation.state.w, start)
    after = np.array([row["accuracy_after"] for row in rows])
    sizes = np.array([row["test_samples"] for row in rows])
    columns = record.score.others
    assert columns["local_after_accuracy"] == pytest.approx(after.mean())
    assert columns["local_after_accuracy_std"] == pytest.approx(after.std())
    assert columns["local_after_accuracy_weighted"] == pytest.approx(
        (after * sizes).sum() / sizes.sum()
    )


def test_a_personal_model_is_scored_as_the_client_keeps_it():
    """Of clients that train alone, `before` of a round is what they had learnt `after` it."""
    federation = made("algo=local", *experiments.PLAIN)
    records = list(federation.rounds())
    for earlier, later in pairwise(records):
        for old, new in zip(earlier.score.clients, later.score.clients, strict=True):
            assert old["accuracy_after"] == new["accuracy_before"]
            assert old["loss_after"] == pytest.approx(new["loss_before"])


@pytest.mark.parametrize("algo", ["fedavg", "fedper", "pfedsim", "centralized"])
def test_files_are_the_same_for_any_number_of_workers(fedbench, algo):
    runs = [
        fedbench(
            *QUICK, *experiments.PLAIN, f"algo={algo}", f"runtime.workers={n}", f"results=with{n}"
        )
        for n in (1, 2)
    ]
    assert [run.status for run in runs] == [0, 0], runs[1].err
    texts = [(run.folder / "local_tests.csv").read_text() for run in runs]
    assert texts[0] == texts[1]
    rows = list(csv.DictReader(texts[0].splitlines()))
    clients = (
        1
        if algo == "centralized"
        else len(json.loads((runs[0].folder / "local_test.json").read_text()))
    )
    assert len(rows) == 2 * clients
    metrics = list(csv.DictReader((runs[0].folder / "metrics.csv").read_text().splitlines()))
    assert {"local_before_accuracy", "local_after_accuracy_weighted"} <= metrics[0].keys()

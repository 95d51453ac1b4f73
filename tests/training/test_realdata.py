"""A few rounds on real images: the whole way from the data root to an accuracy that only learning
can reach.
"""

from __future__ import annotations

import json

import pytest

MOMENTUM = ("client.momentum=0.9", "client.lr=0.02")


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("words", "floor"),
    [
        (("data=mnist", "algo=fedavg"), 0.80),
        pytest.param(("data=fmnist", "algo=scaffold"), 0.40, marks=pytest.mark.heavy),
        pytest.param(
            ("data=cifar10", "algo=fedprox", "rounds=6", *MOMENTUM), 0.20, marks=pytest.mark.heavy
        ),
        pytest.param(
            ("data=cifar100", "algo=fedavg", "rounds=8", *MOMENTUM), 0.03, marks=pytest.mark.heavy
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_accuracy_rises_above_a_floor(fedbench, real_data, words, floor):
    setting = ("data.subset=4000", "rounds=4", "client.lr=0.05", "partition.alpha=1.0")
    run = fedbench(*setting, *words, f"data.root={real_data}")
    assert run.status == 0, run.err
    summary = json.loads((run.folder / "summary.json").read_text())
    assert summary["data"]["source"] in ("real", "real, unverified")
    assert summary["final_accuracy"] > floor

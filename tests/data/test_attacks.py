"""Attacks spoil the training data of the named clients and of nobody else."""

from __future__ import annotations

import json

import pytest
import torch
from support import experiments

from fedbench.core.errors import BadInput
from fedbench.data.batches import examples

CLIENTS = "attack.clients=[1,3]"


def spoilt(*words: str):
    """The parts, honest examples and spoilt examples."""
    parts = experiments.parts(*experiments.PLAIN, *words)
    honest, train = (examples(parts.data, "train", torch.device("cpu")) for _ in range(2))
    shards = [torch.from_numpy(own) for own in parts.shards]
    parts.config.attack.spoil(train, shards, parts.data.classes, parts.config.scalars.seed)
    return parts, shards, honest, train


def test_shifted_labels():
    _, shards, honest, train = spoilt("attack=label_shift", CLIENTS, "attack.shift=3")
    for client, own in enumerate(shards):
        expected = (honest.y[own] + 3) % 10 if client in (1, 3) else honest.y[own]
        assert torch.equal(train.y[own], expected)
    assert torch.equal(train.batch(shards[1])[0], honest.batch(shards[1])[0])


def test_random_inputs():
    _, shards, honest, train = spoilt("attack=random_input", CLIENTS)
    assert torch.equal(train.y, honest.y)
    for client, own in enumerate(shards):
        x = train.batch(own)[0]
        if client in (1, 3):
            assert x.min() >= -1.0
            assert x.max() <= 1.0
            assert abs(float(x.mean())) < 0.02
            assert torch.equal(x, train.batch(own)[0])  # the same in every round
            assert torch.equal(x[:3], train.batch(own[:3])[0])
        else:
            assert torch.equal(x, honest.batch(own)[0])
    again = spoilt("attack=random_input", CLIENTS)[3]
    assert torch.equal(train.batch(shards[3])[0], again.batch(shards[3])[0])
    other = spoilt("attack=random_input", CLIENTS, "seed=1")
    assert not torch.equal(train.replaced_inputs[:5], other[3].replaced_inputs[:5])


@pytest.mark.parametrize("attack", ["label_shift", "random_input"])
def test_a_run_says_that_it_was_attacked_and_its_clients_see_it(fedbench, attack):
    setting = (
        *experiments.DATA,
        *experiments.PLAIN,
        "rounds=2",
        "client.epochs=1",
        "runtime.workers=2",
    )
    honest = fedbench(*setting)
    run = fedbench(*setting, f"attack={attack}")
    assert run.status == 0, run.err
    assert "note: attack: " in run.out
    summary, other = (json.loads((r.folder / "summary.json").read_text()) for r in (run, honest))
    assert any("client 0" in stamp for stamp in summary["caveats"])
    assert not other["caveats"]
    assert summary["id"] != other["id"]
    assert summary["label"] == f"{other['label']}-{attack}"
    assert summary["digest"] != other["digest"]
    assert summary["partition_hash"] == other["partition_hash"]
    serial = fedbench(*setting, f"attack={attack}", "runtime.workers=1", "results=serial")
    assert json.loads((serial.folder / "summary.json").read_text())["digest"] == summary["digest"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("attack=label_shift", "attack.clients=[5]"),
            r"attack.clients=\[5\]: must be different numbers from 0 to 4",
        ),
        (("attack=label_shift", "attack.clients=[]"), r"attack.clients=\[\]: "),
        (("attack=random_input", "attack.clients=[1,1]"), r"attack.clients=\[1, 1\]: "),
        (("attack=label_shift", "attack.shift=20"), "attack.shift=20: "),
        (("attack=label_shift", "attack.shift=x"), "attack.shift=x: must be an integer"),
    ],
)
def test_what_is_not_allowed(words, message):
    with pytest.raises(BadInput, match=message):
        experiments.parts(*experiments.PLAIN, *words)

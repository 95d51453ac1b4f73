"""A run that equals one of FedAvg by construction is that run, and says so."""

from __future__ import annotations

import json

import pytest
from support import experiments
from support.run_files import QUICK

STEPS = "client.steps=3"
# Words that are FedAvg, the words of FedAvg's run, and the reason that is given.
EQUAL = {
    "algo=fedbn": ("", "because the network has no batch norm"),
    f"algo=fednova {STEPS}": (
        STEPS,
        "because prox does nothing with these settings, all clients take the same number of steps,"
        " the server's momentum is 0",
    ),
    "algo=fedprox algo.mu=0": ("", "because prox does nothing with these settings"),
    "algo=fedpgvc algo.layers=0": ("", "because pgvc does nothing with these settings"),
    "algo=fedavgm algo.momentum=0": ("", "because the server's momentum is 0"),
    "algo=fedecgr algo.beta=1 server.weights=uniform": (
        "server.weights=uniform",
        "because ecgr does nothing",
    ),
    "modifier=[head_rate] algo.modifiers.head_rate.factor=1": (
        "",
        "because head_rate does nothing",
    ),
}
OWN = (
    "algo=fedavg",
    "algo=fednova",  # the numbers of steps follow the sizes of clients
    f"algo=fednova {STEPS} client.last_batch=scaled",
    f"algo=fednova {STEPS} algo.momentum=0.5",
    f"algo=fednova {STEPS} algo.mu=0.1",
    "algo=fedbn model=lenet model.batch_norm=true",
    "algo=fedpvr algo.layers=0",  # FedPVR averages uniformly by itself
    "algo=moon algo.mu=0",  # its projection is another network
    "algo=fedpgvc algo.layers=0 algo.eq16_literal=true server.lr=0.5",
    "algo=centralized",
    "algo=local",
    "algo=fedper",
)


@pytest.mark.parametrize("words", EQUAL)
def test_it_is_the_run_of_fedavg_with_its_label_its_files_and_its_bits(words):
    fedavg, reason = EQUAL[words]
    asked = experiments.config(*experiments.DATA, *experiments.PLAIN, "rounds=2", *words.split())
    same, plain = (
        experiments.prepare(asked),
        experiments.parts(*experiments.PLAIN, "rounds=2", *fedavg.split()),
    )
    assert (same.id, same.folder.path) == (plain.id, plain.folder.path)
    assert same.config.shown == plain.config.shown
    assert asked.folder == plain.folder.path
    assert reason in same.instead
    assert plain.instead == ""
    # What was asked for, computed as it was asked for, has the same bits.
    own = experiments.prepare_as_asked(asked)
    assert own.folder.path != plain.folder.path
    numbers = [model_after(made) for made in (own, same, plain)]
    assert numbers[0] == numbers[1] == numbers[2]


def model_after(prepared) -> str:
    made = experiments.assemble(prepared)
    experiments.final_digest(made)
    return experiments.model_digest(made)


@pytest.mark.parametrize("words", OWN)
def test_others_are_runs_of_their_own(words):
    parts = experiments.parts(*words.split())
    assert parts.instead == ""
    assert parts.algorithm.name == parts.config.algo["name"]


def test_who_asks_for_fedbn_is_told_and_finds_the_finished_run(fedbench):
    first = fedbench(*QUICK)
    second = fedbench(*QUICK, "algo=fedbn")
    assert second.status == 0, second.err
    assert second.folder == first.folder
    assert "note: digits-mlp-dirichlet0.5-fedbn is FedAvg to the bit, because" in second.out
    assert "this run is finished already" in second.out
    assert json.loads((first.folder / "summary.json").read_text())["label"].endswith("-fedavg")

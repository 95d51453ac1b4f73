"""`algo.local=statistics`: clients keep the statistics of batch norm, and nothing else."""

from __future__ import annotations

import pytest
import torch
from support import experiments
from support.faulty_runs import SETTING, whole_and_resumed

OWN = "algo.local=statistics"
WORDS = (*experiments.BATCH_NORM, "rounds=3", "client.epochs=1", "client.lr=0.05", "cohort=3")


@pytest.mark.parametrize("word", ["algo=fedavg", "algo=scaffold", "algo=fedprox"])
def test_the_parameters_are_those_of_the_method_without_it(word):
    """Batch norm trains by the statistics of batches, whoever keeps the running ones."""
    plain, own = (experiments.federation(word, *WORDS, *more) for more in ((), (OWN,)))
    start = own.state.b.clone()
    scores = [[record.score.accuracy for record in made.rounds()] for made in (plain, own)]
    assert torch.equal(plain.state.w, own.state.w)
    assert scores[0] != scores[1]
    assert torch.equal(own.state.b, start)  # the server has none to average
    kept = {client: memory["local"] for client, memory in own.state.clients.items()}
    assert all(len(memory["w"]) == 0 for memory in kept.values())
    first, second, *_ = (memory["b"] for memory in kept.values())
    assert not torch.equal(first, second)


def test_a_client_receives_the_global_parameters_with_its_own_statistics():
    made = experiments.federation(*WORDS, OWN)
    list(made.rounds())
    client, memory = next(iter(made.state.clients.items()))
    made.state.receive(client)
    assert torch.equal(made.model.w, made.state.w)
    assert torch.equal(made.model.b, memory["local"]["b"])


def test_without_batch_norm_it_is_fedavg():
    asked = experiments.parts(*experiments.PLAIN, OWN)
    assert asked.id == experiments.parts(*experiments.PLAIN).id
    assert "the network has no batch norm" in asked.instead


@pytest.mark.heavy
def test_any_number_of_workers_killed_and_resumed(fedbench):
    whole_and_resumed(fedbench, *SETTING, OWN)

"""FedPMVR's `eq12_plain`: Eqs. 12 and 13 with no other momentum on the last layers."""

from __future__ import annotations

import pytest
import torch
from support import experiments

WORDS = (*experiments.PLAIN, "algo=fedpmvr", "algo.alpha=0.4", "rounds=1", "client.lr=0.05")


def federation(variant: str, *words: str):
    return experiments.federation(*WORDS, f"algo.variant={variant}", *words)


@pytest.mark.parametrize("word", ["client.weight_decay=0.0", "client.weight_decay=0.1"])
def test_without_client_momentum_it_is_eq12_to_the_bit(word):
    plain, other = federation("eq12_plain", word), federation("eq12", word)
    assert experiments.final_digest(plain) == experiments.final_digest(other)


@pytest.mark.parametrize("last_batch", ["keep", "scaled"])
def test_with_client_momentum_the_head_has_the_average_of_eq12_alone(last_batch):
    words = ("partition.clients=1", "client.momentum=0.9", "client.weight_decay=0.1")
    words += (f"client.last_batch={last_batch}",)
    made = federation("eq12_plain", *words)
    model, start = made.model, made.state.w.clone()
    batches = list(made.sampler.indices(0, 0, made.shards[0], made.planned[0]))
    list(made.rounds())
    found = made.state.w.clone()
    assert not torch.allclose(found, _after(federation("eq12", *words)), atol=1e-4)

    model.w.copy_(start)
    first = model.layers[1].start
    buffer, m = torch.zeros_like(model.w), torch.zeros_like(model.w[first:])
    for index in batches:
        x, y = made.trainer.train.batch(index, training=True)
        share = len(y) / 32 if last_batch == "scaled" else 1.0
        model.g.zero_()
        torch.nn.functional.cross_entropy(model.module(x), y).backward()
        m = 0.4 * m + 0.6 * model.g[first:]
        buffer = 0.9 * buffer + share * model.g + 0.1 * model.w
        step = torch.cat([buffer[:first], share * m + 0.1 * model.w[first:]])
        model.w.sub_(0.05 * step)
    torch.testing.assert_close(found, model.w, rtol=0, atol=1e-5)


def _after(made) -> torch.Tensor:
    list(made.rounds())
    return made.state.w

"""`modifier=[head_rate]`: a learning rate of their own for the last layers, with any optimizer."""

from __future__ import annotations

import pytest
import torch
from support import experiments

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups),
    "momentum and decay": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.1),
    "adam": lambda groups: torch.optim.Adam(groups, weight_decay=0.1),
}
WORDS = {
    "sgd": (),
    "momentum and decay": ("client.momentum=0.9", "client.weight_decay=0.1"),
    "adam": ("client.optimizer=adam", "client.weight_decay=0.1"),
}
ONE_CLIENT = (*experiments.PLAIN, "partition.clients=1", "rounds=1", "client.lr=0.01")


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("factor", [0.0, 0.5, 3.0])
def test_it_is_torchs_own_optimizer_with_two_rates(kind, factor):
    """Two parameter groups, the way a program without this modifier would do it."""
    words = ("modifier=[head_rate]", f"algo.modifiers.head_rate.factor={factor}", *WORDS[kind])
    made = experiments.federation(*ONE_CLIENT, *words)
    model, start = made.model, made.state.w.clone()
    batches = list(made.sampler.indices(0, 0, made.shards[0], made.planned[0]))
    list(made.rounds())
    found = made.state.w.clone()

    model.w.copy_(start)
    layers = [model.parameter_slices[number : number + 2] for number in (0, 2, 4)]
    body, head = [], []
    for place, tensors in enumerate(layers):
        (head if place else body).extend(tensor for tensor, _, _ in tensors)
    optimizer = OPTIMIZERS[kind](
        [{"params": body, "lr": 0.01}, {"params": head, "lr": 0.01 * factor}]
    )
    for index in batches:
        x, y = made.trainer.train.batch(index, training=True)
        model.g.zero_()
        torch.nn.functional.cross_entropy(model.module(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(found, model.w, rtol=0, atol=2e-6)
    moved = (found - start)[model.layers[1].start :].norm()
    assert (moved == 0) == (factor == 0)


def test_ecgr_sees_the_steps_at_their_own_rate():
    """What is sent keeps the length of the whole path, the head's part included."""
    made = experiments.federation(*ONE_CLIENT, "modifier=[head_rate,ecgr]")
    start = made.state.w.clone()
    trainer, lengths = made.trainer, []

    def observed(*arguments):
        trained = trainer(*arguments)
        lengths.append((trained.local.raw_update.norm(), trained.local.update.norm()))
        return trained

    made.trainer = observed
    observed.shared_steps = trainer.shared_steps
    observed.train = trainer.train
    list(made.rounds())
    torch.testing.assert_close(*lengths[0])
    torch.testing.assert_close((made.state.w - start).norm(), lengths[0][1], rtol=1e-4, atol=0)

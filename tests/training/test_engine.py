"""Pieces of the engine: flat views, batches, selections, ranks, and no stray CPU tensor."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import experiments

from fedbench.algorithms.context import ClientResult
from fedbench.algorithms.modifier import Modifier
from fedbench.core.errors import BadInput
from fedbench.core.flat_model import FlatModel, digest
from fedbench.data.batches import Sampler
from fedbench.parallel.exchange import Exchange
from fedbench.parallel.group import Group, balance
from fedbench.training.client import Trainer, mean_loss


def test_parameters_and_gradients_are_views_of_the_flat_vectors():
    model = FlatModel(experiments.parts(*experiments.BATCH_NORM).model)
    assert model.size == sum(parameter.numel() for parameter in model.module.parameters())
    assert model.w.untyped_storage().data_ptr() == model.parameter.untyped_storage().data_ptr()
    model.w.fill_(0.25)
    model.g.fill_(0.5)
    for parameter in model.module.parameters():
        assert (parameter == 0.25).all()
        assert (parameter.grad == 0.5).all()
        if parameter.ndim == 4:
            assert parameter.is_contiguous(memory_format=torch.channels_last)
    model.b.fill_(2.0)
    assert all(
        (value == 2.0).all() for value in model.module.buffers() if value.is_floating_point()
    )


def test_backward_accumulates_into_the_flat_gradient():
    model = FlatModel(experiments.parts(*experiments.BATCH_NORM).model)
    model.module.train()
    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model.module(x).sum().backward()
    assert model.g.abs().sum() > 0
    pieces = [
        (
            parameter.grad.permute(0, 2, 3, 1).flatten()
            if parameter.ndim == 4
            else parameter.grad.flatten()
        )
        for _, modules in model.module.layers()
        for module in modules
        for parameter in module.parameters()
    ]
    assert torch.equal(torch.cat(pieces), model.g)


def test_the_digest_is_of_ordinary_tensors():
    """Flattening must not show in files: names, shapes, order and values are those of the
    module.
    """
    parts = experiments.parts(*experiments.BATCH_NORM)
    before = {name: value.clone() for name, value in parts.model.state_dict().items()}
    state = FlatModel(parts.model).state_dict()
    assert digest(before) == digest(state)
    assert all(value.is_contiguous() for value in state.values())
    state["fc3.bias"][0] += 1e-7
    assert digest(before) != digest(state)


def test_selections():
    model = FlatModel(experiments.parts(*experiments.BATCH_NORM).model)
    last = model.last(2, "algo.layers")
    assert [layer.name for layer in model.layers[-2:]] == ["fc2", "fc3"]
    assert last.size == 84 * 121 + 10 * 85
    norm = model.batch_norm()
    assert norm.size == 44
    rest = model.without(model.everything(), norm)
    assert rest.size == model.size - 44
    vector = torch.zeros(model.size)
    rest.add(vector, torch.ones(rest.size), 2.0)
    norm.write(vector, torch.full((44,), 7.0))
    assert vector.sum().item() == 2.0 * rest.size + 7.0 * 44
    with pytest.raises(BadInput, match=r"algo\.layers=6.*5 layers"):
        model.last(6, "algo.layers")


@settings(max_examples=60, deadline=None)
@given(
    samples=st.integers(0, 70),
    batch=st.one_of(st.integers(1, 80), st.just("full")),
    epochs=st.integers(1, 3),
    steps=st.one_of(st.none(), st.integers(1, 9)),
    drop=st.booleans(),
)
def test_batches(samples, batch, epochs, steps, drop):
    sampler = Sampler(3, batch, epochs, steps, drop)
    own = torch.arange(100, 100 + samples)
    planned = sampler.planned_steps(samples)
    batches = [index.tolist() for index in sampler.indices(0, 1, own, planned)]
    assert len(batches) == planned
    assert sum(map(len, batches)) == (sampler.examples_seen(samples, planned) if planned else 0)
    assert all(1 + drop <= len(index) <= samples for index in batches)
    assert {i for index in batches for i in index} <= set(own.tolist())
    if planned and steps is None:
        per_epoch = planned // epochs
        for epoch in range(epochs):
            seen = [
                i for index in batches[epoch * per_epoch : (epoch + 1) * per_epoch] for i in index
            ]
            assert len(seen) == len(set(seen))
            assert len(seen) >= samples - drop
    if planned:
        again = [index.tolist() for index in sampler.indices(0, 1, own, planned)]
        assert again == batches


def test_batches_depend_on_seed_round_and_client():
    own = torch.arange(64)
    first = lambda sampler, *where: next(sampler.indices(*where, own, 1)).tolist()  # noqa: E731
    sampler = Sampler(0, 32, 1, None, False)
    drawn = [
        first(sampler, 0, 0),
        first(sampler, 1, 0),
        first(sampler, 0, 1),
        first(Sampler(1, 32, 1, None, False), 0, 0),
    ]
    assert len({tuple(index) for index in drawn}) == 4


def test_cohorts_and_batches_are_the_same_for_every_method():
    plans = []
    for algo in ("fedavg", "scaffold", "fedbn", "fednova"):
        made = experiments.federation(f"algo={algo}", "cohort=2", *experiments.PLAIN)
        facts = [made.plan_round(index) for index in range(5)]
        batches = [index.tolist() for index in made.sampler.indices(1, 3, made.shards[3], 4)]
        plans.append(([fact.cohort for fact in facts], batches, made.state.w.tolist()))
    assert all(plan == plans[0] for plan in plans)
    assert len({tuple(cohort) for cohort in plans[0][0]}) > 1


@given(loads=st.lists(st.integers(0, 50), max_size=30), ranks=st.integers(1, 5))
def test_balance(loads, ranks):
    owners = balance(loads, ranks)
    assert len(owners) == len(loads)
    assert all(0 <= owner < ranks for owner in owners)
    totals = [
        sum(max(load, 1) for load, owner in zip(loads, owners, strict=True) if owner == rank)
        for rank in range(ranks)
    ]
    assert max(totals) - min(totals) <= max([max(load, 1) for load in loads], default=0)


def weighted_sum(rows, weights):
    exchange = Exchange(Group(), [0] * len(rows), rows.shape[1], rows.dtype)
    exchange.mine.copy_(rows)
    exchange.send()
    total = torch.zeros(rows.shape[1])
    exchange.add_to(total, slice(0, rows.shape[1]), weights)
    return total


def test_weighted_sum_goes_in_pieces(monkeypatch):
    rows, weights = (
        torch.randn(4, 1000, generator=torch.Generator().manual_seed(1)),
        [0.1, 0.2, 0.3, 0.4],
    )
    whole = weighted_sum(rows, weights)
    monkeypatch.setattr("fedbench.parallel.exchange.PIECE_ELEMENTS", 512)
    assert torch.equal(weighted_sum(rows, weights), whole)
    assert torch.allclose(whole, torch.tensor(weights) @ rows, atol=1e-6)


def test_a_large_cohort_is_taken_in_blocks(monkeypatch):
    whole = experiments.federation("rounds=2", "algo=scaffold", *experiments.BATCH_NORM)
    experiments.final_digest(whole)
    monkeypatch.setattr("fedbench.training.federation.BLOCK_ELEMENTS", 1)
    blocks = experiments.federation("rounds=2", "algo=scaffold", *experiments.BATCH_NORM)
    experiments.final_digest(blocks)
    assert torch.equal(whole.state.w, blocks.state.w)
    assert torch.equal(whole.state.counters, blocks.state.counters)


def test_the_rate_decays_by_round():
    made = experiments.federation(
        "client.lr=0.4",
        "client.lr_decay.factor=0.5",
        "client.lr_decay.every=10",
        *experiments.PLAIN,
    )
    assert [made.plan_round(index).lr for index in (0, 9, 10, 20)] == [0.4, 0.4, 0.2, 0.1]


def test_the_first_new_rate_may_come_earlier_or_later():
    words = (
        "client.lr=0.4",
        "client.lr_decay.factor=0.5",
        "client.lr_decay.every=10",
        *experiments.PLAIN,
    )
    early = experiments.federation(*words, "client.lr_decay.first=9")
    assert [early.plan_round(index).lr for index in (0, 8, 9, 18, 19)] == [0.4, 0.4, 0.2, 0.2, 0.1]
    late = experiments.federation(*words, "client.lr_decay.first=25")
    assert [late.plan_round(index).lr for index in (0, 4, 24, 25, 34, 35)] == [
        0.4,
        0.4,
        0.4,
        0.2,
        0.2,
        0.1,
    ]


@pytest.mark.parametrize("broken", [None, float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_the_mean_loss_has_the_bits_of_sums_in_pytorch(kind, broken):
    generator = torch.Generator().manual_seed(3)
    for steps in range(1, 40):
        losses = list(3.0 * torch.rand(steps, generator=generator, dtype=kind))
        sizes = torch.randint(1, 2000, (steps,), generator=generator).tolist()
        losses[steps // 2] *= 1.0 if broken is None else broken
        total = torch.zeros((), dtype=kind)
        for loss, size in zip(losses, sizes, strict=True):
            total += loss * size
        found, expected = mean_loss(losses, sizes), total / sum(sizes)
        assert found.dtype == kind
        assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))


@dataclass
class Keeping(Modifier):
    """Clients that keep the update that they send, as a method may."""

    order = 99
    remembers = True

    def finish(self, local, memory):
        return ClientResult(client={"kept": local.update, "copy": local.update.clone()})


@pytest.mark.parametrize("modifiers", [{}, {"keeping": Keeping()}])
def test_updates_are_computed_in_rows_only_where_nobody_can_keep_them(modifiers, monkeypatch):
    made = experiments.parts(*experiments.PLAIN, "cohort=2", "rounds=3")
    made.unbound.modifiers = modifiers
    federation, places, train = experiments.assemble(made), [], Trainer.__call__
    monkeypatch.setattr(
        Trainer, "__call__", lambda *given: places.append(given[-1]) or train(*given)
    )
    for _ in federation.rounds():
        pass
    assert len(places) == 6
    assert all((place is None) == bool(modifiers) for place in places)
    for memory in federation.state.clients.values():  # later clients have not written over it
        assert torch.equal(memory["keeping"]["kept"], memory["keeping"]["copy"])
    assert len(federation.state.clients) >= 2 * len(modifiers)

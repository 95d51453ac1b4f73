"""`client.last_batch`: what becomes of an epoch's incomplete last batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import experiments

from fedbench.algorithms.aggregate import solver_norm
from fedbench.data.batches import Sampler

TINY = (*experiments.PLAIN, "rounds=2", "client.batch_size=8")
METHODS = ("algo=fedavg", "algo=fednova", "algo=scaffold", "algo=fedecgr", "algo=fedgsnr")


def sampler(batch: int | str, last_batch: str, batch_norm: bool = False) -> Sampler:
    return Sampler(0, batch, 2, None, batch_norm, last_batch)


@given(
    samples=st.integers(1, 100),
    batch=st.integers(1, 40),
    batch_norm=st.booleans(),
    epochs=st.integers(1, 3),
)
def test_the_batches_of_every_rule(samples, batch, batch_norm, epochs):
    sizes = {}
    for rule in ("keep", "drop", "scaled"):
        own = sampler(batch, rule, batch_norm)
        steps = epochs * own.batches_per_epoch(samples)
        drawn = list(own.indices(0, 0, torch.arange(samples), steps))
        sizes[rule] = [len(index) for index in drawn]
        assert sum(sizes[rule]) == (own.examples_seen(samples, steps) if steps else 0)
        shares = own.shares(samples, steps) if steps else []
        assert (shares or [1.0] * steps) == [own.share(size) for size in sizes[rule]]
    assert sizes["scaled"] == sizes["keep"]
    full = min(samples, batch)
    single = batch_norm and full == 1
    assert sizes["drop"] == ([] if single else [full] * (samples // full) * epochs)
    if samples % full == 0:  # nothing is incomplete, or the only batch is
        assert sizes["drop"] == sizes["keep"]


def test_a_full_batch_is_never_scaled():
    assert sampler("full", "scaled").shares(5, 3) == []
    assert sampler("full", "scaled").share(5) == 1.0


EQUAL = (  # 5 clients of 48 examples
    *("data=mnist", "data.source=synthetic", "data.subset=240", "logger=none"),
    *("partition=iid", "partition.clients=5"),
)


def digest(word: str, last_batch: str, data: tuple[str, ...] = experiments.DATA) -> str:
    config = experiments.config(*data, word, f"client.last_batch={last_batch}", *TINY)
    return experiments.final_digest(experiments.assemble(experiments.prepare(config)))


@pytest.mark.parametrize("word", METHODS)
def test_without_an_incomplete_batch_all_rules_are_one(word):
    assert len({digest(word, rule, EQUAL) for rule in ("keep", "drop", "scaled")}) == 1


@pytest.mark.parametrize("word", ["algo=fedavg", "algo=scaffold"])
def test_with_incomplete_batches_every_rule_is_another(word):
    """A guard for the test above: on these clients the rules matter."""
    assert len({digest(word, rule) for rule in ("keep", "drop", "scaled")}) == 3


def test_a_dropped_batch_is_no_step_and_a_scaled_one_a_part_of_one():
    plans = {}
    for rule in ("keep", "drop", "scaled"):
        made = experiments.federation(f"client.last_batch={rule}", *TINY)
        plans[rule] = made.plan_round(0)
    keep, drop, scaled = plans["keep"], plans["drop"], plans["scaled"]
    for place, samples in enumerate(keep.samples):
        whole, rest = divmod(samples, 8)
        assert keep.steps[place] == 2 * (whole + (rest > 0))
        assert drop.steps[place] == 2 * max(whole, 1)
        assert scaled.steps[place] == keep.steps[place]
        assert drop.norms[place] == drop.steps[place]
        assert scaled.norms[place] == scaled.lengths[place] == pytest.approx(2 * samples / 8)


@settings(max_examples=30)
@given(
    shares=st.lists(st.sampled_from([1.0, 0.5, 0.125]), min_size=1, max_size=8),
    momentum=st.sampled_from([0.0, 0.9]),
    nesterov=st.booleans(),
    proximal=st.sampled_from([0.0, 2.0]),
)
def test_the_norm_of_scaled_steps_is_what_the_optimizer_makes_of_them(
    shares, momentum, nesterov, proximal
):
    """FedNova's normaliser, against torch's own optimizer on unit gradients."""
    nesterov = nesterov and momentum > 0
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum, nesterov=nesterov)
    for share in shares:
        # The pull towards the start, as `grad` hooks add it, and then the share of the batch.
        parameter.grad = share * (1.0 + proximal * parameter.detach())
        optimizer.step()
    norm = solver_norm(len(shares), 0.1, momentum, proximal, nesterov, shares)
    assert norm == pytest.approx(-parameter.item() / 0.1)


def test_scaled_steps_of_plain_sgd_are_a_rate_of_their_own():
    """One epoch, one client: w - eta * sum of share * gradient, by hand."""
    words = ("partition.clients=1", "client.epochs=1", "rounds=1", "client.last_batch=scaled")
    made = experiments.federation(*TINY, *words, "data.subset=21")
    model, train = made.model, made.trainer.train
    own = made.shards[0]
    batches = list(made.sampler.indices(0, 0, own, made.planned[0]))
    expected = model.w.clone()
    start = made.state.w.clone()
    for index in batches:
        x, y = train.batch(index, training=True)
        model.g.zero_()
        torch.nn.functional.cross_entropy(model.module(x), y).backward()
        model.w.add_(model.g, alpha=-0.1 * len(y) / 8)
        expected.copy_(model.w)
    model.w.copy_(start)
    assert [len(index) for index in batches] == [8, 8, 5]
    list(made.rounds())
    torch.testing.assert_close(made.state.w, expected, rtol=0, atol=1e-6)
    assert not math.isclose(float((made.state.w - start).norm()), 0.0)

"""Facts about the gradients that FedGSNR and FedPGVC look at: step budgets, and the penalty rho."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import experiments, observe
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbench.algorithms.fedgsnr import allocate, statistic
from fedbench.training.federation import Federation

ROUNDS = ("rounds=2", "client.epochs=1", "client.lr=0.05", "eval.every=2")


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e3)), min_size=1, max_size=12),
    st.integers(1, 30),
)
def test_allocated_steps_use_the_whole_budget(ratios, steps):
    assume(any(ratios))
    taken, budget = allocate(ratios, steps), len(ratios) * steps
    assert sum(taken) == budget
    for ratio, count in zip(ratios, taken, strict=True):
        assert (count > 0) == (ratio > 0)
    shares = [budget * ratio / sum(ratios) for ratio in ratios]
    if all(share >= 1 or share == 0 for share in shares):
        assert all(
            abs(count - share) < 1 + 1e-9 for count, share in zip(taken, shares, strict=True)
        )


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(1, 6), st.integers(1, 50), st.integers(0, 10**6))
def test_some_client_is_always_active(clients, size, batch, seed):
    """sum p_k m_k.m = ||m||^2, and the variances' part is never negative."""
    draw = torch.Generator().manual_seed(seed)
    m = torch.randn(clients, size, generator=draw, dtype=torch.float64)
    s = torch.rand(clients, size, generator=draw, dtype=torch.float64)
    p = torch.rand(clients, 1, generator=draw, dtype=torch.float64) + 1e-3
    p = p / p.sum()
    mean = (p * m).sum(dim=0)
    variance = (p * s).sum(dim=0) + (p * (m - mean) ** 2).sum(dim=0)
    ratios = [statistic(m[k], s[k], mean, variance, batch)[0] for k in range(clients)]
    assert min(ratios) >= 0
    assert max(ratios) > 0
    assert sum(allocate(ratios, 5)) == 5 * clients


@pytest.mark.parametrize("seed", [0, 1])
def test_a_partial_cohort_shares_its_own_budget(seed):
    words = (
        "algo=fedgsnr",
        "algo.steps=4",
        "cohort=3",
        f"seed={seed}",
        "client.batch_size=2",
        "client.lr=0.3",
    )
    unequal = False
    for record in experiments.federation(*ROUNDS, "rounds=4", *words, *experiments.PLAIN).rounds():
        steps = [row["steps"] for row in record.clients]
        assert len(steps) == 3
        assert sum(steps) == 3 * 4
        unequal |= len(set(steps)) > 1
    assert unequal


def rhos(*words: str) -> tuple[Federation, list[tuple[Tensor, Tensor, Tensor]]]:
    """A run of Eq. 15, and of every step rho, g and the parameters before it."""
    made, seen = experiments.federation(*ROUNDS, "algo=fedpgvc", "algo.rho=eq15", *words), []
    where = made.algorithm.modifiers["pgvc"].where

    def look(local, memory, before):
        rho, g = memory.scratch["rho"], where.read(before)
        assert torch.equal(where.read(local.model.g), rho * g)
        seen.append((rho, g, local.model.w.clone()))

    observe.after(made, "grad", "pgvc", look)
    experiments.final_digest(made)
    return made, seen


@pytest.mark.parametrize(
    "network", [(*experiments.PLAIN, "algo.layers=2"), ("model=lenet", "algo.layers=5")]
)
def test_rho_is_the_mean_of_losses_times_gradients(network):
    """1/B sum_b l_b grad l_b, an example at a time, on the first batch of the first client."""
    made, seen = rhos("rounds=1", "client.steps=1", *network)
    rho, _, w = seen[0]
    made.model.w.copy_(w)
    (index,) = made.sampler.indices(0, 0, made.shards[0], 1)
    expected = torch.zeros_like(w)
    for one in index.split(1):
        x, y = made.trainer.train.batch(one)
        made.model.g.zero_()
        loss = cross_entropy(made.model.module(x), y)
        loss.backward()
        expected += loss.item() * made.model.g / len(index)
    assert len(index) > 1
    where = made.algorithm.modifiers["pgvc"].where
    assert torch.allclose(rho, where.read(expected), atol=1e-6)
    assert rho.norm() > 0.1


def test_the_mean_entry_of_rho_over_the_output_layer_is_zero():
    """Class gradients of a softmax sum to zero: one number a layer by the mean would freeze it."""
    _, seen = rhos("algo.layers=1", *experiments.PLAIN)
    for rho, _, _ in seen:
        assert rho.norm() > 1e-3
        assert abs(rho.mean().item()) < 1e-6 * rho.abs().max().item() * len(rho)


def test_with_one_example_equation_15_is_never_negative():
    _, seen = rhos("client.batch_size=1", "client.steps=4", "algo.layers=2", *experiments.PLAIN)
    assert len(seen) == 2 * 5 * 4
    for rho, g, _ in seen:
        assert (rho * g >= 0).all()
        assert (rho * g > 0).any()

"""Properties of the baselines: state equations, parts that stay on the client, one round by
hand.
"""

from __future__ import annotations

import pytest
import torch
from support import experiments

ROUNDS = ("rounds=3", "client.epochs=1", "client.lr=0.05")


@pytest.mark.parametrize(
    "algo",
    [
        "scaffold",
        "fedpvr",
        "fedavg modifier=[pvr] server.weights=uniform",
        "scaffold server.weights=samples",
    ],
)
@pytest.mark.parametrize("cohort", ["null", "2"])
def test_control_variates_keep_their_mean(algo, cohort):
    """c = sum_k p_k c_k over all clients after every round, also under partial participation."""
    made = experiments.federation(
        *ROUNDS,
        "rounds=4",
        f"algo={algo.split()[0]}",
        *algo.split()[1:],
        f"cohort={cohort}",
        *experiments.PLAIN,
    )
    (name,) = made.algorithm.modifiers
    weights = made.weights(made.eligible, made.eligible)
    for _ in made.rounds():
        zero = torch.zeros_like(made.state.server[name]["c"])
        kept = [
            made.state.clients[k][name]["c"] if k in made.state.clients else zero
            for k in made.eligible
        ]
        mean = sum(weight * value for weight, value in zip(weights, kept, strict=True))
        assert torch.allclose(made.state.server[name]["c"], mean, atol=1e-6)
        assert made.state.server[name]["c"].norm() > 1e-3


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_the_server_of_feddyn_knows_the_mean_of_all_gradient_states(weights):
    """h = -(alpha/m) sum_k q_k with q_k = -s_k / alpha.

    Both start from zero; s_k falls by alpha (y_k - w) and h by alpha sum_S share_k (y_k - w): h =
    sum_k share_k s_k over all clients, the absent ones included.
    """
    words = ("algo=feddyn", "algo.alpha=0.5", "cohort=2", f"server.weights={weights}")
    made = experiments.federation(*ROUNDS, "rounds=5", *words, *experiments.PLAIN)
    shares = made.weights(made.eligible, made.eligible)
    for _ in made.rounds():
        own = {k: memory["dynamic"]["s"] for k, memory in made.state.clients.items()}
        mean = sum(
            share * own[k] for k, share in zip(made.eligible, shares, strict=True) if k in own
        )
        assert torch.allclose(made.state.server_opt["h"], mean, atol=1e-6)
        assert mean.norm() > 1e-2
    assert len(made.state.clients) == 5


def test_one_full_batch_step_makes_the_variate_the_gradient():
    """With one step option II is option I: c_k is the client's gradient at the received model."""
    made = experiments.federation(
        "algo=scaffold", "client.steps=1", "client.batch_size=full", "rounds=1", *experiments.PLAIN
    )
    model, start = made.model, made.state.w.clone()
    expected = {}
    for client, own in enumerate(made.shards):
        model.w.copy_(start)
        model.g.zero_()
        x, y = made.trainer.train.batch(own)
        torch.nn.functional.cross_entropy(model.module(x), y).backward()
        expected[client] = model.g.clone()
    experiments.final_digest(made)
    for client, gradient in expected.items():
        assert torch.allclose(
            made.state.clients[client]["control_variate"]["c"], gradient, atol=1e-5
        )


def test_fedbn_keeps_batch_norm_on_the_client():
    made = experiments.federation(*ROUNDS, "algo=fedbn", *experiments.BATCH_NORM)
    kept, shared = made.algorithm.kept, made.algorithm.shared
    assert kept.size == 2 * (6 + 16)
    assert kept.size + shared.size == made.model.size
    start_w, start_b = made.state.w.clone(), made.state.b.clone()
    experiments.final_digest(made)
    assert torch.equal(kept.read(made.state.w), kept.read(start_w))
    assert torch.equal(made.state.b, start_b)
    assert not torch.equal(shared.read(made.state.w), shared.read(start_w))
    own = [made.state.clients[k]["local"] for k in made.eligible]
    assert not torch.equal(own[0]["w"], own[1]["w"])
    assert not torch.equal(own[0]["b"], own[1]["b"])


def test_local_communicates_nothing():
    made = experiments.federation(*ROUNDS, "algo=local", *experiments.PLAIN)
    start = made.state.w.clone()
    records = list(made.rounds())
    assert torch.equal(made.state.w, start)
    assert records[-1].numbers["bytes_up"] == records[-1].numbers["bytes_down"] == 0
    assert records[-1].score.predictions.shape[0] == len(made.eligible)


def test_local_client_is_fedavg_with_that_client_alone():
    """What a client learns alone equals FedAvg on a partition in which only it holds data."""
    made = experiments.federation(*ROUNDS, "algo=local", *experiments.PLAIN)
    experiments.final_digest(made)
    alone = experiments.federation(*ROUNDS, *experiments.PLAIN)
    alone.eligible = [2]
    experiments.final_digest(alone)
    assert torch.allclose(alone.state.w, made.state.clients[2]["local"]["w"], atol=1e-5)


def test_centralized_is_one_client_with_all_data():
    made = experiments.federation(*ROUNDS, "algo=centralized", *experiments.PLAIN)
    assert made.sizes == [300]
    assert list(made.rounds())[-1].numbers["gradients"] == 3 * 300


def test_batch_norm_statistics_are_averaged_and_counters_take_the_largest():
    made = experiments.federation(
        "rounds=1", "algo=fedavgm", "server.lr=0.5", "client.epochs=1", *experiments.BATCH_NORM
    )
    finals = {}
    original = made.state.remember

    def remember(client, finished):
        finals[client] = (made.model.b.clone(), made.model.counters.clone())
        original(client, finished)

    made.state.remember = remember
    experiments.final_digest(made)
    weights = made.weights(made.eligible, made.eligible)
    mean = sum(weight * finals[k][0] for weight, k in zip(weights, made.eligible, strict=True))
    assert torch.allclose(made.state.b, mean, atol=1e-6)
    assert torch.equal(
        made.state.counters,
        torch.stack([counters for _, counters in finals.values()]).max(dim=0).values,
    )


def test_fedavg_by_hand():
    """One round against an ordinary PyTorch loop over modules, optimizers and state
    dictionaries.
    """
    import copy

    made = experiments.federation(
        "rounds=1",
        "client.epochs=1",
        "client.momentum=0.9",
        "client.weight_decay=0.01",
        *experiments.BATCH_NORM,
    )
    start = copy.deepcopy(made.model.module)
    facts = made.plan_round(0)
    total = None
    for position, client in enumerate(facts.cohort):
        module = copy.deepcopy(start).to(memory_format=torch.contiguous_format)
        module.train()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        for index in made.sampler.indices(0, client, made.shards[client], facts.steps[position]):
            x, y = made.trainer.train.batch(index)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        weighted = {
            k: facts.weights[position] * v.double()
            for k, v in module.state_dict().items()
            if v.is_floating_point()
        }
        total = weighted if total is None else {k: total[k] + weighted[k] for k in total}
    experiments.final_digest(made)
    made.load_global()
    state = made.model.state_dict()
    for name, value in total.items():
        assert torch.allclose(state[name].double(), value, atol=2e-5), name

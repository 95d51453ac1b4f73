"""Properties that hold to the bit: strength zero is FedAvg, masks, fixed points and state equations."""

from __future__ import annotations

import pytest
import small
import torch

UNIFORM = "server.weights=uniform"
ROUNDS = ("rounds=3", "client.epochs=1", "client.lr=0.05")


def model_after(*overrides: str) -> str:
    made = small.federation(*ROUNDS, *overrides)
    small.final_digest(made)
    return small.model_digest(made)


@pytest.mark.parametrize("network", [small.PLAIN, small.BATCH_NORM], ids=["plain", "batch_norm"])
@pytest.mark.parametrize(
    "identity",
    [
        ("algo=fedprox", "algo.mu=0"),
        ("algo=fedavgm", "algo.momentum=0"),
        ("algo=fedavgm", "algo.momentum=0", "algo.variant=nesterov"),
        ("algo=fednova", "client.steps=4"),
        ("algo=fedavg", "modifier=[pvr]", "algo.modifiers.pvr.layers=0"),
    ],
    ids=lambda words: " ".join(words),
)
def test_strength_zero_is_fedavg(network, identity):
    steps = [word for word in identity if word.startswith("client.steps")]
    assert model_after(*network, *identity) == model_after("algo=fedavg", *network, *steps)


def test_fedbn_without_batch_norm_is_fedavg():
    assert model_after("algo=fedbn", *small.PLAIN) == model_after("algo=fedavg", *small.PLAIN)


def test_scaffold_in_the_first_round_is_uniform_fedavg():
    assert model_after("algo=scaffold", "rounds=1", *small.PLAIN) == model_after("rounds=1", UNIFORM, *small.PLAIN)


def test_methods_do_differ():
    """The comparisons above could not fail if nothing ever mattered."""
    methods = [
        ("algo=fedavg",),
        ("algo=fedprox", "algo.mu=1"),
        ("algo=fedavgm",),
        ("algo=fednova",),
        ("algo=scaffold",),
        ("algo=fedavg", "modifier=[pvr]"),
        ("algo=fedavg", UNIFORM),
        ("algo=centralized",),
    ]
    assert len({model_after(*small.PLAIN, *method) for method in methods}) == len(methods)


@pytest.mark.parametrize(
    "algo", ["scaffold", "fedavg modifier=[pvr] server.weights=uniform", "scaffold server.weights=samples"]
)
@pytest.mark.parametrize("cohort", ["null", "2"])
def test_control_variates_keep_their_mean(algo, cohort):
    """c = sum_k p_k c_k over all clients after every round, also under partial participation."""
    made = small.federation(
        *ROUNDS, "rounds=4", f"algo={algo.split()[0]}", *algo.split()[1:], f"cohort={cohort}", *small.PLAIN
    )
    (name,) = made.algorithm.modifiers
    weights = made.weights(made.eligible, made.eligible)
    for _ in made.rounds():
        zero = torch.zeros_like(made.state.server[name]["c"])
        kept = [made.state.clients[k][name]["c"] if k in made.state.clients else zero for k in made.eligible]
        mean = sum(weight * value for weight, value in zip(weights, kept, strict=True))
        assert torch.allclose(made.state.server[name]["c"], mean, atol=1e-6)
        assert made.state.server[name]["c"].norm() > 1e-3


def test_one_full_batch_step_makes_the_variate_the_gradient():
    """With one step option II is option I: c_k is the client's gradient at the received model."""
    made = small.federation("algo=scaffold", "client.steps=1", "client.batch_size=full", "rounds=1", *small.PLAIN)
    model, start = made.model, made.state.w.clone()
    expected = {}
    for client, own in enumerate(made.shards):
        model.w.copy_(start)
        model.g.zero_()
        x, y = made.trainer.train.batch(own)
        torch.nn.functional.cross_entropy(model.module(x), y).backward()
        expected[client] = model.g.clone()
    small.final_digest(made)
    for client, gradient in expected.items():
        assert torch.allclose(made.state.clients[client]["control_variate"]["c"], gradient, atol=1e-5)


def test_partial_variates_leave_the_rest_untouched():
    """Outside the mask FedPVR's first two rounds move exactly as FedAvg's local steps do from the same model."""
    made = small.federation(*ROUNDS, "modifier=[pvr]", "algo.modifiers.pvr.layers=1", *small.PLAIN)
    head = made.model.layers[-1]
    assert made.algorithm.modifiers["pvr"].where.size == head.stop - head.start
    seen = []

    correct = made.algorithm.modifiers["pvr"].grad

    def watch(local, memory):
        before = local.model.g.clone()
        correct(local, memory)
        changed = (local.model.g != before).nonzero().flatten()
        seen.append((changed.min().item(), changed.max().item()) if len(changed) else None)

    made.trainer.hooks["grad"] = [("pvr", watch)]
    small.final_digest(made)
    touched = [span for span in seen if span is not None]
    assert touched
    assert min(low for low, _ in touched) >= head.start


def test_fedbn_keeps_batch_norm_on_the_client():
    made = small.federation(*ROUNDS, "algo=fedbn", *small.BATCH_NORM)
    kept, shared = made.algorithm.kept, made.algorithm.shared
    assert kept.size == 2 * (6 + 16)
    assert kept.size + shared.size == made.model.size
    start_w, start_b = made.state.w.clone(), made.state.b.clone()
    small.final_digest(made)
    assert torch.equal(kept.read(made.state.w), kept.read(start_w))
    assert torch.equal(made.state.b, start_b)
    assert not torch.equal(shared.read(made.state.w), shared.read(start_w))
    own = [made.state.clients[k]["local"] for k in made.eligible]
    assert not torch.equal(own[0]["w"], own[1]["w"])
    assert not torch.equal(own[0]["b"], own[1]["b"])


def test_local_communicates_nothing():
    made = small.federation(*ROUNDS, "algo=local", *small.PLAIN)
    start = made.state.w.clone()
    records = list(made.rounds())
    assert torch.equal(made.state.w, start)
    assert records[-1].numbers["bytes_up"] == records[-1].numbers["bytes_down"] == 0
    assert records[-1].score.predictions.shape[0] == len(made.eligible)


def test_local_client_is_fedavg_with_that_client_alone():
    """What a client learns alone equals FedAvg on a partition in which only it holds data."""
    made = small.federation(*ROUNDS, "algo=local", *small.PLAIN)
    small.final_digest(made)
    alone = small.federation(*ROUNDS, *small.PLAIN)
    alone.eligible = [2]
    small.final_digest(alone)
    assert torch.allclose(alone.state.w, made.state.clients[2]["local"]["w"], atol=1e-5)


def test_centralized_is_one_client_with_all_data():
    made = small.federation(*ROUNDS, "algo=centralized", *small.PLAIN)
    assert made.sizes == [300]
    assert list(made.rounds())[-1].numbers["gradients"] == 3 * 300


def test_batch_norm_statistics_are_averaged_and_counters_take_the_largest():
    made = small.federation("rounds=1", "algo=fedavgm", "server.lr=0.5", "client.epochs=1", *small.BATCH_NORM)
    finals = {}
    original = made.state.remember

    def remember(client, finished):
        finals[client] = (made.model.b.clone(), made.model.counters.clone())
        original(client, finished)

    made.state.remember = remember
    small.final_digest(made)
    weights = made.weights(made.eligible, made.eligible)
    mean = sum(weight * finals[k][0] for weight, k in zip(weights, made.eligible, strict=True))
    assert torch.allclose(made.state.b, mean, atol=1e-6)
    assert torch.equal(
        made.state.counters, torch.stack([counters for _, counters in finals.values()]).max(dim=0).values
    )


def test_communication_is_counted_as_the_papers_do():
    d = small.federation(*small.PLAIN).model.size

    def up(*words: str) -> dict[str, float]:
        return next(small.federation("rounds=1", *small.PLAIN, *words).rounds()).numbers

    assert up()["bytes_up"] == up()["bytes_down"] == 4 * d * 5
    assert up("cohort=2")["bytes_up"] == 4 * d * 2
    assert up("algo=scaffold")["bytes_up"] == up("algo=scaffold")["bytes_down"] == 2 * 4 * d * 5
    assert up("algo=fednova")["bytes_up"] == 4 * (d + 2) * 5


def test_fedavg_by_hand():
    """One round against an ordinary PyTorch loop over modules, optimizers and state dictionaries."""
    import copy

    made = small.federation(
        "rounds=1", "client.epochs=1", "client.momentum=0.9", "client.weight_decay=0.01", *small.BATCH_NORM
    )
    start = copy.deepcopy(made.model.module)
    facts = made.plan(0)
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
            k: facts.weights[position] * v.double() for k, v in module.state_dict().items() if v.is_floating_point()
        }
        total = weighted if total is None else {k: total[k] + weighted[k] for k in total}
    small.final_digest(made)
    made.load_global()
    state = made.model.state_dict()
    for name, value in total.items():
        assert torch.allclose(state[name].double(), value, atol=2e-5), name

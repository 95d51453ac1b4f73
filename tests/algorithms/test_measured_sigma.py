"""`algo.sigma=measured`: FedPGVC's sigma from a short IID run of the same experiment (Eq. 9)."""

from __future__ import annotations

import json

import pytest
import torch
from support import experiments
from support.faulty_runs import SETTING, whole_and_resumed

from fedbench.algorithms.modifier import Modifier

IID = (
    *("data=mnist", "data.source=synthetic", "data.subset=300", "logger=none"),
    *("partition=iid", "partition.clients=5", *experiments.PLAIN, "client.batch_size=16"),
)


class Observer(Modifier):
    """Notes the norms of the last two layers' gradients in every local step."""

    def __init__(self):
        self.name, self.norms = "observer", []

    def grad(self, local, memory):
        g = [local.model.g[layer.start : layer.stop] for layer in local.model.layers[-2:]]
        self.norms.append([float(layer.norm()) for layer in g])


def observed_norms(rounds: int) -> torch.Tensor:
    """Of FedAvg on IID data, step by step."""
    words = (*IID, "algo=fedavg", f"rounds={rounds}")
    made = experiments.assemble(experiments.prepare(experiments.config(*words)))
    observer = Observer()
    made.trainer.hooks["grad"] = [("observer", observer.grad)]
    receive = made.state.receive
    made.state.receive = lambda client: (receive(client)[0], {"observer": None})
    list(made.rounds())
    return torch.tensor(observer.norms, dtype=torch.float64)


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("how", ["measured", "measured_mean"])
def test_on_iid_data_it_is_the_runs_own_norms(how, rounds):
    norms = observed_norms(rounds)
    expected = norms.std(dim=0, correction=0) if how == "measured" else norms.mean(dim=0)
    words = ("algo=fedpgvc", f"algo.sigma={how}", f"algo.sigma_rounds={rounds}", "rounds=1")
    made = experiments.assemble(experiments.prepare(experiments.config(*IID, *words)))
    before = made.state.w.clone()
    made.measure()
    assert torch.equal(made.state.w, before)
    assert made.totals.gradients == rounds * 2 * 300
    found = made.facts()
    assert list(found) == ["sigma/fc2", "sigma/fc3"]
    torch.testing.assert_close(
        torch.tensor(list(found.values())), expected.float(), rtol=1e-4, atol=0
    )


def test_measured_values_given_as_a_number_are_the_same_run():
    """One selected layer, so that one number says it."""
    words = (*experiments.PLAIN, "algo=fedpgvc", "algo.layers=1", "rounds=2")
    made = experiments.federation(*words, "algo.sigma=measured")
    digest = experiments.final_digest(made)
    (sigma,) = made.facts().values()
    given = experiments.federation(*words, f"algo.sigma={sigma!r}")
    experiments.final_digest(given)
    torch.testing.assert_close(given.state.w, made.state.w, rtol=0, atol=1e-6)
    other = experiments.federation(*words, f"algo.sigma={2 * sigma!r}")
    assert experiments.final_digest(other) != digest


def test_every_layer_moves_by_eta_sigma_a_step():
    words = ("algo=fedpgvc", "algo.sigma=measured", "client.steps=1", "cohort=1", "rounds=1")
    made = experiments.federation(*experiments.PLAIN, *words)
    start = made.state.w.clone()
    list(made.rounds())
    for layer, sigma in zip(made.model.layers[-2:], made.facts().values(), strict=True):
        moved = (made.state.w - start)[layer.start : layer.stop].norm()
        assert float(moved) == pytest.approx(0.1 * sigma, rel=1e-4)


@pytest.mark.heavy
def test_any_number_of_workers_and_a_resumed_run_measure_the_same(fedbench):
    setting = (*SETTING, "algo=fedpgvc", "algo.sigma=measured", "algo.sigma_rounds=2")
    whole, resumed = whole_and_resumed(fedbench, *setting)
    first, second = (
        json.loads((ended.folder / "summary.json").read_text())["measured"]
        for ended in (whole, resumed)
    )
    assert first == second
    assert all(value > 0 for value in first.values())
    assert len(first) == 2

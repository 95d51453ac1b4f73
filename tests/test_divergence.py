"""A run whose training breaks down says so, with round, client, layer and cause; a sweep goes on after it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import small
import torch
from faults_helper import WORDS

from fedbench.bookkeeping import DIVERGED_FACTOR, loss_limit

QUICK = ("rounds=3", "client.epochs=1", "partition.clients=4", "runtime.workers=1")
ALWAYS = ("algo=scaffold", "algo=fedgen", "algo=pfedsim", "algo=fedgsnr", "modifier=[ecgr]", "algo=local")
# A proximal weight with which such rates are not refused.
PULL = {
    "algo=fedprox": ("algo.mu=1e-31",),
    "algo=feddyn": ("algo.alpha=1.1e-30",),
    "modifier=[prox]": ("algo.modifiers.prox.mu=1e-31",),
}


def diverged(made):
    """The records of a federation until it stops; the last one's divergence."""
    records = list(made.rounds())
    return len(records), records[-1].diverged


@pytest.mark.parametrize(
    "word", [pytest.param(word, marks=() if word in ALWAYS else pytest.mark.heavy) for word in WORDS]
)
@pytest.mark.parametrize("lr", [1e6, 1e18, 1e30])
def test_every_method_ends_as_diverged_and_not_with_an_exception(word, lr):
    """Whatever a method does with numbers that are not finite, it must get as far as the record."""
    words = (word, f"client.lr={lr:g}", "rounds=6", *PULL.get(word, ()))
    made = small.federation(*words, *small.BATCH_NORM)
    rounds, found = diverged(made)
    if lr > 1e6:
        assert found is not None
        assert rounds <= 6
        assert found.cause


def test_a_loss_names_the_client_and_the_layer_of_its_step():
    made = small.federation("rounds=2", *small.PLAIN)
    original = made.trainer._steps

    def steps(facts, local, memories):
        loss, norms = original(facts, local, memories)
        if facts.index == 1 and local.client == 3:
            made.model.w[made.model.layers[1].start + 5] = math.nan
            loss = torch.tensor(math.nan)
        return loss, norms

    made.trainer._steps = steps
    rounds, found = diverged(made)
    assert rounds == 2
    assert (found.client, found.layer, found.cause) == (3, "fc2", "training loss nan on client 3")


def test_a_loss_past_the_stated_multiple_names_the_largest_step():
    limit = loss_limit(10)
    assert limit == DIVERGED_FACTOR * math.log(10)
    for factor, broken in ((0.99, False), (1.01, True)):
        made = small.federation("rounds=1", *small.PLAIN)
        original = made.trainer._steps

        def steps(facts, local, memories, made=made, original=original, factor=factor):
            _, norms = original(facts, local, memories)
            made.model.w[made.model.layers[2].start] += 100.0
            return torch.tensor(factor * limit), norms

        made.trainer._steps = steps
        made.evaluate = lambda: None
        made.settings.eval.every = 5
        made.settings.rounds = 2
        found = next(made.rounds()).diverged
        assert (found is not None) == broken
        if broken:
            assert (found.client, found.layer) == (0, "fc3")


@pytest.mark.parametrize("what", ["weights", "statistics"])
def test_what_breaks_after_the_server_step_names_the_layer(what):
    made = small.federation("rounds=1", *small.BATCH_NORM)
    original = made.server_step

    def server_step(*arguments):
        original(*arguments)
        layers = made.model.layers if what == "weights" else made.model.buffer_layers
        vector = made.state.w if what == "weights" else made.state.b
        vector[layers[1].stop - 1] = math.inf

    made.server_step = server_step
    _, found = diverged(made)
    assert (found.client, found.layer) == (None, made.model.layers[1].name)
    assert found.cause == f"non-finite {what} after the server step"


def test_a_client_whose_last_step_broke_is_named():
    """Its loss was taken before that step, and looks well."""
    made = small.federation("rounds=1", *small.PLAIN)
    original = made.trainer._steps

    def steps(facts, local, memories):
        loss, norms = original(facts, local, memories)
        if local.client == 2:
            made.model.w[made.model.layers[0].start] = math.inf
        return loss, norms

    made.trainer._steps = steps
    _, found = diverged(made)
    assert (found.client, found.layer) == (2, "fc1")


def test_buffers_are_divided_as_the_layers_are():
    model = small.federation("rounds=1", *small.BATCH_NORM).model
    assert [layer.name for layer in model.buffer_layers] == [layer.name for layer in model.layers]
    assert model.buffer_layers[0].start == 0
    assert model.buffer_layers[-1].stop == len(model.b)
    assert sum(layer.stop - layer.start for layer in model.buffer_layers) == len(model.b)


def test_the_summary_has_round_client_layer_and_cause_and_the_sweep_goes_on(fedbench):
    run = fedbench("-m", *QUICK, "client.lr=1e18,0.1", "runtime.workers=2")
    assert run.status == 0, run.err
    found = [json.loads((folder / "summary.json").read_text()) for folder in run_folders(run.out)]
    assert [facts["status"] for facts in found] == ["diverged", "finished"]
    assert found[0]["diverged"].keys() == {"round", "client", "layer", "cause"}
    assert found[0]["diverged"]["layer"] == "fc1"
    assert f"training loss nan on client {found[0]['diverged']['client']}, layer fc1" in run.out


def run_folders(out: str) -> list[Path]:
    return [Path(line.removeprefix("run: ")) for line in out.splitlines() if line.startswith("run: ")]

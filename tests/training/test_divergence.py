"""A run whose training breaks down says so, with round, client, layer and cause; a sweep goes on
after it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import experiments
from support.faulty_runs import WORDS

from fedbench.training.divergence import broken_step, loss_limit, worst

QUICK = ("rounds=3", "client.epochs=1", "partition.clients=4", "runtime.workers=1")
ALWAYS = (
    "algo=scaffold",
    "algo=fedgen",
    "algo=pfedsim",
    "algo=fedgsnr",
    "modifier=[ecgr]",
    "algo=local",
)
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
    "word",
    [pytest.param(word, marks=() if word in ALWAYS else pytest.mark.heavy) for word in WORDS],
)
@pytest.mark.parametrize("lr", [1e6, 1e18, 1e30])
def test_every_method_ends_as_diverged_and_not_with_an_exception(word, lr):
    """Whatever a method does with numbers that are not finite, it must get as far as the record."""
    words = (word, f"client.lr={lr:g}", "rounds=6", *PULL.get(word, ()))
    made = experiments.federation(*words, *experiments.BATCH_NORM)
    *before, last = made.rounds()
    assert [record.diverged for record in before] == [None] * len(before)
    found = last.diverged
    if found is None:  # with batch norm a method may live through one such rate
        assert lr == 1e6
        assert last.round == 6
        assert math.isfinite(last.score.loss)
        return
    assert last.score is None
    assert re.match("training loss|test loss|non-finite weights|non-finite statistics", found.cause)
    assert found.layer in [layer.name for layer in made.model.layers]
    own_models = made.algorithm.personal and "after the server step" not in found.cause
    assert found.client in range(5) or not own_models


def test_a_loss_names_the_client_and_the_layer_of_its_step():
    made = experiments.federation("rounds=2", *experiments.PLAIN)
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
    assert loss_limit(10, 1000.0) == 1000.0 * math.log(10)
    for factor, broken in ((0.99, False), (1.01, True)):
        made = experiments.federation("rounds=1", *experiments.PLAIN)
        initial = made.divergence.initial_loss(0)
        made.divergence.initial_loss = lambda client, initial=initial: initial
        limit = max(loss_limit(10, 1000.0), 1000.0 * initial)
        original = made.trainer._steps

        def steps(facts, local, memories, made=made, original=original, loss=factor * limit):
            _, norms = original(facts, local, memories)
            made.model.w[made.model.layers[2].start] += 100.0
            return torch.tensor(loss), norms

        made.trainer._steps = steps
        made.evaluate = lambda: None
        made.settings.eval.every = 5
        made.settings.rounds = 2
        found = next(made.rounds()).diverged
        assert (found is not None) == broken
        if broken:
            assert (found.client, found.layer) == (0, "fc3")


def large_features(path: Path) -> None:
    """Two classes whose inputs are so large that every initial model has a loss far above that of
    guessing.
    """
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(120, 6)).astype(np.float32) * 1e6, np.arange(120) % 2
    np.savez(path, x_train=x[:80], y_train=y[:80], x_test=x[80:], y_test=y[80:])


def test_a_loss_that_was_large_from_the_start_is_no_divergence(fedbench, tmp_path):
    """The limit is the same for any number of workers; a loss past the start's multiple still ends
    the run.
    """
    large_features(tmp_path / "large.npz")
    words = (*QUICK, "data=npz", "data.path=large.npz", "model=linear")
    found = []
    for workers in (1, 2):
        run = fedbench(
            *words, "client.lr=1e-14", f"runtime.workers={workers}", f"results=workers{workers}"
        )
        assert run.status == 0, run.err
        found.append(json.loads((run.folder / "summary.json").read_text()))
        rows = (run.folder / "metrics.csv").read_text().splitlines()
        assert float(rows[-1].split(",")[2]) > loss_limit(2, 1000.0)
    assert [facts["status"] for facts in found] == ["finished", "finished"]
    assert found[0]["digest"] == found[1]["digest"]
    run = fedbench(*words, "client.lr=100")
    assert "diverged in round 1: training loss" in run.out


def test_the_initial_model_is_asked_once_and_only_about_a_suspicious_loss():
    made = experiments.federation("rounds=1", *experiments.PLAIN)
    asked, limits = [], made.divergence
    limits.initial_loss = lambda client: asked.append(client) or 50.0
    assert not limits.exceeded(limits.guessing, 3)
    assert limits.exceeded(math.nan, 3)
    assert asked == []
    assert not limits.exceeded(49_999.0, 3)
    assert limits.exceeded(50_001.0, 3)
    assert asked == [3]
    limits.initial_loss = lambda client: math.inf
    assert limits.exceeded(limits.guessing + 1)


def test_the_initial_model_is_that_of_the_seed_after_rounds_and_after_a_resume():
    made = experiments.federation("rounds=2", *experiments.PLAIN)
    before = [made.divergence.initial_loss(client) for client in (None, 0, 4)]
    for _ in made.rounds():
        pass
    assert [made.divergence.initial_loss(client) for client in (None, 0, 4)] == before
    made.load_global()
    assert made.evaluator.score().loss != before[0]
    resumed = experiments.federation("rounds=2", *experiments.PLAIN)
    resumed.state.restore_server(made.state.server_tensors())
    assert [resumed.divergence.initial_loss(client) for client in (None, 0, 4)] == before


@pytest.mark.parametrize(
    ("word", "lr"),
    [
        ("algo=fedrep", 1e6),
        ("algo=pfedsim", 1e5),
        ("algo=fedbn", 1e10),
        ("algo=local", 1e30),
        ("algo=fedper", 1e30),
    ],
)
def test_a_test_loss_of_clients_own_models_names_the_client_and_the_layer(word, lr):
    """With one step a round the training loss, taken before it, is well: only the test shows what
    became of them.
    """
    made = experiments.federation(
        word, f"client.lr={lr:g}", "client.steps=1", "rounds=6", *experiments.BATCH_NORM
    )
    _, found = diverged(made)
    assert found.client in range(5)
    assert found.layer in [layer.name for layer in made.model.layers]


def test_the_worst_client_is_named_by_whichever_worker_keeps_it(fedbench):
    """With one worker and with two, the same client, layer and cause."""
    words = (*QUICK, "algo=local", "client.lr=1e30", "client.steps=1", "rounds=1")
    found = []
    for workers in (1, 2):
        run = fedbench(*words, f"runtime.workers={workers}", f"results=workers{workers}")
        assert run.status == 0, run.err
        found.append(json.loads((run.folder / "summary.json").read_text())["diverged"])
    assert found[0] == found[1]
    assert found[0]["cause"].endswith(f"of client {found[0]['client']}'s own model")
    assert found[0]["layer"]


def test_the_worst_is_the_first_that_is_not_finite_else_the_largest():
    assert worst({1: 2.0, 4: 9.0, 6: 3.0}) == 4
    assert worst({1: 2.0, 4: math.inf, 6: math.nan}) == 4


@pytest.mark.parametrize("what", ["weights", "statistics"])
def test_what_breaks_after_the_server_step_names_the_layer(what):
    made = experiments.federation("rounds=1", *experiments.BATCH_NORM)
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
    made = experiments.federation("rounds=1", *experiments.PLAIN)
    original = made.trainer._steps

    def steps(facts, local, memories):
        loss, norms = original(facts, local, memories)
        if local.client == 2:
            made.model.w[made.model.layers[0].start] = math.inf
        return loss, norms

    made.trainer._steps = steps
    _, found = diverged(made)
    assert (found.client, found.layer) == (2, "fc1")
    # 2 epochs of batches of 32: the last one has what is left over.
    steps, left = made.planned[2], made.sizes[2] % 32
    assert (found.step, found.batch) == (steps, left or 32)


def test_the_step_before_the_first_loss_out_of_bounds_is_named_with_its_batch():
    local = SimpleNamespace(
        losses=[torch.tensor(value) for value in (1.0, 2.0, 9000.0, math.nan)],
        batch_sizes=[32, 1, 32, 1],
    )
    assert broken_step(local, limit=100.0) == (2, 1)
    local.losses[2:] = [torch.tensor(3.0), torch.tensor(4.0)]
    assert broken_step(local, limit=100.0) == (4, 1)  # the last step broke it, after its loss
    local.losses[0] = torch.tensor(math.nan)  # the model was broken when it was received
    assert broken_step(local, limit=100.0) == (1, 32)


def test_without_a_factor_only_what_is_not_finite_has_diverged():
    """Eq. 16 as printed inflates the model by (2 - lr) a round: the loss explodes, classes stay."""
    words = ("algo=fedpgvc", "algo.eq16_literal=true", "server.lr=0.001", "client.lr=0.001")
    words += (*experiments.PLAIN, "rounds=30")
    _, found = diverged(experiments.federation(*words))
    assert found.cause.startswith(("test loss", "training loss"))
    *_, last = experiments.federation(*words, "stop.loss_factor=null").rounds()
    assert (last.round, last.diverged) == (30, None)
    assert last.score.loss > loss_limit(10, 1000.0)
    _, found = diverged(
        experiments.federation(*experiments.PLAIN, "client.lr=1e30", "stop.loss_factor=null")
    )
    assert "nan" in found.cause or "non-finite" in found.cause or "inf" in found.cause


def test_buffers_are_divided_as_the_layers_are():
    model = experiments.federation("rounds=1", *experiments.BATCH_NORM).model
    assert [layer.name for layer in model.buffer_layers] == [layer.name for layer in model.layers]
    assert model.buffer_layers[0].start == 0
    assert model.buffer_layers[-1].stop == len(model.b)
    assert sum(layer.stop - layer.start for layer in model.buffer_layers) == len(model.b)


def test_the_summary_has_round_client_layer_and_cause_and_the_sweep_goes_on(fedbench):
    run = fedbench("-m", *QUICK, "client.lr=1e18,0.1", "runtime.workers=2")
    assert run.status == 0, run.err
    found = [json.loads((folder / "summary.json").read_text()) for folder in run_folders(run.out)]
    assert [facts["status"] for facts in found] == ["diverged", "finished"]
    assert found[0]["diverged"].keys() == {"round", "client", "layer", "cause", "step", "batch"}
    assert found[0]["diverged"]["layer"] == "fc1"
    assert f"training loss nan on client {found[0]['diverged']['client']}, layer fc1" in run.out
    step = f"after local step {found[0]['diverged']['step']} (a batch of "
    assert step in run.out


def run_folders(out: str) -> list[Path]:
    return [
        Path(line.removeprefix("run: ")) for line in out.splitlines() if line.startswith("run: ")
    ]

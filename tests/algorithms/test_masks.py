"""Who may touch what: masks by layer, parts that stay on the client, frozen parts and their
statistics.
"""

from __future__ import annotations

import pytest
import torch
from support import experiments, observe

from fedbench.core.errors import BadInput

ROUNDS = ("rounds=3", "client.epochs=1", "client.lr=0.05", "eval.every=3")


def touched(made, hook: str, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Run it; which coordinates one modifier's hook ever changes, and which it declares."""
    changed = torch.zeros(made.model.size, dtype=torch.bool)

    def look(local, memory, before):
        changed.logical_or_(observe.VECTORS[hook](local) != before)

    observe.after(made, hook, name, look)
    experiments.final_digest(made)
    declared = torch.zeros_like(changed)
    where = made.algorithm.modifiers[name].where
    where.write(declared, torch.ones(where.size, dtype=torch.bool))
    return changed, declared


@pytest.mark.parametrize(
    ("words", "hook"),
    [
        ("modifier=[pvr]", "grad"),
        ("modifier=[pgvc]", "grad"),
        ("modifier=[pgvc] algo.modifiers.pgvc.rho=eq15", "grad"),
        ("modifier=[pgvc] algo.modifiers.pgvc.rho=code", "update"),
        ("modifier=[pmvr]", "update"),
        ("modifier=[pmvr] algo.modifiers.pmvr.variant=ema", "update"),
        ("modifier=[pmvr] algo.modifiers.pmvr.variant=eq12", "grad"),
    ],
)
def test_nothing_outside_the_last_layers_is_touched(words, hook):
    name = words.split("[")[1].split("]")[0]
    made = experiments.federation(
        *ROUNDS, *words.split(), f"algo.modifiers.{name}.layers=1", *experiments.PLAIN
    )
    changed, declared = touched(made, hook, name)
    head = made.model.layers[-1]
    assert declared.nonzero().flatten().tolist() == list(range(head.start, head.stop))
    assert not changed[~declared].any()
    assert changed[declared].float().mean() > 0.5


@pytest.mark.parametrize("rho", ["norm", "eq15"])
@pytest.mark.parametrize(
    ("layers", "skip", "names"),
    [(2, 1, "fc1 fc2"), (1, 2, "fc1"), (1, 1, "fc2"), (2, 0, "fc2 fc3")],
)
def test_pgvc_acts_on_the_layers_before_those_it_skips(layers, skip, names, rho):
    words = (f"algo.rho={rho}", f"algo.layers={layers}", f"algo.skip={skip}")
    made = experiments.federation(*ROUNDS, "rounds=1", "algo=fedpgvc", *words, *experiments.PLAIN)
    changed, declared = touched(made, "grad", "pgvc")
    chosen = [layer for layer in made.model.layers if layer.name in names.split()]
    assert declared.nonzero().flatten().tolist() == list(range(chosen[0].start, chosen[-1].stop))
    assert not changed[~declared].any()
    assert changed[declared].float().mean() > 0.3


@pytest.mark.parametrize(
    ("layers", "skip", "names"), [(2, 1, "fc1 fc2"), (1, 2, "fc1"), (2, 0, "fc2 fc3")]
)
def test_pmvr_acts_on_the_layers_before_those_it_skips(layers, skip, names):
    words = (f"algo.layers={layers}", f"algo.skip={skip}")
    made = experiments.federation(*ROUNDS, "rounds=1", "algo=fedpmvr", *words, *experiments.PLAIN)
    changed, declared = touched(made, "update", "pmvr")
    chosen = [layer for layer in made.model.layers if layer.name in names.split()]
    assert declared.nonzero().flatten().tolist() == list(range(chosen[0].start, chosen[-1].stop))
    assert not changed[~declared].any()
    assert changed[declared].float().mean() > 0.3


@pytest.mark.parametrize("algo", ["fedpgvc", "fedpmvr"])
@pytest.mark.parametrize("words", ["algo.skip=4", "algo.layers=2 algo.skip=2"])
def test_layers_that_the_model_does_not_have_are_refused(words, algo):
    with pytest.raises(BadInput, match="the model has 3 layers"):
        experiments.federation(f"algo={algo}", *words.split(), *experiments.PLAIN)


@pytest.mark.parametrize(
    ("words", "name", "hook"),
    [
        ("modifier=[prox]", "prox", "grad"),
        ("modifier=[control_variate]", "control_variate", "grad"),
        ("modifier=[pgvc] algo.modifiers.pgvc.layers=5", "pgvc", "grad"),
        ("modifier=[pmvr] algo.modifiers.pmvr.layers=5", "pmvr", "update"),
        ("modifier=[ecgr]", "ecgr", "update"),
    ],
)
def test_batch_norm_that_stays_on_the_client_is_left_alone(words, name, hook):
    """FedBN composes with everything by taking batch norm out of every vector."""
    made = experiments.federation(
        *ROUNDS, "rounds=2", "algo=fedbn", *words.split(), *experiments.BATCH_NORM
    )
    changed, declared = touched(made, hook, name)
    assert torch.equal(declared.nonzero().flatten(), (~norm_mask(made.model)).nonzero().flatten())
    assert not changed[norm_mask(made.model)].any()
    assert changed[declared].float().mean() > 0.5


def norm_mask(model) -> torch.Tensor:
    mask = torch.zeros(model.size, dtype=torch.bool)
    batch_norm = model.batch_norm()
    batch_norm.write(mask, torch.ones(batch_norm.size, dtype=torch.bool))
    return mask


@pytest.mark.parametrize("algo", ["fedper", "fedrep"])
def test_the_head_never_leaves_the_client(algo):
    made = experiments.federation(*ROUNDS, f"algo={algo}", "client.epochs=2", *experiments.PLAIN)
    head = slice(made.model.layers[-1].start, made.model.size)
    assert (
        made.columns["update"].stop == head.start
    )  # all that a client sends is as long as the body
    start = made.state.w.clone()
    records = list(made.rounds())
    assert torch.equal(made.state.w[head], start[head])
    assert not torch.equal(made.state.w[: head.start], start[: head.start])
    heads = [made.state.clients[k]["local"]["w"] for k in made.eligible]
    assert all(
        not torch.equal(own, other)
        for i, own in enumerate(heads)
        for other in [start[head], *heads[:i]]
    )
    assert (
        records[-1].numbers["bytes_up"]
        == records[-1].numbers["bytes_down"]
        == 3 * 5 * 4 * head.start
    )


def test_fedrep_freezes_what_it_does_not_train():
    """Under momentum and weight decay, which move weights of zero gradient; and the body's
    statistics stand still.
    """
    last, phases = {}, set()

    def look(local):
        model, frozen = local.model, local.shared_frozen
        head = model.layers[-1].start
        still, moving = (
            (slice(0, head), slice(head, None)) if frozen else (slice(head, None), slice(0, head))
        )
        w, b = last["after"] if local.step else (local.before, made.state.b)
        assert torch.equal(model.w[still], w[still])
        assert not torch.equal(model.w[moving], w[moving])
        assert torch.equal(model.b, b) == frozen
        last["after"] = model.w.clone(), model.b.clone()
        phases.add((local.client, frozen))

    words = (
        "algo=fedrep",
        "client.momentum=0.9",
        "client.weight_decay=0.1",
        "client.epochs=3",
        "rounds=2",
    )
    made = observe.every_step(look, *words, "eval.every=2", *experiments.BATCH_NORM)
    experiments.final_digest(made)
    assert phases == {(client, frozen) for client in made.eligible for frozen in (True, False)}


def test_fedrep_trains_the_head_first_and_the_body_in_the_last_epoch():
    order = {}

    def look(local):
        order.setdefault(local.client, []).append("head" if local.shared_frozen else "body")

    made = observe.every_step(
        look, "algo=fedrep", "rounds=1", "client.epochs=3", *experiments.PLAIN
    )
    experiments.final_digest(made)
    for client in made.eligible:
        epoch = made.sampler.batches_per_epoch(made.sizes[client])
        assert order[client] == ["head"] * (2 * epoch) + ["body"] * epoch

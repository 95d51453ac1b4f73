"""What a round costs and leaves in the books: bytes, gradients, a row a client, gradient norms."""

from __future__ import annotations

import csv

import pytest
import torch
from support import experiments, least_squares, observe

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.ecgr import Ecgr
from fedbench.algorithms.fedgsnr import Gsnr

ROUND = ("rounds=1", "client.epochs=1")
D = 28 * 28 * 16 + 16 + 16 * 8 + 8 + 8 * 10 + 10  # parameters of experiments.PLAIN's network
HEAD, LAST_TWO = 8 * 10 + 10, 16 * 8 + 8 + 8 * 10 + 10
GENERATOR = (
    (32 + 10) * 256 + 256 + 2 * 256 + 256 * 8 + 8
)  # noise and label, hidden with batch norm, the head's input

# Floats down and up for each client, as section 2 of the reference counts them.
TRAFFIC = {
    "algo=fedavg": (D, D),
    "algo=fedavgm": (D, D),
    "algo=fedprox": (D, D),
    "algo=fednova": (D, D + 2),
    "algo=fedbn": (D, D),
    "algo=scaffold": (2 * D, 2 * D),
    "algo=fedpvr": (D + LAST_TWO, D + LAST_TWO),
    "algo=fedpvr algo.layers=1": (D + HEAD, D + HEAD),
    "algo=feddyn": (D, D),
    "algo=moon algo.projection=false": (D, D),
    "algo=fedgen algo.generator_steps=1": (D + GENERATOR, D + 10),
    "algo=fedlc": (D, D),
    "algo=fedper": (D - HEAD, D - HEAD),
    "algo=fedrep": (D - HEAD, D - HEAD),
    "algo=pfedsim": (D, D),
    "algo=fedpgvc": (D, D),
    "algo=fedpmvr": (D, D),
    "algo=fedecgr": (D, D),
    "algo=fedncv": (D + 1, D),
    "algo=fedgsnr algo.steps=2": (D + 1, 3 * D),
    "algo=scaffold modifier=[gsnr] algo.modifiers.gsnr.steps=2": (2 * D + 1, 4 * D),
    "algo=local": (0, 0),
}


def records(*words: str):
    made = experiments.federation(*ROUND, *words, *experiments.PLAIN)
    return made, list(made.rounds())


@pytest.mark.parametrize(("words", "floats"), TRAFFIC.items(), ids=TRAFFIC)
def test_communication_is_counted_as_the_papers_do(words, floats):
    _, (record,) = records("cohort=3", *words.split())
    assert (record.numbers["bytes_down"], record.numbers["bytes_up"]) == tuple(
        4 * 3 * count for count in floats
    )


def test_batch_norm_that_is_kept_is_not_sent():
    made = experiments.federation(*ROUND, "algo=fedbn", *experiments.BATCH_NORM)
    (record,) = made.rounds()
    assert (
        record.numbers["bytes_up"]
        == record.numbers["bytes_down"]
        == 4 * 5 * (made.model.size - 2 * (6 + 16))
    )


def test_pfedsim_sends_no_more_in_its_second_phase():
    _, both = records("algo=pfedsim", "rounds=2")
    assert [record.numbers["bytes_up"] for record in both] == [4 * 5 * D, 2 * 4 * 5 * D]
    assert [record.numbers["bytes_down"] for record in both] == [4 * 5 * D, 2 * 4 * 5 * D]


def test_who_is_left_out_has_received_the_model_and_sent_its_statistic():
    """Half a step rounds to one, less to none: some clients sit the round out."""
    words = (
        "algo=fedgsnr",
        "algo.variant=alg1",
        "algo.steps=1",
        "client.batch_size=full",
        "seed=1",
    )
    made, (record,) = records(*words)
    active = [row["client"] for row in record.clients if row["steps"] > 0]
    assert 0 < len(active) < 5
    assert record.numbers["bytes_down"] == 4 * 5 * (D + 1)
    assert record.numbers["bytes_up"] == 4 * (5 * 2 * D + len(active) * D)
    assert record.numbers["gradients"] == sum(made.sizes) + sum(made.sizes[k] for k in active)


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("algo=fedavg", 0),
        ("algo=fedgsnr algo.steps=3", 1),
        ("algo=fedpmvr", 0),
        ("algo=fedpmvr algo.variant=alg1", 1),
        ("algo=fedpgvc algo.rho=code", 1),
    ],
)
def test_gradients_are_counted_by_example(words, extra):
    """A full-batch step costs a gradient of each own example; a statistic or one step more, another
    of each.
    """
    made, (record,) = records("client.steps=3", "client.batch_size=full", *words.split())
    steps = sum(row["steps"] * made.sizes[row["client"]] for row in record.clients)
    assert record.numbers["gradients"] == steps + extra * sum(made.sizes)


def test_a_client_without_steps_has_a_row_all_the_same():
    """On the two-client problem, FedGSNR leaves A out of the first round."""
    modifiers = {"gsnr": Gsnr(steps=5, batch=2, samples="full"), "ecgr": Ecgr()}
    first, second = least_squares.federation(Algorithm(modifiers=modifiers), rounds=2).rounds()
    out, active = first.clients
    assert (out["client"], out["steps"], out["weight"], out["train_loss"], out["drift"]) == (
        0,
        0,
        0.0,
        "",
        "",
    )
    assert (out["ecgr_gamma"], out["ecgr_selected"], out["gsnr_ratio"]) == ("", "", 0.0)
    assert (active["client"], active["steps"], active["weight"]) == (1, 10, 1.0)
    assert active["drift"] > 0
    assert list(out) == list(active)
    assert least_squares.column(second, "weight") == [0.2, 0.8]


def test_clients_csv_has_a_row_for_each_asked_client_and_round(fedbench):
    words = (
        "algo=fedgsnr",
        "algo.variant=alg1",
        "algo.steps=1",
        "cohort=3",
        "partition.clients=5",
        "seed=1",
    )
    run = fedbench(*words, "rounds=3", "runtime.workers=1")
    assert run.status == 0, run.err
    with open(run.folder / "clients.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 3
    for number in ("1", "2", "3"):
        own = [row for row in rows if row["round"] == number]
        assert len({row["client"] for row in own}) == 3
        assert sum(float(row["weight"]) for row in own) == pytest.approx(1.0)
    left_out = [row for row in rows if row["steps"] == "0"]
    assert 0 < len(left_out) < 9
    assert left_out == [row for row in rows if float(row["weight"]) == 0]
    assert left_out == [row for row in rows if row["train_loss"] == ""]
    assert all(float(row["gsnr_ratio"]) < 0.5 for row in left_out)


def test_gradient_norms_are_those_of_the_loss():
    """Of every layer, the mean over the steps, before SCAFFOLD's correction; and only when they are
    asked for.
    """
    words = ("algo=scaffold", "rounds=2", "client.epochs=1", "diagnostics.gradient_norms=true")
    made, raw = experiments.federation(*words, *experiments.PLAIN), {}
    observe.after(
        made,
        "grad",
        "control_variate",
        lambda local, _, g: raw.setdefault(local.client, []).append(g),
    )
    for record in made.rounds():
        for row in record.clients:
            gradients = torch.stack(raw.pop(row["client"]))
            assert len(gradients) == row["steps"]
            for layer in made.model.layers:
                expected = gradients[:, layer.start : layer.stop].norm(dim=1).mean().item()
                assert row[f"gradient_norm/{layer.name}"] == pytest.approx(expected, rel=1e-5)
    _, (plain,) = records()
    assert not any(name.startswith("gradient_norm") for name in plain.clients[0])


def test_drift_is_the_distance_to_the_received_model():
    made = experiments.federation(*ROUND, *experiments.PLAIN)
    distances, original = [], made.state.remember

    def remember(client, finished):
        distances.append(torch.dist(made.model.w, made.state.w).item())
        original(client, finished)

    made.state.remember = remember
    (record,) = made.rounds()
    assert least_squares.column(record, "drift") == pytest.approx(distances, rel=1e-5)
    weighted = sum(row["weight"] * row["drift"] for row in record.clients)
    assert record.numbers["client_drift"] == pytest.approx(weighted, rel=1e-5)

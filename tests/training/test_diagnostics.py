"""Measures of what clients do: what they send, norms by layer and between clients, variances."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support import experiments
from support.waiting import LIMIT

from fedbench.parallel.group import Group
from fedbench.parallel.processes import launch
from fedbench.training import round_metrics

WORDS = (*experiments.PLAIN, "rounds=1", "client.epochs=1", "client.batch_size=16")
ALL = tuple(f"diagnostics.{name}=true" for name in ("gradient_norms", "drift", "update_variance"))
LAYERS = ("fc1", "fc2", "fc3")


def only_record(*words: str):
    (record,) = experiments.federation(*WORDS, *words).rounds()
    return record


def column(record, name: str) -> np.ndarray:
    return np.array([row[name] for row in record.clients])


def weighted(record, name: str) -> float:
    return float(column(record, "weight") @ column(record, name))


def test_what_is_sent_is_measured_after_the_methods_correction():
    """FedPMVR's shrink leaves (1 - alpha) of the last two layers' steps."""
    record = only_record("algo=fedpmvr", "algo.alpha=0.75", *ALL)
    for layer in LAYERS:
        drift, sent = column(record, f"drift/{layer}"), column(record, f"update_norm/{layer}")
        factor = 1.0 if layer == "fc1" else 0.25
        np.testing.assert_allclose(sent, factor * drift, rtol=1e-5)
        assert record.numbers[f"drift/{layer}"] == pytest.approx(weighted(record, f"drift/{layer}"))
    for name in ("drift", "update_norm"):
        whole = sum(column(record, f"{name}/{layer}") ** 2 for layer in LAYERS) ** 0.5
        np.testing.assert_allclose(column(record, name), whole, rtol=1e-5)
    assert (column(record, "update_norm") < column(record, "drift")).all()
    assert record.numbers["client_drift"] == pytest.approx(weighted(record, "drift"))
    assert record.numbers["update_norm"] == pytest.approx(weighted(record, "update_norm"))


def test_fedavg_sends_what_its_clients_moved_and_fedper_the_body_of_it():
    fedavg, fedper = only_record(), only_record("algo=fedper", "diagnostics.drift=true")
    np.testing.assert_array_equal(column(fedavg, "update_norm"), column(fedavg, "drift"))
    np.testing.assert_array_equal(column(fedper, "update_norm/fc3"), 0.0)
    np.testing.assert_array_equal(column(fedper, "update_norm/fc2"), column(fedper, "drift/fc2"))
    assert (column(fedper, "drift/fc3") > 0).all()


def test_norms_between_clients_by_layer_of_the_loss_and_of_the_method():
    """FedPGVC's norm gives the last two layers a gradient of length sigma in every step."""
    plain = only_record("diagnostics.gradient_norms=true")
    record = only_record("algo=fedpgvc", "algo.sigma=0.5", "diagnostics.gradient_norms=true")
    for layer in LAYERS:
        for kind in ("gradient_norm", "step_gradient_norm"):
            own = column(record, f"{kind}/{layer}")
            assert record.numbers[f"{kind}/{layer}"] == pytest.approx(own.mean())
            assert record.numbers[f"{kind}_std/{layer}"] == pytest.approx(own.std(), abs=1e-9)
        same = column(plain, f"gradient_norm/{layer}")
        np.testing.assert_array_equal(column(plain, f"step_gradient_norm/{layer}"), same)
        assert plain.numbers[f"gradient_norm_std/{layer}"] > 0
    for layer in ("fc2", "fc3"):
        np.testing.assert_allclose(column(record, f"step_gradient_norm/{layer}"), 0.5, rtol=1e-5)
        assert record.numbers[f"step_gradient_norm_std/{layer}"] < 1e-6


@pytest.mark.parametrize("word", ["algo=fedavg", "algo=fednova", "algo=fedncv algo.alpha=0.5"])
def test_the_variance_of_what_is_sent_and_of_its_mean(word):
    made = experiments.federation(*WORDS, "diagnostics.update_variance=true", *word.split())
    sent, write = [], made.client_numbers.write

    def observed(row, trained):
        sent.append(trained.local.update.double().numpy().copy())
        write(row, trained)

    made.client_numbers.write = observed
    (record,) = made.rounds()
    updates, weights = np.stack(sent), column(record, "weight")
    mean = weights @ updates
    between = float(weights @ ((updates - mean) ** 2).sum(axis=1))
    assert record.numbers["update_variance"] == pytest.approx(between, rel=1e-4)
    share = float((weights**2).sum())
    assert record.numbers["aggregate_variance"] == pytest.approx(
        between * share / (1 - share), rel=1e-4
    )


@pytest.mark.parametrize("variant", ["", "redistribute", "alg1", "first"])
def test_the_variance_gives_the_clients_mean_square_distance_to_any_model(variant):
    """Of their models, each by itself, against the server's new model and the variance alone."""
    word = f"algo=fedgsnr algo.steps=4 algo.variant={variant}" if variant else "algo=fedavg"
    made = experiments.federation(*WORDS, "diagnostics.update_variance=true", *word.split())
    start, sent, write = made.state.w.double().clone(), [], made.client_numbers.write

    def observed(row, trained):
        sent.append(start + trained.local.update.double())
        write(row, trained)

    made.client_numbers.write = observed
    (record,) = made.rounds()
    other = start + torch.linspace(-0.01, 0.01, len(start), dtype=torch.float64)
    each = np.array([float((model - other).square().sum()) for model in sent])
    of_mean = float((made.state.w.double() - other).square().sum())
    mean_square = float(column(record, "weight") @ each)
    assert mean_square == pytest.approx(of_mean + record.numbers["update_variance"], rel=1e-6)
    assert record.numbers["update_variance"] > 0.01 * mean_square  # it matters to the sum


def test_a_cohort_of_one_has_no_variance_of_its_mean():
    record = only_record("cohort=1", "diagnostics.update_variance=true")
    assert record.numbers["update_variance"] == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(record.numbers["aggregate_variance"])


def test_diagnostics_change_no_result_and_seconds_stand_only_where_they_are_asked_for():
    plain, full = (
        experiments.federation(*WORDS, "algo=scaffold", *words)
        for words in ((), (*ALL, "diagnostics.seconds=true"))
    )
    (first,), (second,) = list(plain.rounds()), list(full.rounds())
    assert experiments.state_digest(plain) == experiments.state_digest(full)
    assert torch.equal(first.score.predictions, second.score.predictions)
    assert "seconds" not in first.clients[0]
    assert all(row["seconds"] > 0 for row in second.clients)
    assert set(first.clients[0]) < set(second.clients[0])


def test_a_clients_seconds_end_with_the_copy_that_waits_for_its_device(monkeypatch):
    """A GPU has hardly begun when the last step was launched."""
    made = experiments.federation(*WORDS, "diagnostics.seconds=true")
    calls, read = [], round_metrics._read
    plan = made.plan_round(0)
    before, memories = made.state.receive(0)
    trained = replace(made.trainer(plan, 0, made.shards[0], before, memories), started=3.0)
    row = torch.empty(made.client_numbers.width(plan), dtype=torch.float64)
    clock = SimpleNamespace(perf_counter=lambda: calls.append("clock") or 5.0)
    monkeypatch.setattr(round_metrics, "time", clock)
    monkeypatch.setattr(round_metrics, "_read", lambda given: calls.append("copy") or read(given))
    made.client_numbers.write(row, trained)
    assert calls == ["copy", "clock"]
    assert made.client_numbers.more_names[-1] == "seconds"
    assert row[-1] == 2.0


def test_ecgr_says_how_its_chosen_steps_point_and_where_they_lie():
    """Against the gradient of all data, computed at once, and the steps one by one."""
    words = ("algo=fedecgr", "algo.alignment=true", "client.steps=5", "client.weight_decay=0.0")
    made = experiments.federation(*WORDS, *words)
    plain = experiments.federation(*WORDS, "algo=fedecgr", "client.steps=5")
    model, train = made.model, made.trainer.train
    everything = torch.cat(made.shards)
    x, y = train.batch(everything)
    gradients = torch.autograd.grad(
        torch.nn.functional.cross_entropy(model.module(x), y), list(model.module.parameters())
    )
    descent = -torch.cat([part.flatten() for part in gradients]).double()
    seen, traces = {}, made.trainer.hooks["stepped"]

    def note(local, memory):
        seen.setdefault(local.client, [local.before.double().clone()])
        seen[local.client].append(local.model.w.double().clone())

    traces.append(("ecgr", note))
    (record,), (other,) = list(made.rounds()), list(plain.rounds())
    assert experiments.state_digest(made) == experiments.state_digest(plain)
    for row, same in zip(record.clients, other.clients, strict=True):
        steps = torch.stack(seen[row["client"]]).diff(dim=0)
        chosen = [int(step) for step in row["ecgr_selected"].split()]
        rest = [step for step in range(5) if step not in chosen]
        for name, part in (("chosen", chosen), ("rest", rest)):
            expected = torch.cosine_similarity(steps[part].sum(dim=0), descent, dim=0)
            assert row[f"ecgr_cosine_{name}"] == pytest.approx(float(expected), abs=1e-4)
        assert row["ecgr_index"] == pytest.approx((np.mean(chosen) + 0.5) / 5)
        assert same["ecgr_index"] == row["ecgr_index"]
        assert "ecgr_cosine_chosen" not in same


def test_a_slow_worker_reads_the_first_of_two_sums_of_the_updates(tmp_path, monkeypatch):
    """FedNova's coefficients are not the weights, so the update and its plain mean differ."""
    made = experiments.parts(*WORDS, "rounds=2", "algo=fednova", "diagnostics.update_variance=true")

    def digest_of(group: Group) -> str:
        own = replace(made, model=copy.deepcopy(made.model))
        return experiments.final_digest(experiments.assemble(own, group=group))

    def work(group: Group) -> None:
        (tmp_path / str(group.rank)).write_text(digest_of(group))

    barrier = Group.barrier

    def slow_barrier(group: Group) -> None:
        barrier(group)
        time.sleep(0.1 * group.leader)

    monkeypatch.setattr(Group, "barrier", slow_barrier)
    launch(work, 2, LIMIT)
    assert {(tmp_path / name).read_text() for name in "01"} == {digest_of(Group())}

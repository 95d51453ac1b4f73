"""What is read off a run: every measure against numbers worked out by hand, and why there is
none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.study_folders import experiment, metrics, study

from fedbench.core.errors import BadInput
from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import measured, readings
from fedbench.report.numbers.readers import Reading
from fedbench.report.numbers.runs import RunFiles
from fedbench.report.numbers.value import value_of

METHODS = {"method": {"A": "algo=a", "B": "algo=b"}}


def read(folder, spec: Any, files, method: str = "A", axes=None, **more) -> list[Reading]:
    made = study(folder, experiment({}, axes or METHODS, seeds=[0]), files, **more)
    return readings(made, made.select({"method": method}), as_measure("M", spec))


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        ("best_accuracy", 80.0),
        ("final_accuracy", 60.0),
        ({"name": "mean_accuracy_last", "rounds": 1}, 60.0),
        (
            {"name": "mean_accuracy_last", "rounds": 10},
            70.0,
        ),  # rounds 15 and 20, not ten evaluations
        ({"name": "mean_accuracy_last", "rounds": 99}, 52.5),
        ("area", 100 * (0.2 / 2 + 0.5 + 0.8 + 0.6 / 2) / 3),
        ({"name": "metric", "column": "test_loss"}, 0.4),
        ({"name": "metric", "column": "test_loss", "at": "final", "percent": True}, 40.0),
        ({"name": "metric", "column": "test_loss", "at": "best"}, 0.1),  # in round 15
        ({"name": "metric", "column": "test_loss", "at": "mean"}, 0.425),
        ("seconds", 40.0),
        ("round_seconds", 2.0),
        ({"name": "rounds_to", "target": 0.5}, 10.0),
        ({"name": "rounds_to", "target": 0.8}, 15.0),
        ({"name": "rounds_to", "target": 0.6, "window": 2}, 15.0),  # (0.5 + 0.8) / 2
        ({"name": "rounds_to", "target": 0.2, "window": 3}, 15.0),
        ({"name": "bytes_to", "target": 0.5}, 30.0),
        ({"name": "gradients_to", "target": 0.5}, 70.0),
    ],
)
def test_a_number_of_a_run(tmp_path, spec, value):
    curve = metrics(
        0.2, 0.5, 0.8, 0.6, every=5, megabytes=3, gradients=7, test_loss=[0.9, 0.3, 0.1, 0.4]
    )
    (found,) = read(tmp_path, spec, lambda labels, seed: curve)
    assert found.value == pytest.approx(value)
    assert found.state == "ok"


@pytest.mark.parametrize(
    ("spec", "limit"),
    [
        ({"name": "rounds_to", "target": 0.9}, 20),
        ({"name": "rounds_to", "target": 0.8, "window": 2}, 20),
        ({"name": "rounds_to", "target": 0.1, "window": 5}, 20),
        ({"name": "bytes_to", "target": 0.9}, 60),
        ({"name": "gradients_to", "target": 0.9}, 140),
    ],
)
def test_a_target_that_is_not_reached_has_a_limit(tmp_path, spec, limit):
    curve = metrics(0.2, 0.5, 0.8, 0.6, every=5, megabytes=3, gradients=7)
    assert read(tmp_path, spec, lambda labels, seed: curve) == [Reading(None, "unreached", limit)]


def test_a_target_may_depend_on_a_label(tmp_path):
    axes = {**METHODS, "alpha": {"0.5": "", "1.0": "", "2": ""}}
    made = study(
        tmp_path, experiment({}, axes, seeds=[0]), lambda labels, seed: metrics(0.2, 0.5, 0.8)
    )
    measure = as_measure("M", {"name": "rounds_to", "target": {"alpha": {0.5: 0.5, "1.0": 0.8}}})
    found = readings(made, made.select({"method": "A"}), measure)
    assert [reading.value for reading in found] == [2, 3, None]
    assert found[2].state == "no target"


def test_a_target_may_be_what_another_method_reached_with_the_same_seed(tmp_path):
    curves = {
        ("A", 0): (0.3, 0.6),
        ("A", 1): (0.7, 0.8),
        ("B", 0): (0.2, 0.5),
        ("B", 1): (0.75, 0.7),
    }
    spec = {"name": "rounds_to", "target": {"best_of": {"method": "B"}}}
    made = study(
        tmp_path,
        experiment({}, METHODS, seeds=[0, 1, 2]),
        lambda labels, seed: metrics(*curves[labels["method"], seed]),
        lambda labels, seed: (
            "finished" if seed < 2 else "finished" if labels == {"method": "C"} else "missing"
        ),
    )
    runs = made.select({"method": "A"})
    found = readings(made, runs, as_measure("M", spec))
    assert [(reading.value, reading.state) for reading in found] == [
        (2, "ok"),
        (2, "ok"),
        (None, "missing"),
    ]
    absent = {"name": "rounds_to", "target": {"best_of": {"method": "C"}}}
    assert [one.state for one in readings(made, runs, as_measure("M", absent))] == [
        "no target"
    ] * 2 + ["missing"]


@pytest.mark.parametrize(("of", "value"), [("mean", 3.0), ("variance", 2.0), ("maximum", 5.0)])
def test_gradient_norms_are_taken_over_layers_clients_and_rounds(tmp_path, of, value):
    table = pd.DataFrame(
        {
            "client": [7, 8, 9],
            "gradient_norm/fc1": [1.0, 2.0, 3.0],
            "gradient_norm/fc2": [4, 5, None],
        }
    )
    files = lambda labels, seed: {"clients.csv": table}  # noqa: E731
    (found,) = read(tmp_path, {"name": "gradient_norm", "of": of}, files)
    assert found.value == pytest.approx(value)


def test_the_distance_between_final_models_is_euclidean_over_all_tensors(tmp_path):
    weights = {"A": {"w": [[1.0, 2.0]], "b": [3.0]}, "B": {"w": [[1.0, 4.0]], "b": [6.0]}}
    files = lambda labels, seed: {"model.safetensors": weights[labels["method"]]}  # noqa: E731
    (found,) = read(tmp_path, {"name": "distance_to", "cell": {"method": "B"}}, files)
    assert found.value == pytest.approx(13**0.5)
    (itself,) = read(
        tmp_path / "again", {"name": "distance_to", "cell": {"method": "B"}}, files, "B"
    )
    assert itself.value == 0
    absent = {"name": "distance_to", "cell": {"method": "B"}, "of": "clients"}
    both = lambda labels, seed: {**files(labels, seed), **metrics(0.5)}  # noqa: E731
    assert read(tmp_path / "clients", absent, both) == [Reading(None, "missing")]
    only = lambda labels, seed: "finished" if labels["method"] == "A" else "missing"  # noqa: E731
    assert read(
        tmp_path / "alone", {"name": "distance_to", "cell": {"method": "B"}}, files, status=only
    ) == [Reading(None, "missing")]


def test_the_distance_of_clients_is_the_root_of_their_mean_square(tmp_path):
    """From the mean of their models and the variance around it, as if each had been kept."""
    draw = np.random.default_rng(3)
    sent, ideal = draw.normal(size=(4, 6)), draw.normal(size=6)
    weights = np.array([0.4, 0.3, 0.2, 0.1])
    mean = weights @ sent
    spread = float(weights @ ((sent - mean) ** 2).sum(axis=1))
    models = {"A": mean, "B": ideal}

    def files(labels, seed):
        return {
            "model.safetensors": {"w": models[labels["method"]].tolist()},
            **metrics(0.5, 0.6, update_variance=[9.0, spread]),
        }

    spec = {"name": "distance_to", "cell": {"method": "B"}, "of": "clients"}
    (found,) = read(tmp_path, spec, files)
    direct = np.sqrt(weights @ ((sent - ideal) ** 2).sum(axis=1))
    assert found.value == pytest.approx(direct, rel=1e-5)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("diverged", "diverged"),
        ("missing", "missing"),
        ("failed", "missing"),
        ("refused", "missing"),
        ("running", "missing"),
    ],
)
@pytest.mark.parametrize(
    "spec",
    ["best_accuracy", {"name": "rounds_to", "target": 0.1}, {"name": "metric", "column": "x"}],
)
def test_a_run_without_an_end_has_no_number_but_says_why(tmp_path, spec, status, state):
    found = read(
        tmp_path, spec, lambda labels, seed: metrics(0.5), status=lambda labels, seed: status
    )
    assert found == [Reading(None, state)]


def test_a_column_that_is_not_there_or_has_no_number_is_missing(tmp_path):
    curve = lambda labels, seed: metrics(0.5, 0.6, own=[1.0, None])  # noqa: E731
    assert read(tmp_path / "1", {"name": "metric", "column": "other"}, curve) == [
        Reading(None, "missing")
    ]
    assert read(tmp_path / "2", {"name": "metric", "column": "own"}, curve) == [
        Reading(None, "missing")
    ]
    empty = lambda labels, seed: {"clients.csv": pd.DataFrame({"client": [1]})}  # noqa: E731
    assert read(tmp_path / "3", {"name": "gradient_norm", "of": "mean"}, empty) == [
        Reading(None, "missing")
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "set_size", "level": 0.9},  # without eval.conformal there is no conformal.csv
        {"name": "distance_to", "cell": {"method": "B"}},
        {"name": "gradient_norm", "of": "mean", "layer": "fc9"},
        {"name": "metric", "column": "test_loss", "at": "best", "rounds": [2, None]},
    ],
)
def test_what_a_run_did_not_record_is_no_damage(tmp_path, spec):
    clients = pd.DataFrame({"round": [1], "client": [0], "gradient_norm/fc1": [1.0]})
    files = {**metrics(0.6, 0.5, test_loss=[0.2, 0.1]), "clients.csv": clients}
    assert read(tmp_path, spec, lambda labels, seed: files) == [Reading(None, "missing")]


def test_an_unknown_measure_is_named(tmp_path):
    with pytest.raises(BadInput, match="did you mean 'best_accuracy'"):
        read(tmp_path, "best_acuracy", lambda labels, seed: metrics(0.5))


@pytest.mark.parametrize("length", [-1, -9])
def test_a_file_that_is_cut_off_is_no_shorter_file(tmp_path, length):
    text = metrics(0.5, 0.6)["metrics.csv"].to_csv(index=False)
    (tmp_path / "metrics.csv").write_text(text[:length])
    with pytest.raises(ValueError, match=r"metrics\.csv is cut off"):
        RunFiles(tmp_path).metrics  # noqa: B018


def test_a_speed_up_is_against_the_baseline_or_against_each_methods_own(tmp_path):
    curves = {
        "A": (0.1, 0.2, 0.3, 0.5),
        "A+": (0.1, 0.5),
        "B": (0.1, 0.1, 0.5),
        "B+": (0.5,),
        "C": (0.2, 0.3),
    }
    axes = {"method": dict.fromkeys(curves, "")}
    rounds = as_measure("Rounds", {"name": "rounds_to", "target": 0.5})
    one = as_measure("One", {"name": "speed_up", "of": "Rounds", "baseline": {"method": "A"}})
    own = {"method": {"A+": "A", "B+": "B", "C": "D"}}
    each = as_measure("Each", {"name": "speed_up", "of": "Rounds", "baseline": own})
    made = study(
        tmp_path,
        experiment({}, axes, seeds=[0]),
        lambda labels, seed: metrics(*curves[labels["method"]]),
    )
    made = measured(made, [one, each, rounds])
    texts = lambda measure: [value_of(made, runs, measure).text for runs in made.cells.values()]  # noqa: E731
    assert texts(rounds) == ["4", "2", "3", "1", "> 2"]
    assert texts(one) == ["1.0x", "2.0x", "1.3x", "4.0x", "< 2.0x"]
    assert texts(each) == ["1.0x", "2.0x", "1.0x", "3.0x", "-"]
    assert value_of(made, made.cell({"method": "B+"}), each).detail == "against B"
    assert value_of(made, made.cell({"method": "C"}), one).failed


PREDICTIONS = {"labels": [0] * 10, "best": [0] * 10, "final": [1] * 10}


def test_mcnemar_counts_images_that_only_one_gets_right(tmp_path):
    wrong = {**PREDICTIONS, "best": [0] * 4 + [1] * 6}

    def files(labels, seed):
        return {"predictions.npz": PREDICTIONS if labels["method"] == "A" else wrong}

    made = study(tmp_path, experiment({}, METHODS, seeds=[0, 1]), files)
    measure = as_measure(
        "p", {"name": "mcnemar", "against": {"method": "A"}, "predictions": "best"}
    )
    a, b = made.cells.values()
    assert value_of(made, a, measure).text == "-"  # against itself
    found = value_of(made, b, measure)
    assert found.number == pytest.approx(2 / 2**6)
    assert found.text == "0.031"
    assert (
        found.detail
        == "2 seeds; images that only this method, or only A, gets right: 0 against 6, 0 against 6"
    )
    final = as_measure("p", {"name": "mcnemar", "against": {"method": "A"}, "predictions": "final"})
    assert value_of(made, b, final).number == 1.0


@pytest.mark.parametrize("what", ["labels", "fingerprint", "personal", "seed"])
def test_mcnemar_is_refused_on_different_images(tmp_path, what):
    other = {
        "labels": {**PREDICTIONS, "labels": [0] * 9 + [1]},
        "personal": {**PREDICTIONS, "best": [[0] * 10] * 3},
    }.get(what, PREDICTIONS)
    changed = lambda labels: labels["method"] == "B"  # noqa: E731
    made = study(
        tmp_path,
        experiment({}, METHODS, seeds=[0]),
        lambda labels, seed: {"predictions.npz": other if changed(labels) else PREDICTIONS},
        lambda labels, seed: "diverged" if what == "seed" and changed(labels) else "finished",
        facts=lambda labels, seed: (
            {"data": {"source": "real", "fingerprint": what if changed(labels) else "of A"}}
            if what == "fingerprint"
            else {}
        ),
    )
    measure = as_measure("p", {"name": "mcnemar", "against": {"method": "A"}})
    found = value_of(made, made.cell({"method": "B"}), measure)
    assert (found.text, found.number) == ("-", None)


def test_the_accuracy_of_the_round_that_validation_chooses(tmp_path):
    def facts(labels, seed):
        return {"accuracy_at_best_val": 0.5} if labels["method"] == "A" else {}

    def files(labels, seed):
        return metrics(0.5, 0.8)

    (found,) = read(tmp_path / "1", "accuracy_at_best_val", files, facts=facts)
    assert (found.value, found.state) == (50.0, "ok")
    (without,) = read(tmp_path / "2", "accuracy_at_best_val", files, method="B", facts=facts)
    assert (without.value, without.state) == (None, "missing")

"""Measures of clients, layers, prediction sets, differences between cells, and the maximum over
seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from support.study_folders import experiment, metrics, study
from test_measures import METHODS, read

from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import measured, readings_in
from fedbench.report.numbers.readers import Reading
from fedbench.report.numbers.value import value_of


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"last": 1}, 7.0),
        ({"last": 2}, 5.5),
        ({"layer": "fc1"}, 3.0),
        ({"layer": 0, "last": 1}, 5.0),
        ({"layer": -1, "last": 1}, 9.0),
    ],
)
def test_gradient_norms_of_a_layer_and_of_the_last_rounds(tmp_path, more, value):
    norms = {"gradient_norm/fc1": [1.0, 3.0, 5.0], "gradient_norm/fc2": [2.0, 5.0, 9.0]}
    table = pd.DataFrame({"round": [1, 2, 3], **norms})
    files = lambda labels, seed: {"clients.csv": table}  # noqa: E731
    (found,) = read(tmp_path, {"name": "gradient_norm", "of": "mean", **more}, files)
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({}, 3.0),
        ({"of": "spread"}, 1.5),  # 1 in the first round, 2 in the second
        ({"of": "relative_spread"}, 0.5),  # 1 of 2, and 2 of 4
        ({"of": "entropy", "last": 1}, -(2 / 8 * math.log(2 / 8) + 6 / 8 * math.log(6 / 8))),
        ({"client": 7}, 1.5),
        ({"client": 7, "last": 1}, 2.0),
        ({"client": 5}, None),
    ],
)
def test_a_column_of_the_clients(tmp_path, more, value):
    scores = {"client": [7, 8, 7, 8, 9], "score": [1.0, 3.0, 2.0, 6.0, None], "other": [0] * 5}
    table = pd.DataFrame({"round": [1, 1, 2, 2, 2], **scores})
    files = lambda labels, seed: {"clients.csv": table}  # noqa: E731
    (found,) = read(tmp_path, {"name": "client_column", "column": "score", **more}, files)
    assert found == (Reading(None, "missing") if value is None else Reading(pytest.approx(value)))
    (absent,) = read(
        tmp_path / "absent", {"name": "client_column", "column": "absent", **more}, files
    )
    assert absent == Reading(None, "missing")


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ([5.0, 1.0, 2.0, 9.0, 2.0, 2.0], 1.0),  # means 7, 1.5, 2 in the order of the labels
        ([1.0, 5.0, 9.0, 2.0, 6.0, 9.0], -0.5),  # means 1.5, 5.5, 9: ranks 1, 2, 3 beside 3, 1, 2
        ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], None),  # nothing to rank
    ],
)
def test_how_a_column_follows_the_number_of_labels(tmp_path, scores, value):
    clients = {"round": [1, 1, 1, 2, 2, 2], "client": [0, 1, 2, 0, 1, 2], "score": scores}
    held = {"client": [0, 1, 2], "class_0": [4, 0, 9], "class_1": [1, 7, 1], "class_2": [3, 0, 0]}
    files = lambda labels, seed: {  # noqa: E731
        "clients.csv": pd.DataFrame(clients),
        "partition.csv": pd.DataFrame(held),
    }
    spec = {"name": "client_column", "column": "score", "of": "labels"}
    (found,) = read(tmp_path, spec, files)
    assert found == (Reading(None, "missing") if value is None else Reading(pytest.approx(value)))


def test_the_size_of_prediction_sets_at_a_level(tmp_path):
    rules = {"method": ["aps", "aps", "threshold"], "level": [0.8, 0.9, 0.9]}
    table = pd.DataFrame({**rules, "coverage": [0.8, 0.9, 0.9], "size": [2, 3, 4]})
    files = lambda labels, seed: {"conformal.csv": table}  # noqa: E731
    sizes = [
        {"level": 0.9},
        {"level": 0.9, "rule": "aps"},
        {"level": 0.8, "rule": "aps"},
        {"level": 0.8},
    ]
    found = [
        read(tmp_path / str(n), {"name": "set_size", **one}, files)[0]
        for n, one in enumerate(sizes)
    ]
    assert found == [Reading(4.0), Reading(3.0), Reading(2.0), Reading(None, "missing")]


def test_a_difference_is_taken_seed_by_seed(tmp_path):
    curves = {("A", 0): 0.9, ("A", 1): 0.8, ("A", 2): 0.7, ("B", 0): 0.6, ("B", 1): 0.4}
    made = study(
        tmp_path,
        experiment({}, METHODS, seeds=[0, 1, 2]),
        lambda labels, seed: metrics(curves.get((labels["method"], seed), 0.0)),
        lambda labels, seed: "finished" if (labels["method"], seed) in curves else "diverged",
    )
    accuracy = as_measure("Accuracy", "best_accuracy")
    spec = {"name": "difference_to", "of": "Accuracy", "cell": {"method": "B"}, "percent": True}
    gain, loss = (
        as_measure("Gain", spec),
        as_measure("Loss", {**spec, "reverse": True, "higher": True}),
    )
    made = measured(made, [accuracy, gain, loss])
    texts = [value_of(made, runs, gain).text for runs in made.cells.values()]
    assert texts == ["35.00 ± 7.07 *(2 of 3 seeds)", "-"]  # a table shows none of B to itself
    itself = readings_in(made.cell({"method": "B"}), "Gain")
    assert itself == [Reading(0.0), Reading(0.0), Reading(None, "diverged")]
    assert value_of(made, made.cell({"method": "A"}), loss).number == pytest.approx(-35)
    assert (gain.higher_is_better, loss.higher_is_better) == (False, True)


def test_the_maximum_over_seeds_is_one_number(tmp_path):
    curves = {0: (0.5, 0.9), 1: (0.8, 0.7), 2: ()}
    made = study(
        tmp_path,
        experiment({}, {"method": {"A": ""}}, seeds=[0, 1, 2]),
        lambda labels, seed: metrics(*curves[seed]),
        lambda labels, seed: "finished" if seed < 2 else "missing",
    )
    measure = as_measure("Best", {"name": "best_accuracy", "over_seeds": "maximum"})
    made = measured(made, [measure])
    found = value_of(made, made.runs, measure)
    assert (found.text, found.number) == ("90.00 (2 of 3 seeds)", 90.0)
    assert found.detail == "seeds: 90.00, 80.00, -"


def test_the_swing_from_round_to_round_in_a_third_of_the_rounds(tmp_path):
    """Of nine rounds the last three count: changes of 2 and 3 points, whatever their sign."""
    files = lambda labels, seed: metrics(0.1, 0.9, 0.1, 0.9, 0.1, 0.9, 0.5, 0.52, 0.49)  # noqa: E731
    (found,) = read(tmp_path, "oscillation", files)
    assert found.value == pytest.approx(2.5)
    (early,) = read(tmp_path / "early", {"name": "oscillation", "third": "first"}, files)
    assert early.value == pytest.approx(80)  # of rounds 1 to 3
    (short,) = read(tmp_path / "short", "oscillation", lambda labels, seed: metrics(0.1, 0.9))
    assert short == Reading(None, "missing")  # one evaluation in the last third has no change


def test_the_rate_of_the_largest_class(tmp_path):
    labels = np.array([0, 1, 1, 1, 2, 1, 0, 1])
    files = lambda *_: {**metrics(0.5), "predictions.npz": {"labels": labels, "best": labels}}  # noqa: E731
    (found,) = read(tmp_path, "largest_class", files)
    assert found.value == 62.5


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((0.1, 0.3, 0.1, 0.3, 0.4), Reading(4.0, limit=5.0)),  # ahead in round 2, but not for good
        ((0.3, 0.3, 0.3, 0.3, 0.3), Reading(1.0, limit=5.0)),
        ((0.3, 0.3, 0.3, 0.3, 0.2), Reading(None, "unreached", limit=5.0)),  # a tie is not above
    ],
)
def test_the_round_from_which_one_stays_above_the_other(tmp_path, own, expected):
    curves = {"A": (0.2,) * 5, "B": own}
    one = study(
        tmp_path,
        experiment({}, METHODS, seeds=[0]),
        lambda labels, seed: metrics(*curves[labels["method"]]),
    )
    measure = as_measure("From", {"name": "stays_above", "cell": {"method": "A"}})
    runs = measured(one, [measure]).cell({"method": "B"})
    assert readings_in(runs, "From") == [expected]
    assert not measure.higher_is_better
    assert measure.is_cost


def test_a_column_in_some_of_the_rounds(tmp_path):
    files = lambda labels, seed: metrics(0.1, 0.2, 0.3, 0.5)  # noqa: E731
    spec = {"name": "metric", "column": "test_accuracy", "at": "mean", "percent": True}
    expected = {(1, 2): 15.0, (3, None): 40.0, (4, 9): 50.0, (5, None): None}
    for place, (rounds, value) in enumerate(expected.items()):
        (found,) = read(tmp_path / str(place), {**spec, "rounds": list(rounds)}, files)
        assert found == (
            Reading(None, "missing") if value is None else Reading(pytest.approx(value))
        )


@pytest.mark.parametrize(("third", "value"), [("first", 1.5), ("last", 5.5)])
def test_a_column_of_the_clients_early_and_late(tmp_path, third, value):
    table = pd.DataFrame({"round": range(1, 7), "client": 0, "score": range(1, 7)})
    files = lambda labels, seed: {"clients.csv": table, **metrics(*[0.1] * 6)}  # noqa: E731
    spec = {"name": "client_column", "column": "score", "third": third}
    (found,) = read(tmp_path, spec, files)
    assert found.value == pytest.approx(value)


def test_megabytes_of_the_whole_run(tmp_path):
    (found,) = read(tmp_path, "megabytes", lambda labels, seed: metrics(0.1, 0.2, megabytes=3.0))
    assert found.value == pytest.approx(6.0)


def test_every_label_may_have_its_own_other_cell(tmp_path):
    """A method is compared with the one that it builds on; the others with none."""
    curves = {"A": 0.5, "A + X": 0.6, "B": 0.4, "B + X": 0.3}
    made = study(
        tmp_path,
        experiment({}, {"method": dict.fromkeys(curves, "")}, seeds=[0, 1]),
        lambda labels, seed: metrics(curves[labels["method"]]),
    )
    accuracy = as_measure("Accuracy", "best_accuracy")
    spec = {"of": "Accuracy", "cell": {"method": {"A + X": "A", "B + X": "B"}}}
    gain = as_measure("Gain", {**spec, "name": "difference_to", "percent": True})
    ratio = as_measure("Ratio", {**spec, "name": "ratio_to"})
    made = measured(made, [accuracy, gain, ratio])
    found = [value_of(made, runs, gain).text for runs in made.cells.values()]
    assert found == ["-", "10.00 ± 0.00", "-", "-10.00 ± 0.00"]
    assert [value_of(made, runs, ratio).text for runs in made.cells.values()] == [
        "-",
        "1.2x",
        "-",
        "0.75x",
    ]
    assert made.runs["Ratio"].isna().tolist() == [
        True,
        True,
        False,
        False,
        True,
        True,
        False,
        False,
    ]


def test_a_ratio_to_zero_is_no_number(tmp_path):
    made = study(
        tmp_path,
        experiment({}, METHODS, seeds=[0]),
        lambda labels, seed: metrics(0.5 if labels["method"] == "A" else 0.0),
    )
    spec = {"name": "ratio_to", "of": "Accuracy", "cell": {"method": "B"}}
    made = measured(made, [as_measure("Accuracy", "best_accuracy"), as_measure("Ratio", spec)])
    assert readings_in(made.runs, "Ratio") == [Reading(None, "missing")] * 2


def test_a_place_among_methods_is_counted_seed_by_seed(tmp_path):
    """Readings and references take none. A diverged rival is behind; every rival must have run."""
    curves = {"A": (0.5, 0.5, 0.5), "B": (0.6, 0.4, 0.9), "C": (0.7, 0.5, 0.9), "R": (0.9,) * 3}
    axes = {"method": {**dict.fromkeys(curves, ""), "local": "algo=local"}}
    curves["local"] = (0.99,) * 3
    lost = {("B", 2): "diverged"}
    made = study(
        tmp_path,
        experiment({}, axes, seeds=[0, 1, 2], readings=["R"]),
        lambda labels, seed: metrics(curves[labels["method"]][seed]),
        lambda labels, seed: lost.get((labels["method"], seed), "finished"),
    )
    accuracy = as_measure("Accuracy", "best_accuracy")
    place = as_measure("Place", {"name": "place", "of": "Accuracy"})
    made = measured(made, [accuracy, place])
    found = [[one.value for one in readings_in(runs, "Place")] for runs in made.cells.values()]
    assert found[:3] == [[3, 1, 2], [2, 3, None], [1, 1, 1]]  # a tie is ahead of neither
    assert not place.higher_is_better
    gone = lambda labels, seed: "missing" if (labels["method"], seed) == ("C", 0) else "finished"  # noqa: E731
    other = study(tmp_path / "gone", made.experiment, lambda *_: metrics(0.5), gone)
    runs = measured(other, [accuracy, place]).cell({"method": "A"})
    assert readings_in(runs, "Place") == [
        Reading(None, "missing"),
        Reading(1.0),
        Reading(1.0),
    ]

"""Where a verdict would be a lie there is none: too few rounds, another network, a test that points
the other way.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.study_folders import experiment, metrics, study

from fedbench.report.experiments.experiment import Experiment, Published
from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import measured
from fedbench.report.numbers.runs import Study
from fedbench.report.numbers.value import numbers_of
from fedbench.report.output.entry import build_entry
from fedbench.report.output.model import GridCell
from fedbench.report.output.notes import Footnotes
from fedbench.report.output.table import build_grid

TWO = {"method": {"A": "algo=a", "B": "algo=b"}}
BEST = as_measure("Best", "best_accuracy")
ROUNDS = as_measure("Rounds", {"name": "rounds_to", "target": 0.5})
SPEED = as_measure("Speed-up", {"name": "speed_up", "of": "Rounds", "baseline": {"method": "A"}})
STAR, NUMBER = ("*", None, "star"), ("20", 20.0, "")


def cells(one: Study, measures: list, published: list[Published]) -> list[GridCell]:
    grid = build_grid(
        measured(one, measures),
        ["method"],
        [],
        Footnotes(one),
        published,
        "A title",
    )
    return [cell for row in grid.rows for cell in row.cells]


def printed(method: str, measure: str, text: str, value: float | None, flag: str) -> Published:
    return Published({"method": method}, measure, text, value, None, flag)


@pytest.mark.parametrize(
    ("scale", "star", "number"),
    [
        ("decisive", "unmeasured", "unmeasured"),
        ("paper", "match", "unmeasured"),
    ],  # > 2 rounds says nothing against 20
)
def test_what_fewer_rounds_did_not_reach_decides_nothing(tmp_path, scale, star, number):
    one = study(
        tmp_path,
        experiment({}, TWO, seeds=[0]),
        lambda labels, seed: metrics(0.1, 0.2),
        scale=scale,
    )
    published = [printed("A", "Rounds", *STAR), printed("B", "Rounds", *NUMBER)]
    found = cells(one, [ROUNDS], published)
    assert [cell.measured for cell in found] == ["> 2", "> 2"]
    assert [cell.verdict for cell in found] == [star, number]


@pytest.mark.parametrize("scale", ["decisive", "paper"])
def test_a_speed_up_of_nothing_over_nothing_is_no_miss(tmp_path, scale):
    one = study(
        tmp_path,
        experiment({}, TWO, seeds=[0]),
        lambda labels, seed: metrics(0.1, 0.2),
        scale=scale,
    )
    found = cells(one, [ROUNDS, SPEED], [printed("B", "Speed-up", "1.5x", 1.5, "")])
    assert found[-1].measured == "-"
    assert found[-1].verdict == (
        "unmeasured" if scale == "decisive" else "miss"
    )  # it ran as long as the paper's, in vain


def test_a_star_beside_the_accuracy_of_guessing_is_matched_by_guessing(tmp_path):
    one = study(
        tmp_path,
        experiment({}, TWO, seeds=[0]),
        lambda labels, seed: metrics({"A": 0.1, "B": 0.6}[labels["method"]]),
    )
    found = cells(one, [BEST], [printed(name, "Best", "10 (*)", 10.0, "star") for name in "AB"])
    assert [cell.verdict for cell in found] == ["match", "miss"]


def test_a_cell_that_is_not_what_its_label_says_has_no_verdict_and_says_why(tmp_path):
    scales = {
        "decisive": {"reduction": "small", "seeds": [0], "extra": {"method": {"A": "model=lenet"}}}
    }
    made: Experiment = experiment({}, TWO, seeds=[0], scales=scales)
    assert made.replaced({"method": "A"}, "decisive") == ["model=lenet"]
    assert (
        made.replaced({"method": "B"}, "decisive") == made.replaced({"method": "A"}, "paper") == []
    )
    one = study(tmp_path, made, lambda labels, seed: metrics(0.9), scale="decisive")
    notes = Footnotes(one)
    published = [printed(name, "Best", "90.00", 90.0, "") for name in "AB"]
    grid = build_grid(measured(one, [BEST]), ["method"], [], notes, published, "")
    assert [row.cells[0].verdict for row in grid.rows] == ["unmeasured", "match"]
    told = [notes.footnotes()[mark] for mark in grid.rows[0].cells[0].marks]
    assert "Not what the label says, hence no verdict: run with model=lenet." in told


def test_an_axis_that_a_scale_overrides_is_not_what_its_label_says():
    axes = {"clients": {"100": "partition.clients=100", "1000": "partition.clients=1000"}}
    scales = {
        "decisive": {
            "overrides": "rounds=2 data=mnist",
            "extra": {"clients": {"100": "partition.clients=4 rounds=1"}},
        }
    }
    made = experiment({}, axes, scales=scales)
    assert made.replaced({"clients": "100"}, "decisive") == ["data=mnist", "partition.clients=4"]
    assert made.replaced({"clients": "1000"}, "decisive") == ["data=mnist"]


@pytest.mark.parametrize(("own", "verdict"), [(1.0, "match"), (0.0, "miss")])
def test_a_significant_difference_the_other_way_round_is_a_miss(tmp_path, own, verdict):
    """A is the paper's method: right on all images, or on none, where B is the opposite."""
    labels = np.zeros(40, np.int64)
    right = {"A": own == 1.0, "B": own == 0.0}

    def files(names, seed):
        wrong = labels if right[names["method"]] else labels + 1
        return metrics(0.5) | {"predictions.npz": {"labels": labels, "best": wrong, "final": wrong}}

    one = study(tmp_path, experiment({}, TWO, seeds=[0]), files)
    test = as_measure("p", {"name": "mcnemar", "against": {"method": "A"}})
    found = cells(one, [test], [printed("B", "p", "3e-12", 3e-12, "")])
    assert found[1].verdict == verdict
    assert ("(A is behind)" in found[1].measured) == (verdict == "miss")


def test_a_damaged_file_costs_its_seed_alone(tmp_path):
    one = study(tmp_path, experiment({}, TWO, seeds=[0, 1]), lambda labels, seed: metrics(0.6))
    (tmp_path / "0-1" / "metrics.csv").write_text("round,test_acc")
    found = cells(one, [ROUNDS], [])
    assert [cell.measured for cell in found] == ["1 (1 of 2 seeds)", "1"]


def test_all_seeds_stand_in_the_settings_and_a_figure_shows_no_mean_over_lucky_ones(
    tmp_path, monkeypatch
):
    """Also when the first seed is missing; rounds to a target are a median in which the unreached
    count.
    """
    target: dict = {"name": "rounds_to", "target": 0.5}
    seen: dict = {}

    def draw(study):
        for (method,), runs in study.cells.items():
            seen[method] = numbers_of(study, runs, ROUNDS)
        return []

    monkeypatch.setattr("fedbench.report.output.entry.draw", draw)
    show = {"form": "points", "x": "method", "measures": {"Rounds": target}}
    made = experiment(
        show,
        {"method": {"A": "algo=a", "B": "algo=b"}},
        seeds=[0, 1, 2],
        provenance={"seed": {"from": "choice", "why": "three"}},
    )
    curves = {"A": {1: (0.5,), 2: (0.1, 0.1, 0.5)}, "B": {1: (0.5,), 2: (0.1, 0.1)}}
    one = study(
        tmp_path / "runs",
        made,
        lambda labels, seed: metrics(*curves[labels["method"]][seed]),
        lambda labels, seed: "finished" if seed else "missing",
        facts=lambda labels, seed: {"partition_hash": "abc"},
    )
    entry = build_entry(one)
    assert [(setting.key, setting.values) for setting in entry.settings] == [("seed", "1, 2")]
    assert seen == {"A": [2], "B": []}

"""Figures of a study, the forms beside curves: points, bars, layers, maps, boxes, entropy, gaps,
conformal, drift.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from support import study_folders
from support.study_folders import experiment, study
from test_figures import ALPHAS, METHODS, legend, line, metrics, note, one, with_numbers

from fedbench.report.numbers.statistics import entropy
from fedbench.report.output.entry import with_measures
from fedbench.report.output.figures import describe, draw
from fedbench.report.output.figures.drift import simulate

SIZES = {"5": "partition.clients=5", "20": "partition.clients=20"}


def clients(labels, seed):
    """Two rounds of three clients; client 2 has two steps and the others three."""
    rows = []
    for number in (1, 2):
        for client in range(3):
            row = {"round": number, "client": client, "steps": 2 if client == 2 else 3}
            row |= {
                "gsnr": float(client + number),
                "gsnr_ratio": 1.0 if number == 1 else float(client == 0),
            }
            row |= {"gradient_norm/fc1": 1.0 + client, "gradient_norm/fc2": 10.0 * number + seed}
            row["ecgr_selected"] = {0: "0 2", 1: "1", 2: ""}[client] if number == 1 else "0"
            rows.append(row)
    return {"clients.csv": pd.DataFrame(rows)}


# Points and bars


def accuracies(labels, seed):
    return 10.0 * list(METHODS).index(labels["method"]) + len(labels.get("clients", "")) + seed


def test_points_have_means_and_spreads_along_a_numeric_axis(tmp_path):
    show = {
        "form": "points",
        "x": "clients",
        "lines": ["method"],
        "measures": {"Accuracy": "best_accuracy"},
    }
    [axes] = one(tmp_path, show, {"clients": SIZES, "method": METHODS}, metrics, accuracies).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients", "Accuracy (%)")
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["5", "20"]
    ours = next(container for container in axes.containers if container.get_label() == "Ours")
    np.testing.assert_array_equal(ours.lines[0].get_data(), [[5, 20], [12, 13]])
    ends = ours.lines[2][0].get_segments()[0]
    np.testing.assert_allclose(ends[:, 1], [11, 13])  # one standard deviation of 11, 12, 13


def test_points_of_differences_begin_where_the_difference_is_none(tmp_path):
    change = {"name": "difference_to", "of": "Accuracy", "cell": {"clients": "5"}}
    measures = {"Accuracy": "best_accuracy", "Change": change}
    show = {"form": "points", "x": "clients", "lines": ["method"], "measures": measures}

    def files(labels, seed):
        return study_folders.metrics(accuracies(labels, seed) / 100)

    def status(labels, seed):
        first = labels == {"clients": "5", "method": "FedAvg"} and seed == 0
        return "diverged" if first else "finished"

    made = study(tmp_path, experiment(show, {"clients": SIZES, "method": METHODS}), files, status)
    [(_, figure)] = draw(with_measures(made))
    for lines in figure.axes[1].containers:
        np.testing.assert_allclose(lines.lines[0].get_data(), [[5, 20], [0, 1]], atol=1e-12)
    assert "Change not known of every seed: FedAvg (clients = 20)." in note(figure)


def test_points_with_words_along_the_axis_and_a_row_for_each_measure(tmp_path):
    show = {"form": "points", "x": "clients", "lines": ["method"], "panels": ["alpha"]}
    show["measures"] = {
        "Accuracy (%)": "best_accuracy",
        "Rounds": {"name": "rounds_to", "target": 0.9},
    }
    axes = {"clients": {"few": "", "many": ""}, "alpha": ALPHAS, "method": METHODS}
    figure = one(tmp_path, show, axes, metrics, accuracies)
    assert [panel.get_title() for panel in figure.axes] == ["alpha = 0.1", "alpha = 0.5"] * 2
    assert [panel.get_ylabel() for panel in figure.axes] == ["Accuracy (%)", "", "Rounds", ""]
    np.testing.assert_array_equal(figure.axes[0].containers[0].lines[0].get_xdata(), [0, 1])


def test_bars_stand_in_groups_with_their_numbers_and_say_what_lacks(tmp_path):
    def numbers(labels, seed):
        late = labels["clients"] == "20" and labels["method"] == "FedAvg"
        return None if late else accuracies(labels, seed)

    show = {
        "form": "bars",
        "groups": ["clients"],
        "bars": ["method"],
        "measures": {"Rounds": {"name": "rounds_to", "target": 0.5}},
    }
    diverged = {"clients": "20", "method": "local"}
    figure = one(
        tmp_path,
        show,
        {"clients": SIZES, "method": METHODS},
        metrics,
        numbers,
        status=lambda labels, seed: "diverged" if labels == diverged else "finished",
    )
    [axes] = figure.axes
    groups = {bars.get_label(): bars for bars in axes.containers if hasattr(bars, "patches")}
    np.testing.assert_allclose([bar.get_height() for bar in groups["Ours"]], [12, 13])
    left, right = (bar.get_x() + bar.get_width() / 2 for bar in groups["Ours"])
    assert (left, right) == pytest.approx((0, 1))
    assert sorted(text.get_text() for text in axes.texts) == [
        "*",
        "12.0",
        "13.0",
        "2",
        "22.0",
        "none",
    ]
    assert legend(figure) == ["FedAvg", "Ours", "local *"]
    assert "Rounds not reached by every seed: FedAvg (clients = 20)." in note(figure)
    assert "Ours" not in note(figure)
    assert "* diverged, not drawn: 3 of 3 seeds of local (clients = 20)." in note(figure)


@pytest.mark.parametrize(
    "show",
    [
        {"form": "points", "x": "clients", "lines": ["method"]},
        {"form": "bars", "groups": ["clients"], "bars": ["method"]},
    ],
)
def test_nothing_measured(tmp_path, show):
    measures = {"measures": {"Accuracy": "best_accuracy"}}
    made = experiment(show | measures, {"clients": SIZES, "method": METHODS})
    missing = study(tmp_path, made, metrics, lambda labels, seed: "missing")
    [(_, figure)] = draw(with_numbers(missing, accuracies))
    assert [text.get_text() for text in figure.axes[0].texts] == ["no finished runs"]


# What clients leave


def test_layers_are_means_over_clients_and_rounds(tmp_path):
    [axes] = one(tmp_path, {"form": "layers", "lines": ["alpha"]}, {"alpha": ALPHAS}, clients).axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["fc1", "fc2"]
    np.testing.assert_allclose(line(axes, "alpha = 0.1").get_ydata(), [2, 16])
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx(16 + np.std([10, 20, 11, 21, 12, 22] * 3, ddof=1))


def test_layers_without_norms_say_so(tmp_path):
    def files(labels, seed):
        return {
            "clients.csv": (
                clients(labels, seed)["clients.csv"].drop(
                    columns=["gradient_norm/fc1", "gradient_norm/fc2"]
                )
            )
        }

    figure = one(tmp_path, {"form": "layers", "lines": ["alpha"]}, {"alpha": ALPHAS}, files)
    assert "No gradient norms in clients.csv" in note(figure)


def test_partition_shows_counts_of_the_first_seed(tmp_path):
    def files(labels, seed):
        columns = {
            f"class_{label}": [label, 10 * label + seed] for label in (10, 2, 0)
        }  # not in order
        return {"partition.csv": pd.DataFrame({"client": [1, 0]} | columns)}

    show = {"form": "partition", "panels": ["alpha"]}
    figure = one(tmp_path, show, {"alpha": ALPHAS}, files, status=lambda labels, seed: "diverged")
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert [axes.get_title() for axes in panels] == ["alpha = 0.1", "alpha = 0.5"]
    np.testing.assert_array_equal(
        panels[0].images[0].get_array().filled(0), [[0, 0], [20, 2], [100, 10]]
    )
    assert {text.get_text() for text in panels[0].texts} == {"20", "2", "100", "10"}
    assert "Seed 0 is shown." in note(figure)
    assert "diverged" not in note(figure)


def test_selection_of_one_client(tmp_path):
    figure = one(
        tmp_path,
        {"form": "selection", "panels": ["alpha"], "clients": [1]},
        {"alpha": ALPHAS},
        clients,
    )
    assert [axes.get_title() for axes in figure.axes] == [
        "alpha = 0.1, client 1",
        "alpha = 0.5, client 1",
    ]
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), [[0, 1, 0], [1, 0, 0]])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("local step", "round")


def test_selection_of_all_is_a_share_of_those_who_took_the_step(tmp_path):
    show = {"form": "selection", "panels": ["alpha"], "clients": "all"}
    figure = one(tmp_path, show, {"alpha": {"0.1": ""}}, clients)
    overview = next(axes for axes in figure.axes if axes.get_xlabel() == "local step")
    np.testing.assert_allclose(
        overview.images[0].get_array(), [[100 / 3, 100 / 3, 50], [100, 0, 0]]
    )
    small = [axes for axes in figure.axes if axes.get_title().startswith("client ")]
    assert len(small) == 3
    np.testing.assert_array_equal(
        np.isnan(small[2].images[0].get_array().filled(np.nan)), [[False, False, True]] * 2
    )


def test_selection_of_many_has_no_small_multiples(tmp_path):
    def files(labels, seed):
        table = clients(labels, seed)["clients.csv"]
        return {
            "clients.csv": pd.concat(
                [table.assign(client=table["client"] + 3 * copy) for copy in range(4)]
            )
        }

    figure = one(
        tmp_path,
        {"form": "selection", "clients": "all", "panels": ["alpha"]},
        {"alpha": ALPHAS},
        files,
    )
    assert len([axes for axes in figure.axes if axes.get_label() != "<colorbar>"]) == 2


def test_client_boxes_are_over_rounds(tmp_path):
    def files(labels, seed):
        table = clients(labels, seed)["clients.csv"]
        return {
            "clients.csv": pd.concat([table, table.assign(gsnr=np.inf)])
        }  # an infinite ratio is no place of a box

    figure = one(
        tmp_path,
        {"form": "client_boxes", "panels": ["alpha"], "column": "gsnr"},
        {"alpha": ALPHAS},
        files,
    )
    medians = [
        drawn.get_ydata()[0]
        for drawn in figure.axes[0].lines
        if drawn.get_color() == "black" and len(drawn.get_ydata())
    ]
    assert medians == [1.5, 2.5, 3.5]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("client", "GSNR")
    assert "6 values that are not finite are left out: alpha = 0.1" in note(figure)
    assert describe(figure).startswith("2 panels. alpha = 0.1; alpha = 0.5: GSNR by client.")


def test_entropy_by_round_below_that_of_the_uniform_distribution(tmp_path):
    show = {"form": "entropy", "lines": ["alpha"], "column": "gsnr_ratio"}
    [axes] = one(tmp_path, show, {"alpha": ALPHAS}, clients).axes
    np.testing.assert_allclose(line(axes, "alpha = 0.5").get_ydata(), [np.log(3), 0], atol=1e-12)
    assert line(axes, "_uniform").get_ydata()[0] == pytest.approx(np.log(3))
    assert line(axes, "_uniform").get_linestyle() == "--"
    assert [text.get_text() for text in axes.texts] == ["uniform, log 3"]


# Two methods, and sets


def test_gaps_are_matched_by_seed_and_round(tmp_path):
    def files(labels, seed):
        table = metrics(labels, seed)["metrics.csv"]
        table["test_loss"] += 0.5 * (labels["method"] == "local") * (table["round"] - 2.5)
        return {"metrics.csv": table.iloc[seed if labels["method"] == "Ours" else 0 :]}

    show = {"form": "gaps", "y": "test_loss", "groups": ["alpha"]}
    show["pairs"] = {
        "FedAvg - Ours": ["FedAvg", "Ours"],
        "local - FedAvg": ["local", "FedAvg"],
        "no": ["no", "Ours"],
    }
    figure = one(tmp_path, show, {"alpha": ALPHAS, "method": METHODS}, files)
    [axes] = figure.axes
    medians = [
        drawn
        for drawn in axes.lines
        if drawn.get_color() == "black" and len(drawn.get_xdata()) == 2
    ][:4]
    np.testing.assert_allclose(
        [drawn.get_ydata()[0] for drawn in medians], [0.1, 0.1, -0.2, -0.2], atol=1e-12
    )
    assert legend(figure) == ["FedAvg - Ours", "local - FedAvg"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "0.5"]
    assert axes.get_ylabel() == "gap of test loss"
    assert "No runs to compare: no" in note(figure)


def test_conformal_averages_levels_of_one_rule(tmp_path):
    def files(labels, seed):
        rows = [
            {
                "method": rule,
                "level": level,
                "coverage": level + 0.01 * seed,
                "size": size + 10 * level + seed,
            }
            for rule, size in (("threshold", 1.0), ("raps", 100.0))
            for level in (0.9, 0.7)
        ]
        return {"conformal.csv": pd.DataFrame(rows)}

    show = {"form": "conformal", "lines": ["method"], "rule": "raps"}
    [axes] = one(tmp_path, show, {"method": METHODS}, files).axes
    np.testing.assert_allclose(line(axes, "Ours").get_data(), [[71, 91], [108, 110]])
    assert axes.get_xlabel() == "empirical coverage (%)"


# Drift


def test_drift_by_hand():
    # FedPMVR section 2.1: after one round 17 and 6.5 times the rate (the paper's 4.75 halves the
    # second gradient).
    assert simulate([15, 2], start=0, rate=0.1, rounds=1)[1] == pytest.approx(1.7)
    assert simulate([3, 3.5], start=0, rate=0.1, rounds=1)[1] == pytest.approx(0.65)
    np.testing.assert_allclose(simulate([15, 2], 0, 0.1, 2), [0, 1.7, 1.7 + 0.2 * (8.5 - 1.7)])
    np.testing.assert_allclose(simulate([1, 3], 0, 0.25, 1, steps=2), [0, 2 * (1 - 0.25)])


def test_drift_shows_weights_and_distances(tmp_path):
    show = {"form": "drift", "cases": {"low": [15, 2], "high": [3, 3.5]}}
    figure = one(
        tmp_path,
        show | {"start": 0, "rate": 0.1, "rounds": 2, "optimum": 3},
        None,
        metrics,
        scale="smoke",
    )
    weight, distance = (next(iter(axes.lines[-1:])).get_ydata() for axes in figure.axes)
    np.testing.assert_allclose(weight, [0, 0.65, 1.17])
    np.testing.assert_allclose(distance, [3, 2.35, 1.83])
    assert legend(figure) == [
        "low (client optima 15, 2)",
        "high (client optima 3, 3.5)",
        "optimum 3",
    ]
    assert note(figure) == ""


def test_entropy_by_hand():
    assert entropy(np.array([1.0, 1.0, 2.0, 0.0])) == pytest.approx(1.5 * np.log(2))
    assert np.isnan(entropy(np.array([0.0, 0.0])))
    assert np.isnan(entropy(np.array([1.0, np.inf])))

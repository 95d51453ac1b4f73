"""Figures of a study: what is drawn is what the run folders hold, and what is left out is said."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.study_folders import experiment, study

from fedbench.report.output.figures import describe, draw, save
from fedbench.report.output.figures.files import compact
from fedbench.report.output.figures.style import GREY, style_of

METHODS = {"FedAvg": "algo=fedavg", "Ours": "algo=fedpgvc", "local": "algo=local"}
ALPHAS = {"0.1": "partition.alpha=0.1", "0.5": "partition.alpha=0.5"}
CURVES = {
    "form": "curves",
    "panels": ["alpha"],
    "lines": ["method"],
    "x": "round",
    "y": "test_accuracy",
}


def metrics(labels, seed, rounds=4):
    number = np.arange(1, rounds + 1)
    base = 0.1 * list(METHODS).index(labels.get("method", "FedAvg")) + 0.01 * seed
    return {
        "metrics.csv": pd.DataFrame(
            {
                "round": number,
                "test_accuracy": base + 0.1 * number,
                "test_loss": 2.0 - base - 0.1 * number,
                "bytes_up": 1e6 * number,
                "bytes_down": 2e6 * number,
                "seconds": (1.0 + seed) * number,
                "gradients": 1000 * number,
            }
        )
    }


def one(tmp_path, show, axes, files, numbers=None, **given):
    """The only figure of a study with these fields; `numbers(labels, seed)`: of all measures."""
    status = {key: given.pop(key) for key in ("status", "scale", "data") if key in given}
    made = study(tmp_path, experiment(show, axes, **given), files, **status)
    [(title, figure)] = draw(made if numbers is None else with_numbers(made, numbers))
    assert title == "A title"
    return figure


def with_numbers(made, numbers):
    """The study with these numbers in place of those that are read off its runs."""
    measures = made.experiment.show.measures
    runs, done = made.runs.copy(), made.runs["status"] == "finished"
    found = [numbers(row, row["seed"]) for row in runs.to_dict("records")]
    for label in measures:
        runs[label] = pd.Series(found, dtype=float).where(done)
        state = np.where(runs[label].isna(), "unreached", "ok")
        runs[f"{label} state"] = np.where(done, state, runs["status"])
        runs[f"{label} limit"] = 4.0
    return replace(made, runs=runs, measures=measures)


def line(axes, name):
    return next(line for line in axes.lines if line.get_label() == name)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def note(figure):
    return figure.get_supxlabel()


# Curves


def test_curves_are_means_over_seeds_in_percent(tmp_path):
    figure = one(tmp_path, CURVES, {"alpha": ALPHAS, "method": METHODS}, metrics, proposed=["Ours"])
    assert [axes.get_title() for axes in figure.axes] == ["alpha = 0.1", "alpha = 0.5"]
    first = figure.axes[0]
    assert (first.get_xlabel(), first.get_ylabel()) == ("round", "test accuracy (%)")
    np.testing.assert_array_equal(line(first, "Ours").get_xdata(), [1, 2, 3, 4])
    np.testing.assert_allclose(
        line(first, "Ours").get_ydata(), [21, 31, 41, 51]
    )  # seeds 20, 21, 22 ... in percent
    band = first.collections[1].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(52)  # the standard deviation of 50, 51, 52 is 1
    assert legend(figure) == list(METHODS)
    assert "one standard deviation" in note(figure)


def test_proposed_methods_are_thicker_and_on_top_and_references_grey(tmp_path):
    axes = one(
        tmp_path, CURVES, {"alpha": ALPHAS, "method": METHODS}, metrics, proposed=["Ours"]
    ).axes[0]
    ours, other, reference = (line(axes, name) for name in ("Ours", "FedAvg", "local"))
    assert ours.get_linewidth() > other.get_linewidth()
    assert ours.get_zorder() > other.get_zorder() > reference.get_zorder()
    assert reference.get_color() == GREY
    assert reference.get_linestyle() == "--"


@pytest.mark.parametrize(("band", "highest"), [("range", 42), ("none", None)])
def test_bands(tmp_path, band, highest):
    axes = one(
        tmp_path, CURVES | {"band": band}, {"alpha": ALPHAS, "method": METHODS}, metrics
    ).axes[0]
    assert len(axes.collections) == (3 if highest else 0)
    if highest:
        assert axes.collections[0].get_paths()[0].vertices[:, 1].max() == pytest.approx(highest)


def test_only_rounds_that_all_seeds_have(tmp_path):
    show = CURVES | {"panels": []}
    figure = one(
        tmp_path,
        show,
        {"method": METHODS},
        lambda labels, seed: metrics(labels, seed, rounds=4 - seed),
    )
    np.testing.assert_allclose(line(figure.axes[0], "FedAvg").get_ydata(), [11, 21])


def test_bytes_are_megabytes_both_ways_and_seconds_are_interpolated(tmp_path):
    axes = {"method": METHODS}
    show = CURVES | {"panels": [], "x": "bytes", "y": "test_loss"}
    drawn = one(tmp_path / "a", show, axes, metrics).axes[0]
    assert (drawn.get_xlabel(), drawn.get_ylabel()) == ("sent and received (MB)", "test loss")
    assert tuple(line(drawn, "FedAvg").get_xdata()[[0, -1]]) == (3, 12)
    drawn = one(tmp_path / "b", show | {"x": "seconds", "y": "test_accuracy"}, axes, metrics).axes[
        0
    ]
    x, y = line(drawn, "FedAvg").get_data()
    assert (x[0], x[-1]) == (3, 4)  # from the latest first evaluation to the earliest last one
    # At second 3 the seeds 0, 1, 2 have done 3, 1.5 and 1 rounds.
    assert y[0] == pytest.approx(np.mean([30, 15 + 1, 10 + 2]))


def test_seeds_without_a_second_in_common_are_averaged_by_evaluation(tmp_path):
    def files(labels, seed):
        table = metrics(labels, seed)["metrics.csv"]
        return {"metrics.csv": table.assign(seconds=table["seconds"] + 100 * seed)}

    drawn = one(tmp_path, CURVES | {"panels": [], "x": "seconds"}, {"method": METHODS}, files).axes[
        0
    ]
    np.testing.assert_allclose(
        line(drawn, "FedAvg").get_data(), [[102, 104, 106, 108], [11, 21, 31, 41]]
    )


def test_diverged_and_missing_runs_are_named(tmp_path):
    ends = {
        ("Ours", 0): "diverged",
        ("local", 0): "diverged",
        ("local", 1): "diverged",
        ("local", 2): "diverged",
    }
    ends |= {("FedAvg", 1): "missing"}
    figure = one(
        tmp_path,
        CURVES | {"panels": []},
        {"method": METHODS},
        metrics,
        status=lambda labels, seed: ends.get((labels["method"], seed), "finished"),
    )
    assert legend(figure) == ["FedAvg", "Ours *", "local *"]
    assert [drawn.get_label() for drawn in figure.axes[0].lines] == ["FedAvg", "Ours"]
    np.testing.assert_allclose(line(figure.axes[0], "Ours").get_ydata()[0], 21.5)  # seeds 1 and 2
    assert "* diverged, not drawn: 1 of 3 seeds of Ours; 3 of 3 seeds of local." in note(figure)
    assert "only 2 of 3 seeds of FedAvg." in note(figure)


def test_a_panel_without_finished_runs_says_so(tmp_path):
    figure = one(
        tmp_path,
        CURVES,
        {"alpha": ALPHAS, "method": METHODS},
        metrics,
        status=lambda labels, seed: "missing" if labels["alpha"] == "0.5" else "finished",
    )
    assert [[text.get_text() for text in axes.texts] for axes in figure.axes] == [
        [],
        ["no finished runs"],
    ]
    assert "alpha = 0.5: no finished runs." in describe(figure)


def test_stand_ins_and_a_reduced_scale_are_noted(tmp_path):
    data = {"name": "mnist", "source": "synthetic", "note": "synthetic stand-in for mnist"}
    figure = one(
        tmp_path, CURVES, {"alpha": ALPHAS, "method": METHODS}, metrics, scale="smoke", data=data
    )
    assert "Scale smoke: 2 rounds." in note(figure)
    assert "Stand-in data: synthetic stand-in for mnist." in note(figure)
    assert "Scale smoke: 2 rounds." in describe(figure)
    real = one(tmp_path / "real", CURVES, {"alpha": ALPHAS, "method": METHODS}, metrics)
    assert "Scale" not in note(real)
    assert "tand-in" not in note(real)


def test_axes_that_nobody_names_become_lines(tmp_path):
    figure = one(tmp_path, CURVES | {"panels": []}, {"alpha": ALPHAS, "method": METHODS}, metrics)
    assert len(legend(figure)) == 6
    assert "FedAvg, alpha = 0.1" in legend(figure)


def test_a_missing_column_is_noted(tmp_path):
    figure = one(tmp_path, CURVES | {"panels": [], "y": "nothing"}, {"method": METHODS}, metrics)
    assert "No column nothing in metrics.csv: FedAvg, Ours, local." in note(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["nothing to show"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 9, 12, 16])
def test_panels_stand_in_a_grid_of_sensible_size(tmp_path, count):
    axes = {"dataset": {f"d{number}": "" for number in range(count)}, "method": {"FedAvg": ""}}
    show = CURVES | {"panels": ["dataset"]}
    figure = one(tmp_path, show, axes, lambda labels, seed: metrics({}, seed, rounds=2), seeds=[0])
    width, height = figure.get_size_inches()
    assert len(figure.axes) == count
    assert width <= 13
    assert height <= 11
    boxes = [axes.get_position() for axes in figure.axes]
    assert min(box.width * width for box in boxes) > 1.8
    assert min(box.height * height for box in boxes) > 1.3


def test_legend_and_notes_are_outside_of_the_panels(tmp_path):
    for number, panels in enumerate((["alpha"], [])):
        figure = one(
            tmp_path / str(number),
            CURVES | {"panels": panels},
            {"alpha": ALPHAS, "method": METHODS},
            metrics,
        )
        save(figure, tmp_path / str(number) / "figure")
        outside = [figure.legends[0].get_window_extent(), figure._supxlabel.get_window_extent()]
        for axes in figure.axes:
            assert not any(axes.get_window_extent().overlaps(box) for box in outside)
        assert all(
            0 <= box.x0 < box.x1 <= figure.bbox.x1 and 0 <= box.y0 < box.y1 <= figure.bbox.y1
            for box in outside
        )


def test_fourteen_methods_look_different():
    names = {f"method {number}": f"algo=x{number}" for number in range(14)}
    made = experiment({}, {"method": names}, proposed=["method 12", "method 13"])
    styles = [style_of(made, {"method": name}, ["method"]) for name in names]
    assert len({(style.colour, str(style.dash)) for style in styles}) == 14
    assert len({(style.colour, style.marker) for style in styles}) == 14


def test_a_method_and_what_builds_on_it_share_a_colour():
    names = dict.fromkeys(["FedAvg", "FedAvg-ECGR", "FedProx", "FedProx-ECGR"], "")
    made = experiment({}, {"method": names}, proposed=["FedAvg-ECGR", "FedProx-ECGR"])
    plain, ours, other, _ = (style_of(made, {"method": name}, ["method"]) for name in names)
    assert plain.colour == ours.colour != other.colour
    assert plain.dash != ours.dash == "solid"


# Files


def test_files_are_written_the_same_twice_with_hostile_labels_as_they_stand(tmp_path):
    hostile = "$x_1$ <b>&"
    written = []
    for name in ("a", "b"):
        axes = {"alpha": {r"$\frac$ 100 $": "", "$": ""}, "method": {hostile: "", "FedAvg": ""}}
        figure = one(tmp_path / name, CURVES, axes, lambda labels, seed: metrics({}, seed))
        assert hostile in describe(figure)
        written += [save(figure, tmp_path / name / "v1.0"), save(figure, tmp_path / name / "again")]
    assert {path.name for path in written[0]} == {"v1.0.png", "v1.0.svg"}
    for kind in (0, 1):
        assert len({paths[kind].read_bytes() for paths in written}) == 1
    svg = written[0][1].read_text()
    assert "$x_1$ &lt;b&gt;&amp;" in svg
    assert r"$\frac$ 100 $" in svg
    assert not re.search(r"<dc:date>", svg)
    assert written[0][0].read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.rglob("*.part"))


def test_a_marker_repeats_no_style_that_its_definition_has():
    mark = '<path id="m1" d="M 0 0" style="stroke: #000"/>'
    same = '<use xlink:href="#m1" x="1" y="2" style="stroke: #000"/>'
    other = '<use xlink:href="#m1" x="3" y="4" style="stroke: #f00"/>'
    smaller = compact(f"<svg>{mark}{same}{other}</svg>")
    assert '<use xlink:href="#m1" x="1" y="2"/>' in smaller
    assert '<use xlink:href="#m1" x="3" y="4" style="stroke:#f00"/>' in smaller


def test_what_is_drawn_alike_has_a_class():
    """A style that stands three times or more becomes one; what is seen stays."""
    line = '<path d="M 0 0" style="stroke:#000"/>'
    odd = '<path d="M 1 1" style="stroke:#f00"/>'
    style = "<style>*{fill:none}</style>"
    smaller = compact(f"<svg>{style}{line * 3}{odd}</svg>")
    assert smaller == (
        "<svg><style>*{fill:none}.s0{stroke:#000}</style>"
        + '<path d="M 0 0" class="s0"/>' * 3
        + '<path d="M 1 1" style="stroke:#f00"/></svg>\n'
    )


def test_words_of_a_figure(tmp_path):
    figure = one(tmp_path, CURVES | {"panels": []}, {"method": METHODS}, metrics)
    assert describe(figure).startswith(
        "test accuracy (%) by round; at the end FedAvg 41, Ours 51, local 61."
    )


# Several parts, and mistakes


def test_parts_each_give_a_figure_of_what_they_keep(tmp_path):
    parts = [
        CURVES | {"title": "left", "keep": {"alpha": ["0.1"]}},
        {"form": "table", "title": "a table is no figure"},
        CURVES | {"y": "test_loss"},
    ]
    made = experiment({"form": "several", "parts": parts}, {"alpha": ALPHAS, "method": METHODS})
    figures = draw(study(tmp_path, made, metrics))
    assert [(title, len(figure.axes)) for title, figure in figures] == [("left", 1), ("A title", 2)]


@pytest.mark.parametrize("show", [{"form": "table"}, {"form": "datasets", "datasets": ["mnist"]}])
def test_tables_are_no_figures(tmp_path, show):
    assert draw(study(tmp_path, experiment(show), metrics)) == []

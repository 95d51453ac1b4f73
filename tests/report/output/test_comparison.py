"""What a table cannot say by itself: equal cost, significance, order; and what an entry of the
report is made of.
"""

from __future__ import annotations

import csv
import io

import pytest
from support.study_folders import experiment, metrics, study

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import measured
from fedbench.report.numbers.value import value_of
from fedbench.report.output.comparison import equal_cost, significance
from fedbench.report.output.entry import _all_measures, build_entry
from fedbench.report.output.notes import Footnotes
from fedbench.report.output.text import csv_rows

BEST = as_measure("Best", "best_accuracy")
ROUNDS = as_measure("Rounds", {"name": "rounds_to", "target": 0.5})
TWO = {"method": {"A": "algo=a", "B": "algo=b"}}


def printed(method: str, text: str, value: float, measure: str = "Best") -> Published:
    return Published({"method": method}, measure, text, value, None, "")


def test_equal_cost_is_the_best_accuracy_for_what_the_cheapest_spent(tmp_path):
    axes = {
        "method": {"A": "algo=a", "B": "algo=b", "local": "algo=local"},
        "data": {"X": "", "Y": ""},
    }
    curves = {
        "AX": metrics(0.1, 0.4, 0.3, megabytes=2, gradients=10),  # 6 MB, 30 gradients in all
        "BX": metrics(0.2, 0.3, 0.9, 0.5, megabytes=3, gradients=10),  # 12 MB, 40 gradients
        "localX": metrics(0.9, megabytes=0, gradients=1),
    }
    made = experiment({}, axes, seeds=[0])
    one = study(
        tmp_path,
        made,
        lambda labels, seed: curves[labels["method"] + labels["data"]],
        lambda labels, seed: "finished" if labels["data"] == "X" else "missing",
    )
    bytes_grid, gradients_grid = (
        equal_cost(one, "test_accuracy", kind, Footnotes(one)) for kind in ("bytes", "gradients")
    )
    assert [row.labels + [cell.measured for cell in row.cells] for row in bytes_grid.rows] == [
        ["A", "40.00", "-"],
        ["B", "30.00", "-"],
    ]
    assert bytes_grid.caption.endswith(
        "megabytes sent and received as the cheapest method spent: X: 6."
    )
    assert [row.cells[0].measured for row in gradients_grid.rows] == ["40.00", "90.00"]
    assert gradients_grid.caption.endswith("X: 30.")
    none = study(tmp_path / "none", made, lambda labels, seed: {}, lambda labels, seed: "missing")
    assert equal_cost(none, "test_accuracy", "bytes", Footnotes(none)) is None


def predictions(right: int) -> dict[str, list[int]]:
    return {"labels": [0] * 100, "best": [0] * right + [1] * (100 - right)}


def test_significance_is_mcnemar_corrected_by_holm_and_a_paired_test_over_seeds(tmp_path):
    axes = {"method": {"A": "", "B": "", "C": "", "local": "algo=local"}}
    right = {"A": (90, 92, 91), "B": (84, 87, 81), "C": (82, 82, 82), "local": (1, 1, 1)}
    made = experiment({}, axes, seeds=[0, 1, 2], proposed=["A"])
    one = study(
        tmp_path,
        made,
        lambda labels, seed: {
            **metrics(right[labels["method"]][seed] / 100),
            "predictions.npz": predictions(right[labels["method"]][seed]),
        },
    )
    (grid,) = significance(measured(one, [BEST]), BEST, Footnotes(one))
    assert grid.title == "Significance against A"
    assert [row.labels for row in grid.rows] == [["B"], ["C"]]
    b, c = (row.cells[0] for row in grid.rows)
    # Discordant images, all for A: B has 6, 5 and 10, C has 8, 10 and 9. The largest p is 2 / 2 **
    # fewest.
    assert c.measured.endswith(f"; McNemar p {2 * (2 / 2**8):.2g}")  # the smaller p, times two
    assert b.measured.endswith(f"; McNemar p {2 / 2**5:.2g}")
    # B: differences 6, 5 and 10 have the mean 7 and the deviation sqrt(7); t = 7 / sqrt(7 / 3) =
    # sqrt(21). With 2 degrees of freedom p = 1 - t / sqrt(t^2 + 2), and 4.3027 is the quantile of
    # the interval.
    reach, p = 4.30265 * (7 / 3) ** 0.5, 1 - (21 / 23) ** 0.5
    g = 7 / 7**0.5 * 0.5641896  # gamma(1) / gamma(1/2) / sqrt(2 / 2)
    interval = f"+7.00 [{7 - reach:+.2f}, {7 + reach:+.2f}]"
    assert b.measured == f"{interval}, g {g:.2f}, p {p:.2g}; McNemar p 0.062"
    assert b.value == pytest.approx(p)  # the larger of the two: Holm leaves it
    images = "uncorrected p 0.062; discordant images by seed 6:0, 5:0, 10:0"
    assert b.detail == f"uncorrected p over seeds {p:.2g}; {images}"
    # C: differences 8, 10 and 9 have the mean 9 and the deviation 1; t = 9 sqrt(3); Holm doubles
    # the smaller p.
    t = 9 * 3**0.5
    assert c.value == pytest.approx(2 * (1 - t / (t * t + 2) ** 0.5))
    assert c.measured.startswith("+9.00 [")
    nobody = experiment({}, axes, seeds=[0, 1, 2])
    assert (
        significance(
            measured(study(tmp_path / "2", nobody, lambda *_: metrics(0.5)), [BEST]), BEST, None
        )
        == []
    )


def test_significance_without_common_images_and_with_fewer_seeds(tmp_path):
    axes = {"method": {"A": "", "B": "", "A, read otherwise": "", "C": ""}}
    made = experiment(
        {},
        axes,
        seeds=[0, 1, 2],
        proposed=["A", "A, read otherwise", "C"],
        readings=["A, read otherwise"],
    )
    accuracy = {
        "A": (0.5, 0.6, 0.7),
        "B": (0.4, 0.55, 0.5),
        "A, read otherwise": (0.1, 0.2, 0.3),
        "C": (0, 0, 0),
    }
    one = study(
        tmp_path,
        made,
        lambda labels, seed: metrics(accuracy[labels["method"]][seed]),
        lambda labels, seed: (
            "diverged"
            if (labels["method"], seed) in (("B", 2), ("C", 0), ("C", 1), ("C", 2))
            else "finished"
        ),
    )
    (grid,) = significance(
        measured(one, [BEST]), BEST, Footnotes(one), on_images=False
    )  # C has no run to compare with
    assert grid.title == "Significance against A"
    assert "McNemar" not in grid.caption
    assert [row.labels for row in grid.rows] == [["B"], ["A, read otherwise"]]
    assert grid.rows[0].cells[0].measured.startswith("+7.50 [")
    assert grid.rows[0].cells[0].measured.endswith(" (2 of 3 seeds)")
    both = {"data": {"X": "", "Y": ""}, "method": {"A": "", "B": ""}}
    two = study(
        tmp_path / "two",
        experiment({}, both, seeds=[0, 1], proposed=["A"]),
        lambda labels, seed: {**metrics(0.5 + seed / 10), "predictions.npz": predictions(50)},
        lambda labels, seed: "diverged" if labels == {"data": "Y", "method": "A"} else "finished",
    )
    (grid,) = significance(measured(two, [BEST]), BEST, Footnotes(two))
    assert grid.caption.endswith("Not tested, as A has no finished run: Y.")


def test_equal_cost_leaves_out_a_damaged_run_and_no_other(tmp_path):
    one = study(tmp_path, experiment({}, TWO, seeds=[0, 1]), lambda labels, seed: metrics(0.5))
    (tmp_path / "1-0" / "metrics.csv").write_text("round,test_acc")
    grid = equal_cost(one, "test_accuracy", "bytes", Footnotes(one))
    assert [row.cells[0].measured for row in grid.rows] == ["50.00 ± 0.00", "50.00 (1 of 2 seeds)"]
    assert grid.rows[1].cells[0].detail == "seeds: damaged, 50.00"


def test_an_entry_has_its_grids_claims_and_their_reservations(tmp_path, monkeypatch):
    axes = {**TWO, "data": {"X": "", "Y": ""}}
    show = {
        "form": "table",
        "rows": ["method"],
        "columns": [],
        "measures": {"Best": "best_accuracy", "Old": None},
    }
    claims = [
        {"text": "B is best", "better": "B", "than": ["A"]},
        {"text": "it is fast"},
    ]
    made = experiment(
        show, axes, seeds=[0], claims=claims, scales={"decisive": {"reduction": "less"}}
    )
    one = study(
        tmp_path / "runs",
        made,
        lambda labels, seed: metrics(0.7 if labels == {"method": "B", "data": "X"} else 0.6),
        scale="decisive",
        data={"source": "synthetic"},
        facts=lambda labels, seed: {
            "partition_hash": "abc",
            "git_commit": "0123456789abcdef",
            "git_dirty": True,
        },
    )
    entry = build_entry(one)
    assert [grid.title for grid in entry.grids] == [
        "A title",
        "At equal bytes",
        "At equal gradients",
    ]
    assert entry.grids[0].columns == [["X"], ["Y"]]  # an axis that no row names becomes a column
    assert show["columns"] == []
    assert [(claim.outcome, claim.detail) for claim in entry.claims] == [
        ("not testable", "stand-in data instead of mnist"),
        ("not testable", "no measure of this program can test it"),
    ]
    assert {claim.rests_on for claim in entry.claims} == {
        "decisive scale: less; no method tuned here"
    }
    assert (entry.stand_in, entry.done, entry.wanted, entry.seeds) == ("mnist", 4, 4, [0])
    assert entry.runs["commit"][0] == "0123456789 with changes"
    rows = list(csv.DictReader(io.StringIO(csv_rows(entry))))
    assert (
        rows[0].items()
        >= {
            "method": "A",
            "data": "X",
            "measure": "Best",
            "measured": "60.00",
        }.items()
    )


def test_p_values_are_not_put_in_order(tmp_path, monkeypatch):
    show = {
        "form": "table",
        "rows": ["method"],
        "measures": {"p": {"name": "mcnemar", "against": {"method": "A"}}},
    }
    made = experiment(show, TWO, seeds=[0])
    numbers = [printed("A", "0.5", 0.5, "p"), printed("B", "0.1", 0.1, "p")]
    monkeypatch.setattr(type(made), "published_numbers", lambda self: numbers)
    one = study(tmp_path / "runs", made, lambda *_: {}, lambda *_: "missing")
    entry = build_entry(one)
    assert entry.claims == []
    assert [row.cells[0].verdict for row in entry.grids[0].rows] == ["unmeasured", "unmeasured"]


@pytest.mark.parametrize(
    ("measure", "told"),
    [
        ({"name": "ratio_to", "of": "S", "cell": {"method": "A"}}, ["1x", "1.5x"]),
        ({"name": "place", "of": "S"}, ["1", "2"]),
    ],
)
def test_a_measure_brings_the_one_that_it_is_made_of(tmp_path, measure, told):
    claims = [{"text": "B takes longer", "better": "A", "than": ["B"], "measure": "Of S"}]
    made = experiment(
        {"form": "curves", "measures": {"S": "seconds", "Of S": measure}},
        TWO,
        seeds=[0],
        claims=claims,
    )
    seconds = {"A": 2.0, "B": 3.0}
    one = study(
        tmp_path,
        made,
        lambda labels, seed: metrics(0.5),
        facts=lambda labels, seed: {"train_seconds": seconds[labels["method"]]},
    )
    measures = _all_measures(one)
    assert [measure.label for measure in measures] == ["S", "Of S"]
    one = measured(one, measures)
    assert [value_of(one, runs, measures[1]).text for runs in one.cells.values()] == told


@pytest.mark.parametrize(
    ("commit", "dirty", "told"),
    [
        ("0123456789abcdef", False, "0123456789"),
        ("0123456789abcdef", None, "0123456789 perhaps with changes"),
        (None, None, ""),
        (None, True, ""),
    ],
)
def test_a_commit_that_is_not_known_is_not_called_clean(tmp_path, commit, dirty, told):
    known = {"partition_hash": "abc", "git_commit": commit, "git_dirty": dirty}
    made = experiment(
        {"form": "table", "rows": ["method"], "columns": []}, {"method": {"A": "x=1"}}, seeds=[0]
    )
    one = study(
        tmp_path / "runs", made, lambda labels, seed: metrics(0.5), facts=lambda labels, seed: known
    )
    assert list(build_entry(one).runs["commit"]) == [told]


def test_a_run_without_checksums_whose_metrics_cannot_be_read_is_told(tmp_path):
    made = experiment(
        {"form": "table", "rows": ["method"], "columns": []}, {"method": {"A": "x=1"}}, seeds=[0]
    )
    known = {"partition_hash": "abc"}
    one = study(
        tmp_path / "runs", made, lambda labels, seed: metrics(0.5), facts=lambda labels, seed: known
    )
    (tmp_path / "runs" / "0-0" / "metrics.csv").write_text("round,test_acc")
    words = "metrics.csv cannot be read, so this run counts as missing; force=true runs it again"
    assert build_entry(one).problems == [
        f"A, seed 0, damaged: {tmp_path / 'runs' / '0-0'}: {words}"
    ]


def test_a_claim_says_which_of_its_methods_nobody_tuned(tmp_path):
    claims = [{"text": "B is best", "better": "B", "than": ["A"], "measure": "Best"}]
    show = {"form": "table", "rows": ["method"], "measures": {"Best": "best_accuracy"}}
    grid = {"client.lr": [0.1, 0.2]}
    for tune, words in (
        ({"grid": grid}, "each method tuned on validation data"),
        ({"grid": grid, "only": ["B"]}, "each method tuned on validation data, but for A"),
    ):
        made = experiment(show, TWO, seeds=[0], claims=claims, tune=tune)
        place = tmp_path / str(len(tune))
        facts = lambda labels, seed: {"partition_hash": "abc"}  # noqa: E731
        made_study = study(place, made, lambda labels, seed: metrics(0.5), facts=facts)
        assert build_entry(made_study).claims[0].rests_on == f"1 seed; paper scale; {words}"


def test_a_claim_says_on_how_many_seeds_it_rests(tmp_path):
    claims = [{"text": "B is best", "better": "B", "than": ["A"], "measure": "Best"}]
    show = {"form": "table", "rows": ["method"], "measures": {"Best": "best_accuracy"}}
    made = experiment(show, TWO, seeds=[0, 1, 2], claims=claims)
    accuracy = {"A": (0.5, 0.51, 0.5), "B": (0.6, 0.6, 0.61)}
    facts = lambda labels, seed: {"partition_hash": "abc"}  # noqa: E731
    files = lambda labels, seed: metrics(accuracy[labels["method"]][seed])  # noqa: E731
    (whole,) = build_entry(study(tmp_path / "whole", made, files, facts=facts)).claims
    assert (whole.outcome, whole.rests_on) == (
        "supported",
        "3 seeds; paper scale; no method tuned here",
    )
    status = lambda labels, seed: "missing" if (labels["method"], seed) == ("A", 2) else "finished"  # noqa: E731
    (fewer,) = build_entry(study(tmp_path / "fewer", made, files, status, facts=facts)).claims
    assert (fewer.outcome, fewer.rests_on) == (
        "undecided",
        "2 seeds; paper scale; no method tuned here",
    )
    half = lambda labels, seed: "diverged" if labels["method"] == "B" and seed else "finished"  # noqa: E731
    lucky = build_entry(study(tmp_path / "lucky", made, files, half, facts=facts))
    assert lucky.claims[0].outcome == "undecided"  # one lucky seed of three is no result
    assert lucky.grids[0].rows[1].cells[0].measured == "60.00 *(1 of 3 seeds)"

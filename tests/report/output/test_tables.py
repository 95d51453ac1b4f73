"""Tables: cells over seeds beside what is published, and footnotes."""

from __future__ import annotations

from typing import Any

import pytest
from support.study_folders import experiment, metrics, study

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import measured
from fedbench.report.output.entry import build_entry
from fedbench.report.output.notes import Footnotes
from fedbench.report.output.table import build_grid

TWO = {"method": {"A": "algo=a", "B": "algo=b"}}
BEST = as_measure("Best", "best_accuracy")
ROUNDS = as_measure("Rounds", {"name": "rounds_to", "target": 0.5})


def states(text: str) -> Any:
    """One state for each seed: f(inished), d(iverged), m(issing), r(efused)."""
    names = {"f": "finished", "d": "diverged", "m": "missing", "r": "refused"}
    return lambda labels, seed: names[text[seed]]


def one_cell(
    folder, curves: dict[int, tuple[float, ...]], text: str, measure, published=(), **fields
):
    """The only cell of a table of method A."""
    made = experiment({}, {"method": {"A": ""}}, seeds=list(range(len(text))), **fields)
    one = study(folder, made, lambda labels, seed: metrics(*curves.get(seed, (0.1,))), states(text))
    notes = Footnotes(one)
    grid = build_grid(measured(one, [measure]), ["method"], [], notes, list(published), "T")
    return grid.rows[0].cells[0], notes


def printed(
    method: str,
    text: str,
    value: float | None,
    flag: str = "",
    measure: str = "Best",
    **labels: str,
):
    return Published({"method": method, **labels}, measure, text, value, None, flag)


@pytest.mark.parametrize(
    ("text", "measured", "detail"),
    [
        ("ff", "81.00 ± 1.41", "seeds: 80.00, 82.00"),
        ("ffd", "81.00 ± 1.41 *(2 of 3 seeds)", "seeds: 80.00, 82.00, *"),
        ("ffm", "81.00 ± 1.41 (2 of 3 seeds)", "seeds: 80.00, 82.00, -"),
        ("fmr", "80.00 (1 of 3 seeds)", "seeds: 80.00, -, -"),
        ("dd", "* (0 of 2 seeds)", "seeds: *, *"),
        ("md", "* (0 of 2 seeds)", "seeds: -, *"),
        ("mm", "-", "seeds: -, -"),
    ],
)
def test_a_cell_is_a_mean_over_seeds_that_counts_what_diverged_or_is_missing(
    tmp_path, text, measured, detail
):
    cell, _ = one_cell(tmp_path, {0: (0.8,), 1: (0.82,)}, text, BEST)
    assert (cell.measured, cell.detail) == (measured, detail)
    assert (
        cell.value == pytest.approx({"8": 81.0}.get(measured[0]))
        if text != "fmr"
        else cell.value == 80.0
    )


@pytest.mark.parametrize(
    ("text", "measured", "detail"),
    [
        ("f", "2", "1 of 1 seeds reached it, 2 to 2"),
        ("ff", "2.5", "2 of 2 seeds reached it, 2 to 3"),
        ("fff", "3", "2 of 3 seeds reached it, 2 to > 4"),
        ("ffmm", "2.5 (2 of 4 seeds)", "2 of 2 seeds reached it, 2 to 3"),
        ("mmf", "> 4 (1 of 3 seeds)", "0 of 1 seeds reached it"),
        ("mmfd", "> 4 *(1 of 4 seeds)", "0 of 2 seeds reached it"),
        ("d", "*", "0 of 1 seeds reached it"),
        ("m", "-", "no seed was run"),
    ],
)
def test_a_cost_is_a_median_in_which_the_unreached_come_last(tmp_path, text, measured, detail):
    curves = {0: (0.1, 0.6), 1: (0.1, 0.2, 0.5), 2: (0.1, 0.2, 0.3, 0.4)}
    cell, _ = one_cell(tmp_path, curves, text, ROUNDS)
    assert (cell.measured, cell.detail) == (measured, detail)


@pytest.mark.parametrize(
    ("text", "number", "verdict", "difference"),
    [
        ("f", printed("A", "80.5", 80.5), "match", "-0.5"),
        ("f", printed("A", "77.50 (±0.1)", 77.5), "near", "+2.50"),
        ("f", printed("A", "70", 70.0), "miss", "+10"),
        ("f", printed("A", "*", None, "star"), "miss", ""),
        ("d", printed("A", "*", None, "star"), "match", ""),
        ("d", printed("A", "80", 80.0), "miss", ""),
        ("m", printed("A", "80", 80.0), "unmeasured", ""),
        ("f", printed("A", "-", None, "none"), "unpublished", ""),
        ("f", printed("B", "80", 80.0), "unpublished", ""),
        ("f", printed("A", "80", 80.0, measure="Other"), "unpublished", ""),
    ],
)
def test_the_published_number_stands_beside_with_a_verdict(
    tmp_path, text, number, verdict, difference
):
    cell, _ = one_cell(tmp_path, {0: (0.8,)}, text, BEST, [number])
    assert (cell.verdict, cell.difference) == (verdict, difference)
    mine = number.labels == {"method": "A"} and number.measure == "Best"
    assert cell.published == (number.printed if mine else "")


def test_footnotes_say_what_a_reader_must_know(tmp_path):
    provenance = {
        "rounds": {"from": "paper", "why": "section 1"},
        "client.lr": {"from": "choice", "why": "nobody says."},
        "seed": {"from": "choice", "why": "ours", "only": {"method": ["A", "B"]}},
        "algo.mu": {"from": "choice", "why": "a guess", "only": {"method": ["B"]}},
    }
    made = experiment(
        {}, TWO, seeds=[0, 1], provenance=provenance, scales={"smoke": {"reduction": "2 rounds"}}
    )
    b = lambda labels: labels["method"] == "B"  # noqa: E731
    one = study(
        tmp_path,
        made,
        lambda labels, seed: metrics(0.5),
        lambda labels, seed: (
            "refused" if b(labels) and seed else "diverged" if seed else "finished"
        ),
        "smoke",
        {"source": "synthetic"},
        lambda labels, seed: {
            **({"scoring": "mean_acc", "caveats": ["allow_adaptive: adam"]} if b(labels) else {}),
        },
    )
    notes = Footnotes(one)
    grid = build_grid(measured(one, [BEST]), ["method"], [], notes, [], "T")
    told = [[notes.footnotes()[mark] for mark in row.cells[0].marks] for row in grid.rows]
    shared = [
        "Reduced scale (smoke): 2 rounds.",
        "Stand-in data: not the real mnist, but synthetic examples of its shape.",
    ]
    choice = "Our choice. client.lr: nobody says; seed: ours."
    assert told[0] == [*shared, "* Seed 1 diverged in round 7: loss is not finite.", choice]
    assert told[1] == [
        *shared,
        "Caveat: allow_adaptive: adam.",
        "There is no global model; scored as mean_acc.",
        "Seed 1 was refused: client.lr=0: above 0 is allowed",
        choice,
        "Our choice. algo.mu: a guess.",
    ]
    assert list(notes.footnotes()) == list("abcdefgh")
    assert grid.rows[0].cells[0].marks == ["a", "b", "c", "d"]


def test_real_data_at_full_scale_with_settings_of_the_paper_need_no_footnote(tmp_path):
    cell, notes = one_cell(
        tmp_path, {0: (0.8,)}, "f", BEST, provenance={"rounds": {"from": "paper", "why": "x"}}
    )
    assert cell.marks == []
    assert notes.footnotes() == {}


def test_after_z_come_double_letters(tmp_path):
    notes = Footnotes(study(tmp_path, experiment({}, TWO), lambda *_: {}, lambda *_: "missing"))
    assert [notes.mark(str(number)) for number in range(54)][24:] == [
        *"yz",
        *(2 * one for one in "abcdefghijklmnopqrstuvwxyz"),
        "aaa",
        "bbb",
    ]


def test_columns_are_named_for_programs_and_cells_that_do_not_exist_are_empty(tmp_path):
    axes = {**TWO, "data": {"X": "", "Y": ""}, "one": {"only": ""}}
    made = experiment({"form": "table"}, axes, seeds=[0], skip=[{"method": "B", "data": "Y"}])
    values = {"AX": 0.5, "AY": 0.6, "BX": 0.7}
    one = study(
        tmp_path, made, lambda labels, seed: metrics(values[labels["method"] + labels["data"]])
    )
    grid = build_grid(measured(one, [BEST]), ["method"], ["data"], Footnotes(one), [], "T")
    assert (grid.columns, grid.column_names, grid.measure) == ([["X"], ["Y"]], ["data"], "Best")
    assert [[cell.measured for cell in row.cells] for row in grid.rows] == [
        ["50.00", "60.00"],
        ["70.00", ""],
    ]
    both = build_grid(measured(one, [BEST, ROUNDS]), ["method"], ["data"], Footnotes(one), [], "T")
    assert both.columns == [["X", "Best"], ["X", "Rounds"], ["Y", "Best"], ["Y", "Rounds"]]
    assert both.column_names == ["data", "measure"]
    bare = build_grid(measured(one, [BEST]), ["method", "data"], [], Footnotes(one), [], "T")
    assert (bare.columns, bare.column_names, len(bare.rows)) == ([["Best"]], ["measure"], 3)


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (["method"], {"X": ["50.00", "70.00"], "Y": ["60.00", "80.00"]}),
        (["method", "data"], {"": ["50.00", "60.00", "70.00", "80.00"]}),
    ],
)
def test_rows_that_nobody_named_are_no_axis_of_the_columns(tmp_path, columns, shown):
    """Else every row would have the numbers of the column's label, whatever its own is."""
    axes = {**TWO, "data": {"X": "", "Y": ""}}
    values = {"AX": 0.5, "AY": 0.6, "BX": 0.7, "BY": 0.8}
    show = {"form": "table", "columns": columns, "measures": {"Best": "best_accuracy"}}
    one = study(
        tmp_path,
        experiment(show, axes, seeds=[0]),
        lambda labels, seed: metrics(values[labels["method"] + labels["data"]]),
    )
    rows = build_entry(one).grids[0].rows
    assert shown == {"".join(row.labels): [cell.measured for cell in row.cells] for row in rows}


def test_a_remark_that_files_share_stands_where_its_label_is_shown():
    shared = {
        "a": {"text": "About A.", "labels": ["A"]},
        "b": {"text": "About B or C.", "labels": ["B", "C"]},
    }
    given = {"remarks": ["Own."], "shared_remarks": shared}
    assert experiment({}, TWO, **given).remarks_shown() == ["Own.", "About A.", "About B or C."]
    narrow = experiment({}, TWO, keep={"method": ["B"]}, **given)
    assert narrow.remarks_shown() == ["Own.", "About B or C."]

"""Claims of the papers, judged on the runs of a study: what is compared with what, in whose favour,
and what decides nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from support.study_folders import experiment, metrics, study

from fedbench.report.experiments.experiment import Experiment, Published
from fedbench.report.judgement.claims import judge_claims
from fedbench.report.judgement.outcomes import Claim
from fedbench.report.numbers.runs import Study
from fedbench.report.numbers.significance import holm
from fedbench.report.output.entry import build_entry, with_measures
from fedbench.report.output.render import mark_repeats

SHOW = {"form": "table", "rows": ["method"], "measures": {"Best": "best_accuracy"}}
AXES = {"method": {"A": "", "B": "", "C": ""}, "data": {"X": "", "Y": ""}}
BEST = {"text": "A is best", "better": "A", "than": ["B", "C"]}
# By method and dataset, of seeds 0, 1 and 2; every seed is easier or harder for all.
EASE = (0.0, 0.06, -0.05)
OWN = {
    ("A", "X"): (0.80, 0.801, 0.802),
    ("A", "Y"): (0.60, 0.602, 0.601),
    ("B", "X"): (0.78, 0.78, 0.781),
    ("B", "Y"): (0.57, 0.571, 0.57),
    ("C", "X"): (0.79, 0.793, 0.791),
    ("C", "Y"): (0.61, 0.63, 0.612),
}


def made(*claims: dict[str, Any], show: dict | None = None, **fields: Any) -> Experiment:
    return experiment(show or SHOW, fields.pop("axes", AXES), claims=list(claims), **fields)


def curves(labels: dict[str, str], seed: int) -> dict[str, Any]:
    return metrics(OWN[labels["method"], labels["data"]][seed] + EASE[seed])


def judge(
    folder: Path, one: Experiment, files=curves, published: tuple = (), **given: Any
) -> list[Claim]:
    found = study(folder, one, files, **given)
    return judge_claims(with_measures(found), list(published))


def printed(method: str, value: float | None, std: float | None = None, **labels: str) -> Published:
    flag = "star" if value is None else ""
    return Published({"method": method, **labels}, "Best", str(value), value, std, flag)


def test_differences_are_paired_by_seed_and_in_points(tmp_path):
    (claim,) = judge(tmp_path, made({**BEST, "than": "B", "where": {"data": "X"}}))
    (one,) = claim.comparisons
    (panel,) = one.panels
    own, other = (np.array(OWN[name, "X"]) + EASE for name in "AB")
    test = stats.ttest_rel(100 * own, 100 * other)
    interval = test.confidence_interval(0.95)
    assert (panel.mean, panel.low, panel.high) == pytest.approx(
        (100 * np.mean(own - other), interval.low, interval.high)
    )
    assert (claim.outcome, panel.seeds, claim.unit) == ("supported", 3, "points")
    assert claim.detail == "+2.07 [+1.92, +2.21] points"


def test_a_claim_is_supported_by_all_comparisons_and_contradicted_by_one(tmp_path):
    whole, only, other = judge(
        tmp_path,
        made(BEST, {**BEST, "than": ["B"]}, {**BEST, "where": {"data": ["Y"]}, "than": ["C"]}),
    )
    assert only.outcome == "supported"
    assert [one.outcome for one in whole.comparisons] == ["supported", "undecided"]
    assert whole.outcome == "undecided"  # better than C on X, worse on Y
    assert whole.detail.startswith("against C: ")  # the least favourable first
    assert other.outcome == "undecided"
    steady = {**OWN, ("C", "X"): (0.81, 0.812, 0.811), ("C", "Y"): (0.61, 0.613, 0.611)}
    (lost,) = judge(
        tmp_path / "lost",
        made(BEST),
        lambda labels, seed: metrics(steady[labels["method"], labels["data"]][seed] + EASE[seed]),
    )
    assert [one.outcome for one in lost.comparisons] == ["supported", "contradicted"]
    assert lost.outcome == "contradicted"


def test_the_published_difference_stands_beside_the_measured_one(tmp_path):
    numbers = (
        printed("A", 81.0, data="X"),
        printed("B", 80.0, data="X"),
        printed("A", 61.0, data="Y"),
        printed("B", 58.0, data="Y"),
        printed("C", None, data="X"),
    )
    (claim,) = judge(tmp_path, made(BEST), published=numbers)
    against_b, against_c = claim.comparisons
    assert [panel.published for panel in against_b.panels] == [1.0, 3.0]
    assert against_b.published == 2.0
    assert against_c.published is None  # a star is no number to subtract
    assert ", published +2.00, 2 of 2 panels" in claim.detail


def test_rounds_count_the_other_way_round(tmp_path):
    show = {**SHOW, "measures": {"Rounds": {"name": "rounds_to", "target": 0.5}}}
    one = made({"text": "A is fastest", "better": "A", "than": ["B"]}, show=show)
    reached = {"A": (2, 3, 2), "B": (5, 7, 6), "C": (1, 1, 1)}

    def files(labels, seed):
        return metrics(*[0.1] * (reached[labels["method"]][seed] - 1), 0.5)

    (claim,) = judge(tmp_path, one, files)
    assert claim.outcome == "supported"
    assert claim.comparisons[0].mean == pytest.approx(11 / 3)
    (turned,) = judge(
        tmp_path / "2", made({"text": "B is fastest", "better": "B", "than": "A"}, show=show), files
    )
    assert (turned.outcome, turned.comparisons[0].mean) == ("contradicted", pytest.approx(-11 / 3))


def test_replaced_networks_and_stand_in_data_decide_nothing(tmp_path):
    scales = {"decisive": {"reduction": "less", "extra": {"data": {"Y": "model=lenet"}}}}
    (claim,) = judge(tmp_path, made({**BEST, "than": "B"}, scales=scales), scale="decisive")
    (one,) = claim.comparisons
    assert [panel.outcome for panel in one.panels] == ["supported", "not testable"]
    assert one.panels[1].reason == "this scale runs model=lenet instead"
    assert ", 1 of 2 panels" in claim.detail
    assert claim.comparisons[0].mean == pytest.approx(one.panels[0].mean)
    (all_of_it,) = judge(tmp_path / "2", made(BEST), data={"source": "synthetic"})
    assert (all_of_it.outcome, all_of_it.detail) == (
        "not testable",
        "stand-in data instead of mnist",
    )


def scaled(keep: dict, **more: Any) -> dict[str, Any]:
    return {"scales": {"decisive": {"reduction": "less", "keep": keep, **more}}}


def test_what_a_claim_names_and_a_scale_leaves_out_is_supported_in_part(tmp_path):
    """A is better than B everywhere; C and the panel Y are not run, or only in part."""
    easy = {**OWN, ("C", "X"): OWN["B", "X"], ("C", "Y"): OWN["B", "Y"]}
    tested = {
        "": {},
        "C": {"keep": {"method": ["A", "B"]}},
        "1 of 2 panels": {"keep": {"data": ["X"]}},
        "C; 1 of 2 panels": {"keep": {"method": ["A", "B"], "data": ["X"]}},
        "1 of 4 comparisons": {"keep": {}, "skip": [{"method": "C", "data": "Y"}]},
    }
    files = lambda labels, seed: metrics(easy[labels["method"], labels["data"]][seed] + EASE[seed])  # noqa: E731
    for place, (untested, left) in enumerate(tested.items()):
        one = made(BEST, **(scaled(**left) if left else {}))
        scale = "decisive" if left else "paper"
        (claim,) = judge(tmp_path / str(place), one, files, scale=scale)
        expected = "supported in part" if untested else "supported"
        assert (claim.outcome, claim.untested) == (expected, untested)
        assert claim.counted
    turned = {**BEST, "better": "B", "than": ["A", "C"]}
    (lost,) = judge(
        tmp_path / "lost", made(turned, **scaled({"method": ["A", "B"]})), files, scale="decisive"
    )
    assert (lost.outcome, lost.untested) == ("contradicted", "C")  # it needs no other comparison


def test_numbers_of_one_run_are_supported_in_part_where_panels_are_left_out(tmp_path):
    claim = {"text": "low", "below": 99, "measure": "Best", "where": {"method": "A"}}
    (whole,) = judge(tmp_path / "1", made(claim))
    assert (whole.outcome, whole.untested) == ("supported", "")
    one = made(claim, **scaled({"data": ["X"]}))
    (part,) = judge(tmp_path / "2", one, scale="decisive")
    assert (part.outcome, part.untested) == ("supported in part", "1 of 2 panels")


def test_what_cannot_be_run_here_is_not_testable_and_says_why(tmp_path):
    (claim,) = judge(tmp_path, made(BEST), status=lambda labels, seed: "refused")
    assert (claim.outcome, claim.detail) == ("not testable", "client.lr=0: above 0 is allowed")
    (later,) = judge(tmp_path / "2", made(BEST), status=lambda labels, seed: "missing")
    assert (later.outcome, later.comparisons[0].panels[0].reason) == ("undecided", "not run yet")
    kept = {"decisive": {"reduction": "less", "keep": {"method": ["B", "C"]}}}
    (gone,) = judge(tmp_path / "3", made(BEST, scales=kept), scale="decisive")
    assert (gone.outcome, gone.detail) == ("not testable", "left out at this scale")


def test_a_claim_that_nothing_measures_says_why(tmp_path):
    said, unsaid, aimless = judge(
        tmp_path,
        made(
            {"text": "it is elegant", "untestable": "elegance has no unit"},
            {"text": "it is fast"},
            {**BEST, "measure": "Speed"},
        ),
    )
    assert {claim.outcome for claim in (said, unsaid, aimless)} == {"not testable"}
    assert said.detail == "elegance has no unit"
    assert unsaid.detail == "no measure of this program can test it"
    assert aimless.detail == "its measure is not taken here"


def test_smoke_judges_nothing(tmp_path):
    one = study(
        tmp_path / "runs",
        made(BEST),
        curves,
        scale="smoke",
        facts=lambda *_: {"partition_hash": "x"},
    )
    entry = build_entry(one)
    assert [claim.outcome for claim in entry.claims] == [""]
    assert entry.state == "plumbing only"
    assert sum(entry.outcomes().values()) == 0
    assert {cell.verdict for row in entry.grids[0].rows for cell in row.cells} == {"unpublished"}


def test_on_a_par(tmp_path):
    """A margin of a point, or of two published standard deviations when that is more."""
    par = {"text": "A is on a par with C", "equal": "A", "to": ["C"], "where": {"data": "X"}}
    narrow, wide = made(par), made({**par, "margin": 2})
    assert judge(tmp_path / "1", narrow)[0].outcome == "undecided"  # 0.97 points
    assert judge(tmp_path / "2", wide)[0].outcome == "supported"
    noisy = (printed("A", 81.0, 0.8, data="X"),)
    assert judge(tmp_path / "3", narrow, published=noisy)[0].outcome == "supported"
    show = {**SHOW, "measures": {"Seconds": "seconds"}}
    assert judge(tmp_path / "4", made(par, show=show))[0].outcome == "not testable"


def test_a_gain_within_a_range(tmp_path):
    claim = {**BEST, "than": "B", "where": {"data": "X"}}
    inside, below, above = judge(
        tmp_path,
        made({**claim, "by": [1, 3]}, {**claim, "by": [3, 4]}, {**claim, "by": [2, 3]}),
    )
    assert [one.outcome for one in (inside, below, above)] == [
        "supported",
        "contradicted",
        "undecided",
    ]


def test_one_measure_above_another_of_the_same_run(tmp_path):
    show = {**SHOW, "measures": {"Best": "best_accuracy", "Final": "final_accuracy"}}
    claim = {"text": "it falls", "measure": "Best", "above": "Final", "where": {"method": "A"}}

    def files(labels, seed):
        drop = 0.02 + seed / 1000 if labels["data"] == "X" else 0.0
        return metrics(0.8 + EASE[seed], 0.8 + EASE[seed] - drop)

    (found,) = judge(tmp_path, made(claim, show=show), files)
    assert [(one.setting, one.outcome) for one in found.comparisons[0].panels] == [
        ("A, X", "supported"),
        ("A, Y", "undecided"),
    ]


def test_all_numbers_below_one(tmp_path):
    claim = {"text": "errs", "below": 70, "measure": "Best", "where": {"method": "A"}}
    (found,) = judge(tmp_path, made(claim))
    assert [one.outcome for one in found.comparisons[0].panels] == ["undecided", "undecided"]
    (low,) = judge(tmp_path / "2", made({**claim, "below": 30}))
    assert low.outcome == "contradicted"
    assert found.comparisons[0].panels[1].mean == pytest.approx(
        70 - 100 * np.mean(np.array(OWN["A", "Y"]) + EASE)
    )


def test_a_missed_target_is_a_lower_bound_of_what_lies_between(tmp_path):
    """Rounds as they are: who has not got there after 9 rounds needs more, not fewer."""
    show = {**SHOW, "measures": {"Rounds": {"name": "rounds_to", "target": 0.5}}}
    reached: dict[str, tuple[int | None, ...]] = {
        "A": (3, 4, 4),
        "B": (8, 7, None),
        "C": (3, 4, None),
    }

    def files(labels, seed):
        rounds = reached[labels["method"]][seed]
        return metrics(*[0.5 if number == rounds else 0.1 for number in range(1, 10)])

    def claim(method: str, low: float, high: float) -> dict[str, Any]:
        where = {"method": method, "data": "X"}
        text = f"{method} between {low} and {high}"
        return {"text": text, "between": [low, high], "measure": "Rounds", "where": where}

    limits = [("A", 1, 6), ("B", 1, 4), ("B", 20, 30), ("B", 1, 20), ("C", 7, 9)]
    found = judge(tmp_path, made(*(claim(*one) for one in limits), show=show), files)
    assert [one.outcome for one in found] == [
        "supported",
        "contradicted",  # 8, 7 and more than 9 rounds are more than 4
        "undecided",  # but perhaps not fewer than 20
        "undecided",  # and perhaps not fewer than 20 here, either
        "undecided",
    ]
    missed = "it did not reach the target in 1 seed"
    assert [one.comparisons[0].reason for one in found[2:4]] == [missed, missed]


def test_another_axis(tmp_path):
    claim = {"text": "X is easier", "axis": "data", "better": "X", "than": "Y"}
    (found,) = judge(tmp_path, made(claim))
    assert found.outcome == "supported"
    assert [panel.setting for panel in found.comparisons[0].panels] == ["A", "B", "C"]


def test_further_readings_and_repeated_claims_are_not_counted(tmp_path):
    run = study(tmp_path / "runs", made(), curves, facts=lambda *_: {"partition_hash": "x"})

    def entry(number: str, *claims: dict, **fields: Any):
        """An experiment of its own on the same run folders."""
        one = made(*claims, **fields)
        found = build_entry(Study(one, "paper", run.runs, run.results))
        found.number = number
        return found

    part = {**BEST, "where": {"data": "X"}, "text": "A is best on X"}
    turned = {"text": "B is best", "better": "B", "than": ["A"]}
    table = entry("Table 1", BEST, turned, readings=["C"])
    figure = entry("Figure 1", part, turned, {**BEST, "measure": "Best", "than": "B"})
    mark_repeats([table, figure])
    assert [claim.reading for claim in table.claims] == [True, False]  # C is a further reading
    assert [claim.repeats for claim in figure.claims] == ["", "Table 1", ""]
    table = entry("Table 1", BEST, turned)
    mark_repeats([table, figure])
    assert [claim.repeats for claim in figure.claims] == ["Table 1", "Table 1", "Table 1"]
    assert sum(figure.outcomes().values()) == 0
    assert table.outcomes() == {
        "supported": 0,
        "supported in part": 0,
        "contradicted": 1,
        "undecided": 1,
        "not testable": 0,
    }
    assert (table.state, figure.state) == ("partly decided", "decided")
    figure.paper = "Another paper"
    mark_repeats([table, figure])
    assert [claim.repeats for claim in figure.claims] == ["", "", ""]


def test_a_setting_may_be_a_further_reading_too(tmp_path):
    """Claims about it are marked, and others are judged without it."""
    on_y = {**BEST, "text": "A is best on Y", "where": {"data": ["Y"]}}
    everywhere, there = judge(tmp_path, made(BEST, on_y, readings=["Y"]))
    assert (everywhere.reading, there.reading) == (False, True)
    assert [[panel.setting for panel in one.panels] for one in everywhere.comparisons] == [
        ["X"]
    ] * 2
    assert [[panel.setting for panel in one.panels] for one in there.comparisons] == [["Y"]] * 2


def test_p_values_are_counted(tmp_path):
    show = {
        **SHOW,
        "measures": {"p": {"name": "mcnemar", "against": {"method": "A"}}},
    }
    labels = np.zeros(60, np.int64)

    def files(names, seed):
        wrong = labels.copy()
        wrong[: {"A": 10, "B": 40, "C": 12}[names["method"]]] = 1
        return metrics(0.5) | {"predictions.npz": {"labels": labels, "best": wrong, "final": wrong}}

    claim = {"text": "all significant", "below": 0.05, "measure": "p", "where": {"data": "X"}}
    (found,) = judge(tmp_path / "1", made(claim, show=show), files)
    # No difference was found from C, which is not to say that there is none.
    assert (found.outcome, found.detail) == ("undecided", "1 of 2 cells below 0.05; not: C, X")
    (good,) = judge(tmp_path / "2", made({**claim, "where": {"method": "B"}}, show=show), files)
    assert (good.outcome, good.detail) == ("supported", "2 of 2 cells below 0.05")
    (few,) = judge(
        tmp_path / "3", made({**claim, "where": {"method": "B"}}, show=show, seeds=[0]), files
    )
    assert few.outcome == "undecided"
    less = made(
        {**claim, "where": {"method": ["B", "C"]}}, show=show, **scaled({"method": ["A", "B"]})
    )
    (part,) = judge(tmp_path / "5", less, files, scale="decisive")
    assert (part.outcome, part.untested) == ("supported in part", "2 of 4 cells")
    ahead = {**show, "measures": {"p": {"name": "mcnemar", "against": {"method": "B"}}}}
    (lost,) = judge(tmp_path / "4", made({**claim, "where": {"method": "A"}}, show=ahead), files)
    assert lost.outcome == "contradicted"  # A is far ahead of B


def test_only_the_panels_that_are_judged_are_counted(tmp_path):
    """Of the others neither the published difference nor the runs enter what is said of all."""
    axes = {"method": {"A": "", "B": ""}, "data": dict.fromkeys("UVWX", "")}
    numbers = [
        one
        for data, gain in zip("UVWX", (1.0, 3.0, 30.0, 48.0), strict=True)
        for one in (printed("A", 50 + gain, data=data), printed("B", 50.0, data=data))
    ]

    def files(labels, seed):
        if labels["data"] in "WX":  # the other way round, with one seed
            return metrics(0.5 if labels["method"] == "A" else 0.9)
        return metrics(0.6 + EASE[seed] + (labels["method"] == "A") * (0.02 + seed / 1000))

    def status(labels, seed):
        return "missing" if labels["data"] in "WX" and seed else "finished"

    claim = {"text": "A is better", "better": "A", "than": "B"}
    (found,) = judge(tmp_path, made(claim, axes=axes), files, tuple(numbers), status=status)
    (one,) = found.comparisons
    assert one.published == 2.0
    assert [panel.counted for panel in one.panels] == [True, True, False, False]
    assert found.detail.endswith(", published +2.00, 2 of 4 panels")
    two = judge(
        tmp_path / "2", made({**claim, "where": {"data": ["U", "V"]}}, axes=axes), files, numbers
    )
    assert one.improvement == two[0].comparisons[0].improvement


def test_a_margin_is_that_of_the_cells_that_are_compared(tmp_path):
    """A point, or two published standard deviations of these; in each panel its own."""
    par = {"text": "A is on a par with C", "equal": "A", "to": ["C"], "where": {"data": "X"}}
    noisy = (printed("B", 81.0, 8.0, data="X"), printed("A", 60.0, 8.0, data="Y"))
    assert judge(tmp_path / "1", made(par), published=noisy)[0].outcome == "undecided"
    own = (*noisy, printed("C", 81.0, 0.8, data="X"))
    assert judge(tmp_path / "2", made(par), published=own)[0].outcome == "supported"
    both = made({**par, "where": {}})
    (found,) = judge(tmp_path / "3", both, published=noisy)
    assert [one.outcome for one in found.comparisons[0].panels] == ["undecided", "supported"]


def test_p_is_corrected_over_the_panels_of_a_comparison_and_once(tmp_path):
    """With a single panel each comparison has its own p; several lose only to Holm over them."""
    (claim,) = judge(tmp_path, made({**BEST, "where": {"data": "X"}}))
    for one, other in zip(claim.comparisons, "BC", strict=True):
        own, than = (np.array(OWN[name, "X"]) + EASE for name in ("A", other))
        assert one.p == pytest.approx(stats.ttest_rel(own, than).pvalue)
        assert one.panels[0].p == one.p
    (both,) = judge(tmp_path / "2", made(BEST))
    raw = [stats.ttest_1samp(np.array(OWN["A", data]) - OWN["B", data], 0).pvalue for data in "XY"]
    assert [panel.p for panel in both.comparisons[0].panels] == pytest.approx(holm(raw))


def test_different_claims_about_refused_runs_are_not_the_same(tmp_path):
    first, second = ({**BEST, "than": other} for other in "BC")

    def entry(number: str, claim: dict):
        made_up = study(
            tmp_path / number,
            made(claim),
            curves,
            lambda labels, seed: "refused",
            facts=lambda *_: {"partition_hash": "x"},
        )
        found = build_entry(made_up)
        found.number = number
        return found

    table, other, same = entry("Table 1", first), entry("Table 2", second), entry("Table 3", first)
    mark_repeats([table, other, same])
    assert [one.claims[0].repeats for one in (table, other, same)] == ["", "", "Table 1"]


def test_a_row_a_run(tmp_path):
    show = {
        **SHOW,
        "measures": {
            "Best": "best_accuracy",
            "Rounds": {"name": "rounds_to", "target": 0.61},
            "Speed-up": {"name": "speed_up", "of": "Rounds", "baseline": {"method": "A"}},
        },
    }
    one = study(
        tmp_path,
        made(show=show),
        lambda labels, seed: metrics(0.2, 0.6 + seed / 100 + (labels["method"] == "B") / 50),
        lambda labels, seed: "diverged" if labels["method"] == "C" else "finished",
    )
    frame = with_measures(one).runs
    assert len(frame) == 18
    assert list(frame.columns) == [
        *("method", "data", "seed", "overrides", "folder", "status", "problem", "instead"),
        *("reference", "excluded", "Best", "Best state", "Best limit"),
        *("Rounds", "Rounds state", "Rounds limit"),
        *("Speed-up", "Speed-up state", "Speed-up limit"),
    ]
    first = frame[(frame["method"] == "A") & (frame["data"] == "X")]
    assert list(first["Best"]) == pytest.approx([60, 61, 62])
    assert first["Rounds"].tolist()[1:] == [2, 2]
    assert first["Rounds state"].tolist() == ["unreached", "ok", "ok"]
    assert list(first["Rounds limit"]) == [2, 2, 2]
    second = frame[(frame["method"] == "B") & (frame["data"] == "X")]
    assert second["Speed-up"].isna().tolist() == [True, False, False]  # A never got there
    lost = frame[frame["method"] == "C"]
    assert lost["Best"].isna().all()
    assert set(lost["Best state"]) == {"diverged"}

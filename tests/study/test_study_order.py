"""Whether the methods stand in the published order, pair by pair."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.study_folders import experiment, metrics, study

from fedbench.study.experiment import Published
from fedbench.study.measures import as_measure
from fedbench.study.order import compare_order, order_claim
from fedbench.study.table import Values

BEST = as_measure("Best", "best_accuracy")
ROUNDS = as_measure("Rounds", {"name": "rounds_to", "target": 0.5})
ABC = {"method": {"A": "", "B": "", "C": ""}}


def printed(
    method: str, value: float | None, measure: str = "Best", flag: str = "", **labels: str
) -> Published:
    return Published({"method": method, **labels}, measure, str(value), value, None, flag)


def test_by_hand():
    published = {"FedAvg": 80.0, "FedProx": 81.0, "SCAFFOLD": 85.0, "absent": 90.0, "dash": None}
    measured = {"FedAvg": 70.0, "FedProx": 69.0, "SCAFFOLD": 75.0, "local": 99.0, "dash": 3.0}
    found = compare_order(measured, published, higher=True)
    assert found.as_published == [("SCAFFOLD", "FedAvg"), ("SCAFFOLD", "FedProx")]
    assert found.otherwise == [("FedProx", "FedAvg")]
    assert found.undecided == 3  # all pairs with the one that was not measured


def test_ties():
    """A printed tie is no order to find again; a measured one is not the printed order."""
    tied = compare_order(
        {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 1.0, "b": 1.0, "c": 3.0}, higher=True
    )
    assert (tied.decided, tied.otherwise) == (2, [])
    assert compare_order({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0}, higher=True).otherwise == [
        ("b", "a")
    ]


def test_what_both_failed_decides_nothing():
    measured = {"a": math.inf, "b": math.inf, "c": 5.0}
    found = compare_order(measured, {"a": 10.0, "b": 20.0, "c": 30.0}, higher=False)
    assert (found.as_published, found.otherwise, found.undecided) == (
        [],
        [("a", "c"), ("b", "c")],
        1,
    )


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=6), st.booleans()
)
def test_lists_that_agree_and_that_oppose(numbers, higher):
    measured = {str(name): float(one) for name, (one, _) in enumerate(numbers)}
    published = {str(name): float(two) for name, (_, two) in enumerate(numbers)}
    assert compare_order(measured, measured, higher).otherwise == []
    opposite = compare_order(measured, {name: -value for name, value in measured.items()}, higher)
    assert opposite.as_published == []
    one, two = (
        compare_order(measured, published, higher),
        compare_order(measured, published, not higher),
    )
    assert {frozenset(pair) for pair in one.as_published} == {
        frozenset(pair) for pair in two.as_published
    }


@pytest.mark.parametrize(
    ("order", "verdict", "detail"),
    [
        ("abc", "holds", "3 of 3 pairs of methods, 1 of 1 columns in full"),
        (
            "acb",
            "fails",
            (
                "2 of 3 pairs of methods, 0 of 1 columns in full; published but not measured: B"
                " before C"
            ),
        ),
        (
            "cba",
            "fails",
            (
                "0 of 3 pairs of methods, 0 of 1 columns in full; published but not measured: "
                "A before B; A before C; B before C"
            ),
        ),
        ("a", None, ""),
        ("", None, ""),
    ],
)
def test_a_column(tmp_path, order, verdict, detail):
    one = study(
        tmp_path,
        experiment({}, ABC, seeds=[0]),
        lambda labels, seed: metrics({"A": 0.1, "B": 0.2, "C": 0.3}[labels["method"]]),
    )
    claim = order_claim(
        Values(one, [BEST]), BEST, [printed(name.upper(), float(n)) for n, name in enumerate(order)]
    )
    assert (claim.verdict if claim else None) == verdict
    assert (claim.detail if claim else "") == detail


def test_of_rounds_the_fewest_come_first_and_a_star_last(tmp_path):
    curves = {"A": (0.5,), "B": (0.1, 0.5), "C": (0.1, 0.1, 0.5)}
    one = study(
        tmp_path,
        experiment({}, ABC, seeds=[0]),
        lambda labels, seed: metrics(*curves[labels["method"]]),
    )
    values = Values(one, [ROUNDS])
    swapped = [printed("A", 30.0, "Rounds"), printed("B", 20.0, "Rounds")]
    claim = order_claim(values, ROUNDS, swapped)
    assert claim.verdict == "fails"
    assert claim.detail.endswith("published but not measured: B before A")
    starred = order_claim(
        values, ROUNDS, [printed("A", None, "Rounds", "star"), printed("B", 20.0, "Rounds")]
    )
    assert starred.verdict == "fails"  # what the paper never saw arrive is the fastest here
    over = order_claim(
        values, ROUNDS, [printed("B", 20.0, "Rounds"), printed("C", 9.0, "Rounds", "over")]
    )
    assert over.verdict == "holds"
    dash = order_claim(
        values, ROUNDS, [printed("A", None, "Rounds", "none"), printed("B", 20.0, "Rounds")]
    )
    assert dash is None


def test_nothing_reached_is_untested_and_what_was_not_run_is_told(tmp_path):
    published = [printed(name, 10.0 * place, "Rounds") for place, name in enumerate("ABC")]
    one = study(tmp_path / "1", experiment({}, ABC, seeds=[0]), lambda labels, seed: metrics(0.1))
    assert order_claim(Values(one, [ROUNDS]), ROUNDS, published).verdict == "untested"
    two = study(
        tmp_path / "2",
        experiment({}, ABC, seeds=[0]),
        lambda labels, seed: metrics(*{"A": (0.5,), "B": (0.1, 0.5)}[labels["method"]]),
        lambda labels, seed: "missing" if labels["method"] == "C" else "finished",
    )
    claim = order_claim(Values(two, [ROUNDS]), ROUNDS, published)
    assert claim.verdict == "holds"
    assert claim.detail.endswith("; 2 pairs undecided (not run, or both failed)")


def test_further_readings_of_a_method_have_no_place_of_their_own(tmp_path):
    made = experiment({}, ABC, seeds=[0], proposed=["A", "B", "C"], readings=["C"])
    one = study(
        tmp_path,
        made,
        lambda labels, seed: metrics({"A": 0.1, "B": 0.2, "C": 0.0}[labels["method"]]),
    )
    published = [printed("A", 10.0), printed("B", 20.0), printed("C", 20.0)]
    assert order_claim(Values(one, [BEST]), BEST, published).detail.startswith("1 of 1 pairs")

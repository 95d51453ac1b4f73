"""Claims of the papers, checked column by column: they hold, fail, hold partly, or nothing can be
said.
"""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fedbench.study.verdict import check_claim

CLAIM = {"text": "A is best", "better": "A", "than": ["B", "C"], "measure": "Accuracy"}


def cells(table: dict[tuple[str, str], dict[str, float | None]]) -> dict:
    """dataset, alpha -> method -> value, by the labels of cells."""
    return {
        (("dataset", dataset), ("alpha", alpha), ("method", method)): value
        for (dataset, alpha), row in table.items()
        for method, value in row.items()
    }


GOOD = {"A": 90.0, "B": 80.0, "C": 70.0}


def test_a_claim_that_holds_fails_or_holds_in_part():
    lost = {"A": 24.9, "B": 25.3, "C": 25.0}
    holds = check_claim(CLAIM, cells({("MNIST", "0.5"): GOOD, ("MNIST", "1.0"): GOOD}), higher=True)
    assert (holds.text, holds.verdict, holds.detail) == ("A is best", "holds", "2 of 2 columns")
    partly = check_claim(
        CLAIM, cells({("MNIST", "0.5"): GOOD, ("CIFAR100", "0.5"): lost}), higher=True
    )
    assert partly.verdict == "partly"
    assert partly.detail == "1 of 2 columns; not in CIFAR100, alpha 0.5: 24.9 against 25.3 (B)"
    fails = check_claim(CLAIM, cells({("CIFAR100", "0.5"): lost}), higher=True)
    assert (fails.verdict, fails.detail.partition(";")[0]) == ("fails", "0 of 1 column")


def test_lower_is_better_for_rounds():
    table = cells({("MNIST", "0.5"): GOOD})
    found = check_claim(CLAIM, table, higher=False)
    assert (found.verdict, found.detail) == (
        "fails",
        "0 of 1 column; not in MNIST, alpha 0.5: 90 against 70 (C)",
    )
    assert (
        check_claim({**CLAIM, "better": "C", "than": ["A", "B"]}, table, higher=False).verdict
        == "holds"
    )


def test_a_tie_is_not_better():
    found = check_claim(
        {**CLAIM, "than": "B"}, cells({("MNIST", "0.5"): {"A": 80.0, "B": 80.0}}), higher=True
    )
    assert (found.verdict, found.detail.rpartition(": ")[2]) == ("fails", "80 against 80 (B)")


def test_numbers_that_differ_are_shown_to_differ():
    found = check_claim(
        {**CLAIM, "than": "B"}, cells({("MNIST", "1"): {"A": 99.00001, "B": 99.00002}}), higher=True
    )
    assert found.detail.endswith("99.00001 against 99.00002 (B)")


def test_several_that_should_be_better():
    claim = {**CLAIM, "better": ["A", "B"], "than": ["B", "C"]}  # A > B, A > C, B > C
    assert check_claim(claim, cells({("MNIST", "1.0"): GOOD}), higher=True).verdict == "holds"
    found = check_claim(
        claim, cells({("MNIST", "1.0"): {"A": 90.0, "B": 60.0, "C": 70.0}}), higher=True
    )
    assert found.detail == "0 of 1 column; not in MNIST, alpha 1.0: B 60 against 70 (C)"


def test_where_restricts_the_columns():
    bad = {"A": 1.0, "B": 2.0, "C": 3.0}
    table = cells({("MNIST", "0.5"): GOOD, ("CIFAR10", "0.5"): bad, ("CIFAR10", "1.0"): GOOD})
    assert check_claim(CLAIM, table, higher=True).verdict == "partly"
    assert (
        check_claim({**CLAIM, "where": {"dataset": ["MNIST"]}}, table, higher=True).detail
        == "1 of 1 column"
    )
    only = {
        **CLAIM,
        "where": {"dataset": "CIFAR10", "alpha": [0.5]},
    }  # YAML reads a bare 0.5 as a number
    assert check_claim(only, table, higher=True).verdict == "fails"


def test_what_was_not_measured_is_left_out_and_said():
    table = cells(
        {
            ("MNIST", "0.5"): {"A": 90.0, "B": None, "C": 70.0},
            ("CIFAR10", "0.5"): {"A": None, "B": 1.0},
        }
    )
    found = check_claim(CLAIM, table, higher=True)
    assert (found.verdict, found.detail) == (
        "holds",
        "1 of 1 column; 3 of 4 comparisons not measured",
    )
    nothing = check_claim(
        CLAIM, cells({("MNIST", "0.5"): {"A": None, "B": 1.0, "C": None}}), higher=True
    )
    assert (nothing.verdict, nothing.detail) == ("untested", "no column is measured")
    assert check_claim(CLAIM, {}, higher=True).verdict == "untested"


def test_diverged_loses_to_every_number_and_is_not_compared_with_its_like():
    lost = check_claim(
        CLAIM, cells({("MNIST", "0.5"): {"A": -math.inf, "B": 10.0, "C": -math.inf}}), higher=True
    )
    assert (
        lost.detail
        == "0 of 1 column; not in MNIST, alpha 0.5: * against 10 (B); 1 of 2 comparisons not"
        " measured"
    )
    won = check_claim(
        CLAIM, cells({("MNIST", "0.5"): {"A": 40.0, "B": math.inf, "C": math.inf}}), higher=False
    )
    assert won.verdict == "holds"


def test_another_axis_and_a_single_column():
    claim = {
        "text": "more clients are slower",
        "better": "10",
        "than": ["100"],
        "axis": "clients",
        "measure": "Rounds",
    }
    values = {(("clients", "10"),): 30.0, (("clients", "100"),): 20.0}
    found = check_claim(claim, values, higher=False)
    assert (found.verdict, found.detail) == ("fails", "0 of 1 column; 30 against 20 (100)")


def test_many_failures_are_counted_not_listed():
    bad = {"A": 1.0, "B": 2.0, "C": 3.0}
    found = check_claim(
        CLAIM, cells({("MNIST", str(alpha)): bad for alpha in range(1, 6)}), higher=True
    )
    assert found.detail.count("against") == 3
    assert found.detail.endswith("and 2 more")


@given(
    st.dictionaries(
        st.sampled_from("xyz"), st.lists(st.none() | st.integers(0, 3), min_size=3, max_size=3)
    )
)
def test_sets_of_labels_and_turned_values_give_the_same(table):
    values = {
        (("alpha", "1"), ("dataset", column), ("method", name)): number
        for column, numbers in table.items()
        for name, number in zip("ABC", numbers, strict=True)
    }
    found = check_claim(CLAIM, values, higher=True)
    assert (
        check_claim(CLAIM, {frozenset(key): value for key, value in values.items()}, higher=True)
        == found
    )
    turned = {key: None if value is None else -value for key, value in values.items()}
    assert check_claim(CLAIM, turned, higher=False).verdict == found.verdict
    measured = [
        row
        for row in table.values()
        if row[0] is not None and (row[1] is not None or row[2] is not None)
    ]
    good = [row for row in measured if all(other is None or row[0] > other for other in row[1:])]
    expected = (
        "untested"
        if not measured
        else "fails"
        if not good
        else "holds"
        if good == measured
        else "partly"
    )
    assert found.verdict == expected


def test_all_numbers_below_one():
    claim = {"text": "significant everywhere", "below": 0.05, "where": {"alpha": ["0.5"]}}
    cell = lambda method, alpha: (("method", method), ("alpha", alpha))  # noqa: E731
    values = {
        cell("A", "0.5"): 0.01,
        cell("B", "0.5"): 0.05,
        cell("C", "0.5"): None,
        cell("A", "1.0"): 0.9,
    }
    found = check_claim(claim, values, higher=False)
    assert (found.verdict, found.detail) == (
        "partly",
        "1 of 2 cells below 0.05; not: B, alpha 0.5 0.05; 1 of 3 cells not measured",
    )
    assert check_claim(claim, {cell("A", "0.5"): 0.01}, higher=False).verdict == "holds"
    assert check_claim(claim, {cell("A", "0.5"): float("inf")}, higher=False).verdict == "fails"
    assert check_claim(claim, {cell("A", "0.5"): None}, higher=False).verdict == "untested"

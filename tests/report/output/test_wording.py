"""What stands below a table: how its numbers are taken, and what counts as near."""

from __future__ import annotations

import pytest

from fedbench.report.experiments.experiment import Published
from fedbench.report.experiments.spec import as_measure
from fedbench.report.output.wording import caption


def published(label: str) -> list[Published]:
    return [Published({"method": "A"}, label, "1", 1.0, None, "")]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"name": "rounds_to", "target": 0.5},
            (
                "M: rounds until the test accuracy of a single evaluation reaches 50 %, median over"
                " seeds; match within a factor of 1.25, near within 2."
            ),
        ),
        (
            {"name": "bytes_to", "target": {"alpha": {"0.1": 0.4, "1": 0.65}}, "window": 3},
            (
                "M: megabytes until the test accuracy as the mean of 3 evaluations in a row reaches"
                " (alpha) 0.1 40 %, 1 65 %, median over seeds; match within a factor of 1.25, near"
                " within 2."
            ),
        ),
        (
            "best_accuracy",
            "M: match within 1 points (or 2 published standard deviations), near within 3 points.",
        ),
        (
            {"name": "best_accuracy", "tolerance": {"match": 5}},
            "M: match within 5 points, near within 5 points.",
        ),
        ({"name": "mcnemar", "against": {"method": "A"}}, "M: match on the same side of 0.05."),
        ("seconds", "M: match within a factor of 1.1, near within 1.5."),
        (
            {
                "name": "difference_to",
                "of": "Best",
                "cell": {"clients": "100"},
                "reverse": True,
                "percent": True,
            },
            (
                "M: Best, that of clients 100, minus its own, seed by seed; match within 1 points,"
                " near within 3 points."
            ),
        ),
    ],
)
def test_a_measure(spec, told):
    assert caption([as_measure("M", spec)], published("M")) == told


def test_without_a_published_number_there_is_no_tolerance():
    best, target = as_measure("Best", "best_accuracy"), {"best_of": {"method": "FedAvg"}}
    rounds = as_measure("Rounds", {"name": "rounds_to", "target": target})
    assert (
        caption([best, rounds], [])
        == "Rounds: rounds until the test accuracy of a single evaluation reaches what FedAvg"
        " reached at best, median over seeds."
    )

"""A measure of a cell over its seeds, in words and as a number."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedbench.report.readers import Reading
from fedbench.report.statistics import Censored, Summary, censored, plain, summarise

NOT_RUN = (
    "missing",
    "damaged",
    "not archived",
    "no target",
)  # states of readings that say nothing about the method


@dataclass
class Value:
    """A measure of a cell over its seeds, in words and as a number."""

    text: str
    number: float | None = None  # the mean or median; None without one
    sign: str = ""  # ">" or "<" when the number is only a bound
    failed: bool = False  # diverged, or never reached
    behind: bool = False  # of a test: the one that should be better is significantly worse
    readings: list[Reading] = field(default_factory=list)
    detail: str = ""

    def for_claim(self, higher: bool) -> float | None:
        """Diverged or never reached loses to every number."""
        if self.failed:
            return -math.inf if higher else math.inf
        return self.number


def plain_value(found: list[Reading], decimals: int | None) -> Value:
    """Mean and standard deviation of what finished, and of how many seeds; `*` when one
    diverged.
    """
    diverged = sum(reading.state == "diverged" for reading in found)
    values = [reading.value for reading in found if reading.state == "ok"]
    summary = summarise(values, len(found), diverged)
    detail = "seeds: " + ", ".join(_seed_words(reading, decimals) for reading in found)
    if summary.mean is None:
        seeds = f" (0 of {len(found)} seeds)" if len(found) > 1 else ""
        return Value(
            f"*{seeds}" if diverged else "-", failed=bool(diverged), readings=found, detail=detail
        )
    failed = 2 * diverged >= len(found)  # a mean over the lucky seeds is no result of the method
    return Value(
        summary_text(summary, decimals) + seeds_part(found),
        summary.mean,
        "",
        failed,
        readings=found,
        detail=detail,
    )


def seeds_part(*lists: list[Reading]) -> str:
    """` *(2 of 3 seeds)` when a seed diverged, without star when one is missing; of several lists
    the worst counts.
    """
    complete = [
        [reading.state in ("ok", "unreached") for reading in found] for found in lists if found
    ]
    if all(map(all, complete)):
        return ""
    fewest = min(complete, key=lambda found: sum(found) / len(found))
    star = any(reading.state == "diverged" for found in lists for reading in found)
    return seeds_text(sum(fewest), len(fewest), star)


def seeds_text(count: int, wanted: int, star: bool = False) -> str:
    return "" if count == wanted else f" {'*' if star else ''}({count} of {wanted} seeds)"


def maximum_value(found: list[Reading], decimals: int) -> Value:
    """The largest of all seeds, where a paper prints that instead of a mean."""
    mean = plain_value(found, decimals)
    values = [reading.value for reading in found if reading.value is not None]
    if not values:
        return mean
    text = f"{max(values):.{decimals}f}{seeds_part(found)}"
    return Value(text, max(values), "", mean.failed, readings=found, detail=mean.detail)


def summary_text(summary: Summary, decimals: int | None) -> str:
    show = (lambda value: f"{value:.{decimals}f}") if decimals is not None else plain
    spread = f" ± {show(summary.std)}" if summary.std is not None else ""
    return f"{'-' if summary.mean is None else show(summary.mean)}{spread}"


def cost_value(found: list[Reading]) -> Value:
    """The median over seeds, in which a seed that did not get there counts as later than all
    others.
    """
    median = as_censored(found)
    if not median.count:
        aimless = any(reading.state == "no target" for reading in found)
        return Value(
            "-",
            readings=found,
            detail="there is no target to reach" if aimless else "no seed was run",
        )
    detail = f"{median.reached} of {median.count} seeds reached it" + (
        f", {median.range}" if median.range else ""
    )
    part = seeds_part(found)
    if median.value is None:  # all diverged: `*` says so
        part = seeds_text(0, len(found)) if len(found) > 1 else ""
    return Value(
        median.text + part, median.value, median.sign, median.failed, readings=found, detail=detail
    )


def as_censored(found: list[Reading]) -> Censored:
    run = [reading for reading in found if reading.state not in NOT_RUN]
    limits = [reading.limit or 0.0 for reading in run]
    lost = [reading.state == "diverged" for reading in run]
    return censored([reading.value for reading in run], limits, lost, len(found))


def _seed_words(reading: Reading, decimals: int | None) -> str:
    if reading.value is None:
        return {
            "diverged": "*",
            "damaged": "damaged",
            "not archived": "not archived",
            "unreached": f"> {plain(reading.limit or 0.0)}",
        }.get(reading.state, "-")
    return f"{reading.value:.{decimals}f}" if decimals is not None else plain(reading.value)

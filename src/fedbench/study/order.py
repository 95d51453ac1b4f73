"""Whether the methods of a table stand in the published order: every pair that the paper puts in
order is checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

from fedbench.study.comparison import METHOD, column_title, columns_of
from fedbench.study.experiment import Published
from fedbench.study.measures import Measure
from fedbench.study.model import Claim
from fedbench.study.table import Values

PARTLY = (
    0.75  # share of pairs in the published order from which the order is partly the published one
)
TOLD = 3  # pairs that are named


@dataclass
class Order:
    """Pairs of methods that the paper puts in an order, the better one first."""

    as_published: list[tuple[str, str]] = field(default_factory=list)
    otherwise: list[tuple[str, str]] = field(default_factory=list)  # the other way round, or a tie
    undecided: int = 0  # one of them was not run, or both failed

    @property
    def decided(self) -> int:
        return len(self.as_published) + len(self.otherwise)


def compare_order(
    measured: Mapping[str, float | None], published: Mapping[str, float | None], higher: bool
) -> Order:
    """Of methods with a published place. Infinite is "diverged" or "never reached", with the sign
    that is worst.

    Where the paper has a tie there is no order to find again. What was not measured, and two that
    both failed, decide nothing. A tie where the paper has an order is not that order.
    """
    order = Order()
    for one, two in combinations([name for name in published if published[name] is not None], 2):
        if published[one] == published[two]:
            continue
        first, second = (one, two) if (published[one] > published[two]) == higher else (two, one)
        own, other = measured.get(first), measured.get(second)
        if own is None or other is None or not (math.isfinite(own) or math.isfinite(other)):
            order.undecided += 1
        elif own != other and (own > other) == higher:
            order.as_published.append((first, second))
        else:
            order.otherwise.append((first, second))
    return order


def order_claim(values: Values, measure: Measure, published: list[Published]) -> Claim | None:
    """Column by column. A paper has one number for its method: further readings of it, which the
    file names, are out.

    A printed star (it did not converge, or did not get there) comes last, as it does here. A cell
    for which the scale ran other data or another network says nothing about the paper's.
    """
    experiment, higher = values.study.experiment, measure.higher_is_better
    worst = -math.inf if higher else math.inf
    numbers = {
        frozenset(one.labels.items()): worst if one.flag in ("star", "over") else one.value
        for one in published
        if one.measure == measure.label and one.flag != "none"
    }
    orders = {}
    for others, column in columns_of(values.study).items():
        ranked = [cell for cell in column if cell.labels[METHOD] not in experiment.readings]
        replaced = [cell for cell in ranked if experiment.replaced(cell.labels, values.study.scale)]
        measured = {
            cell.labels[METHOD]: values.of(cell, measure).for_claim(higher) for cell in ranked
        }
        measured |= {cell.labels[METHOD]: None for cell in replaced}
        printed = {
            cell.labels[METHOD]: numbers.get(frozenset(cell.labels.items())) for cell in ranked
        }
        orders[column_title(others)] = compare_order(measured, printed, higher)
    if not any(order.decided + order.undecided for order in orders.values()):
        return None
    return _judged(f"The methods' order in {measure.label} is the published one", orders)


def _judged(text: str, orders: Mapping[str, Order]) -> Claim:
    decided, undecided = (
        sum(getattr(order, key) for order in orders.values()) for key in ("decided", "undecided")
    )
    if not decided:
        return Claim(text, "untested", "no two methods of a column can be compared")
    agreeing = sum(len(order.as_published) for order in orders.values())
    tested = [order for order in orders.values() if order.decided]
    whole = sum(not order.otherwise for order in tested)
    verdict = (
        "holds" if agreeing == decided else "partly" if agreeing >= PARTLY * decided else "fails"
    )
    detail = f"{agreeing} of {decided} pairs of methods, {whole} of {len(tested)} columns in full"
    lost = [
        f"{title}{' before '.join(pair)}"
        for title, order in orders.items()
        for pair in order.otherwise
    ]
    if lost:
        more = f" and {len(lost) - TOLD} more" if len(lost) > TOLD else ""
        detail += f"; published but not measured: {'; '.join(lost[:TOLD])}{more}"
    if undecided:
        detail += f"; {undecided} pairs undecided (not run, or both failed)"
    return Claim(text, verdict, detail)

"""Ranges that are declared where a setting is, and checked in one place.

@dataclass
class Prox(Modifier):
    mu: float = number(0.01, at_least=0)

check_fields(Prox(mu=-1), "algo.modifiers.prox")
# BadInput: algo.modifiers.prox.mu=-1: must be at least 0
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

from fedbench.core.errors import bad_value, nearest

MANY = 10**12  # more than any count that a run can have
# float32 holds numbers up to 3.4e38, and loses precision below 1.2e-38.
LARGEST, SMALLEST = 1e38, 1e-30

Rule = Callable[[Any], str | None]  # what is wrong with a value, in words


def number(
    default: Any = dataclasses.MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float = LARGEST,
    below: float | None = None,
) -> Any:
    """A field for a finite number within bounds."""
    return _field(default, _bounds("", at_least, above, at_most, below))


def count(default: Any = dataclasses.MISSING, *, at_least: int = 1, at_most: int = MANY) -> Any:
    """A field for an integer within bounds."""
    return _field(default, _bounds("an integer of ", at_least, None, at_most, None))


def choice(default: Any, options: Iterable[str]) -> Any:
    """A field for one of a few words. A wrong one is answered with the nearest."""
    options = tuple(options)

    def rule(value: Any) -> str | None:
        return None if value in options else nearest(str(value), options)

    return _field(default, rule)


def number_or(default: Any, words: Iterable[str], *, above: float, at_most: float) -> Any:
    """A field for a number within bounds or one of a few words: `int | float | str`."""
    options, inside = tuple(words), _bounds("", None, above, at_most, None)

    def rule(value: Any) -> str | None:
        if isinstance(value, str) and value in options:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        wrong = inside(value) if is_number else f"must be a number above {above:g}"
        return wrong and f"{wrong}, or {' or '.join(options)}"

    return _field(default, rule)


def check_fields(settings: Any, key: str = "") -> None:
    """Raise BadInput for the first field outside its range; `None` stands for a default."""
    for field in dataclasses.fields(settings):
        own = field.metadata.get("key", field.name)  # in a file it may be called `from`
        name = f"{key}.{own}" if key else own
        value = getattr(settings, field.name, None)
        if dataclasses.is_dataclass(value):
            check_fields(value, name)
        rule: Rule | None = field.metadata.get("rule")
        if rule is not None and value is not None:
            wrong = rule(value)
            if wrong is not None:
                raise bad_value(name, value, wrong)


def _field(default: Any, rule: Rule) -> Any:
    return dataclasses.field(default=default, metadata={"rule": rule})


def _bounds(
    kind: str, at_least: float | None, above: float | None, at_most: float, below: float | None
) -> Rule:
    upper = f"below {below:g}" if below is not None else f"at most {_short(at_most)}"
    if above is not None:
        lower = f"above {above:g}"
    else:
        lower = "" if at_least is None else f"at least {_short(at_least)}"
    two_sided = lower and (below is not None or at_most not in (MANY, LARGEST, math.inf))

    def rule(value: Any) -> str | None:
        high_enough = (above is None or value > above) and (at_least is None or value >= at_least)
        low_enough = value < below if below is not None else value <= at_most
        if high_enough and low_enough and value > -math.inf:
            return None
        if two_sided:
            return f"must be {kind}{lower} and {upper}"
        return f"must be {kind}{upper if high_enough else lower}"

    return rule


def _short(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"

"""Ranges on the fields of settings: what passes, and what is said of the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fedbench.core.errors import BadInput
from fedbench.core.fields import check_fields, choice, count, number


@dataclass
class Inner:
    factor: float = number(1.0, above=0)


@dataclass
class Settings:
    rate: float = number(0.1, above=0)
    share: float = number(0.5, at_least=0, at_most=1)
    momentum: float = number(0.0, at_least=0, below=1)
    penalty: float | None = number(None, at_least=0)
    rounds: int = count(20)
    workers: int | None = count(None, at_most=1024)
    optimizer: str = choice("sgd", ("sgd", "adam"))
    inner: Inner = field(default_factory=Inner)
    free: object = None


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"rate": 1e-30, "share": 0, "momentum": 0.999, "penalty": 0.0},
        {"share": 1, "rounds": 1, "workers": 1024, "optimizer": "adam"},
        {"penalty": None, "workers": None, "free": -1},
    ],
)
def test_what_is_within_its_range_passes(values):
    check_fields(Settings(**values))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rate": 0}, "client.rate=0: must be above 0"),
        ({"rate": float("inf")}, "client.rate=inf: must be at most 1e+38"),
        ({"rate": float("nan")}, "client.rate=nan: must be above 0"),
        ({"share": 1.5}, "client.share=1.5: must be at least 0 and at most 1"),
        ({"momentum": 1}, "client.momentum=1: must be at least 0 and below 1"),
        ({"penalty": -1}, "client.penalty=-1: must be at least 0"),
        ({"rounds": 0}, "client.rounds=0: must be an integer of at least 1"),
        ({"rounds": 10**13}, f"client.rounds={10**13}: must be an integer of at most {10**12}"),
        ({"workers": 0}, "client.workers=0: must be an integer of at least 1 and at most 1024"),
        ({"optimizer": "adm"}, "client.optimizer=adm: did you mean 'adam'?"),
        ({"inner": Inner(-1)}, "client.inner.factor=-1: must be above 0"),
    ],
)
def test_the_first_field_outside_its_range_is_named(values, message):
    with pytest.raises(BadInput) as error:
        check_fields(Settings(**values), "client")
    assert str(error.value) == message

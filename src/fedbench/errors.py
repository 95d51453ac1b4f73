"""The one exception that stands for a mistake of the user: it becomes one line and exit status 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BadInput(Exception):
    """A wrong key, value, file or combination. The message is one line that says what is allowed."""


class MissingData(BadInput):
    """A dataset that is not on this machine."""


def bad_value(key: str, value: object, allowed: str) -> BadInput:
    """The standard sentence: which key, which value, what is allowed."""
    return BadInput(f"{key}={value}: {allowed}")


def require(condition: bool, key: str, value: object, allowed: str) -> None:
    """Raise the standard sentence unless the condition holds."""
    if not condition:
        raise bad_value(key, value, allowed)


def nearest(word: str, choices: Iterable[str]) -> str:
    """`did you mean 'rounds'?` when something is close, else the choices themselves."""
    choices = sorted(set(choices))
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return "choose from " + ", ".join(choices) if choices else "there is nothing to choose from"

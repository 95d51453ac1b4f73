"""The one exception that stands for a mistake of the user: it becomes one line and exit status
2.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn

# How a program of ours ends: well (a diverged run, too), unexpectedly, by bad input, or on request.
FINISHED, UNEXPECTED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

# What numpy and torch say about sizes that cannot be.
_TOO_LARGE = (
    "can't allocate",
    "not enough memory",
    "Maximum allowed",
    "verflow",
    "array is too big",
)


class BadInput(Exception):
    """A wrong key, value, file or combination. The message is one line that says what is
    allowed.
    """


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


def why_unresolved(error: Exception) -> str:
    """Why a value that refers to another one has none."""
    reason = re.sub(
        r"^\w+ raised while resolving interpolation: ", "", next(iter(str(error).splitlines()), "")
    )
    reason = reason.replace("Recursive interpolation detected", "it refers to itself")
    reason = reason.replace("Unsupported interpolation type", "there is no function")
    variable = re.search(r"Environment variable '([^']*)' not found", reason)
    if variable:
        return (
            f"{variable.group()}; set it, or write ${{oc.env:{variable.group(1)},VALUE}} for a"
            " default"
        )
    return f"{reason}; the name of another key is allowed, such as ${{client.lr}}"


def one_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def spelled_out(message: str) -> str:
    """With signs that move the cursor or begin a new line spelled out: values are shown as they
    are.
    """
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found.group())[1:-1], message
    )


class OneLineParser(argparse.ArgumentParser):
    """Wrong arguments are bad input as any other: one line, without the usage in front of it."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def refuse_what_does_not_fit(build: Callable[..., Any]) -> Callable[..., Any]:
    """Before anything is written, a size that no memory holds is a mistake in the configuration."""

    @wraps(build)
    def building(*arguments: Any) -> Any:
        try:
            return build(*arguments)
        except (MemoryError, RuntimeError, ValueError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), "")
            if not isinstance(error, MemoryError) and not any(
                sign in reason for sign in _TOO_LARGE
            ):
                raise
            raise BadInput(
                f"data, model: too large for this machine's memory ({reason[:200]})"
            ) from error

    return building

"""How a run can end early: a mistake of the user (BadInput, and its sentences), a fault of the
machine, a request.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn

# The exit status of every program of this package.
FINISHED = 0  # a diverged run, too
UNEXPECTED = 1
BAD_INPUT = 2
INTERRUPTED = 130

# Words of numpy's and torch's messages about sizes that no memory holds.
_TOO_LARGE = (
    "can't allocate",
    "not enough memory",
    "Maximum allowed",
    "verflow",
    "array is too big",
)


class BadInput(Exception):
    """A wrong key, value, file or combination. The message is one line that says how to fix it."""


class MissingData(BadInput):
    """A dataset, or published weights, that are not on this machine."""


class MachineFault(Exception):
    """The machine ended a run. The message is the one line for the user."""


class Interrupted(KeyboardInterrupt):
    """The run stopped on request and can be resumed."""


def bad_value(key: str, value: object, rule: str) -> BadInput:
    """The standard sentence: `client.lr=-1: must be above 0`."""
    return BadInput(f"{key}={value}: {rule}")


def require(condition: bool, key: str, value: object, rule: str) -> None:
    """Raise the standard sentence unless the condition holds."""
    if not condition:
        raise bad_value(key, value, rule)


def require_known(key: str, value: object, choices: Iterable[str]) -> None:
    """Raise the standard sentence, with the nearest choice, unless the value is one of them."""
    choices = list(choices)
    if value not in choices:
        raise bad_value(key, value, nearest(str(value), choices))


def nearest(word: str, choices: Iterable[str], section: str = "") -> str:
    """`did you mean 'rounds'?` when a choice is close to the word, else a list of the choices.

    The suggestion names the section of a key as well: `did you mean 'client.epochs'?`
    """
    choices = sorted(set(choices))
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{section}.{close[0]}'?" if section else f"did you mean '{close[0]}'?"
    return "choose from " + ", ".join(choices) if choices else "there is nothing to choose from"


def why_unresolved(error: Exception) -> str:
    """Why a value that refers to another one, such as ${client.lr}, cannot be resolved."""
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
    return f"{reason}; it must refer to another key, such as ${{client.lr}}"


def one_line(error: BaseException) -> str:
    """What an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def spelled_out(message: str) -> str:
    """The message with control characters escaped, so that it stays on one line."""
    return re.sub(
        r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: repr(found.group())[1:-1], message
    )


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are BadInput: one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; see {self.prog} --help")


def refuse_what_does_not_fit(build: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors about sizes that no memory holds into BadInput, while nothing is written yet."""

    @wraps(build)
    def building(*arguments: Any) -> Any:
        try:
            return build(*arguments)
        except (MemoryError, RuntimeError, ValueError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), "")
            too_large = any(words in reason for words in _TOO_LARGE)
            if not too_large and not isinstance(error, MemoryError):
                raise
            raise BadInput(
                f"data, model: too large for this machine's memory ({reason[:200]})"
            ) from error

    return building

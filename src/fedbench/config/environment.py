"""Values of the environment in a configuration: used as they are, shown as `${oc.env:NAME}`.

A variable may hold a token or a password, so config.yaml, W&B, the report and messages show the
interpolation instead of the value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

SHORTEST = 4  # characters; shorter values, such as a digit, are in too many words to be replaced


def shown(composed: DictConfig) -> Any:
    """The configuration as plain values, but with the interpolations of the environment."""
    with _resolver(lambda *arguments: _text(arguments)):
        return _resolved(composed, OmegaConf.to_container(composed, resolve=False), "")


def _resolved(composed: DictConfig, raw: Any, key: str) -> Any:
    if isinstance(raw, dict):
        return {name: _resolved(composed, value, _join(key, name)) for name, value in raw.items()}
    if isinstance(raw, list):
        return [_resolved(composed, value, f"{key}[{place}]") for place, value in enumerate(raw)]
    if not isinstance(raw, str) or "${" not in raw:
        return raw
    try:
        value = OmegaConf.select(composed, key)
    except OmegaConfBaseException:  # a function that cannot take the text for the value
        return raw
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _join(key: str, name: object) -> str:
    return f"{key}.{name}" if key else str(name)


def put_in(value: Any, real: Any, masked: Any) -> Any:
    """`value`, with masked values where the real and the masked configuration differ."""
    if isinstance(value, dict) and isinstance(real, dict) and isinstance(masked, dict):
        return {
            key: put_in(inner, real[key], masked.get(key)) if key in real else inner
            for key, inner in value.items()
        }
    return value if real == masked else masked


class Values:
    """The values that a configuration takes from the environment, to be hidden in messages."""

    def __init__(self, composed: DictConfig) -> None:
        self.texts: dict[str, str] = {}  # value -> interpolation

        def read(*arguments: Any) -> Any:
            value = oc.env(*arguments)
            for form in _forms(str(value)):
                self.texts[form] = _text(arguments)
            return value

        with _resolver(read):
            _resolved(composed, OmegaConf.to_container(composed, resolve=False), "")

    def hidden(self, text: str) -> str:
        return _replaced(text, self.texts)


def hidden_by_name(text: str, words: list[str]) -> str:
    """The text without the values of the variables that the words name, such as overrides.

    For where there is no configuration that could be composed.
    """
    names = re.findall(r"oc\.env:\s*(\w+)", " ".join(words))
    values = {
        form: f"${{oc.env:{name}}}" for name in names for form in _forms(os.environ.get(name, ""))
    }
    return _replaced(text, values)


def _forms(value: str) -> set[str]:
    """How messages may show a value: as it is, as a path, or escaped within quotes."""
    forms = {value, str(Path(value)), repr(value)[1:-1]}
    with suppress(RuntimeError):  # there is no such home
        forms.add(str(Path(value).expanduser()))
    return {form for form in forms if len(form) >= SHORTEST}


def _replaced(text: str, texts: dict[str, str]) -> str:
    for value in sorted(texts, key=len, reverse=True):
        text = text.replace(value, texts[value])
    return text


def _text(arguments: tuple[Any, ...]) -> str:
    words = ["null" if argument is None else str(argument) for argument in arguments]
    return f"${{oc.env:{','.join(words)}}}"


@contextmanager
def _resolver(read: Any) -> Iterator[None]:
    """Replace OmegaConf's own `oc.env` by another function for a while."""
    OmegaConf.register_new_resolver("oc.env", read, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)

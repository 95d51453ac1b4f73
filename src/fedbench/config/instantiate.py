"""From a part of the configuration to an object of its type.

A wrong key, type, range or class is a BadInput that names the full key.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fedbench.config.own_code import class_named
from fedbench.core.errors import BadInput, nearest, require
from fedbench.core.fields import check_fields

KINDS = {
    "int": "an integer",
    "Integer": "an integer",
    "float": "a number",
    "Float": "a number",
    "bool": "true or false",
    "str": "a name",
}
LARGEST_INTEGER = 2**63 - 1  # of an array's or a tensor's sizes


def as_dataclass(schema: type, node: DictConfig, prefix: str) -> Any:
    """The node as an object of the dataclass `schema`, with every field in its range.

    `prefix` is the node's own key, which messages begin with, such as "algo.modifiers.prox".
    """
    start = f"{prefix}." if prefix else ""
    made = _converted(schema, node, start)
    check_fields(made, prefix)
    for field in fields(made):
        value = getattr(made, field.name)
        for number in value if isinstance(value, list) else [value]:
            fits = not isinstance(number, int) or abs(number) <= LARGEST_INTEGER
            require(fits, f"{start}{field.name}", value, "must be an integer below 2^63")
    return made


def instantiate(node: DictConfig, prefix: str, method: str) -> Any:
    """An object of the class that `_target_` names, with the node's values as its settings.

    Hydra's own `instantiate` would call anything. Here the class must be a dataclass with the
    method by which the object will be used.
    """
    name = node["_target_"]
    target = class_named(name, f"{prefix}._target_")
    fits = is_dataclass(target) and hasattr(target, method)
    require(fits, f"{prefix}._target_", name, f"must be a dataclass with the method {method}")
    settings = OmegaConf.masked_copy(node, [str(key) for key in node if key != "_target_"])
    return as_dataclass(target, settings, prefix)


def _converted(schema: type, node: DictConfig, prefix: str) -> Any:
    _check_sections_and_flags(schema, node, prefix)
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), node))
    except ConfigKeyError as error:
        key = str(error.full_key or error.key)
        section, _, last = key.rpartition(".")
        whole = OmegaConf.structured(schema)
        known = [str(k) for k in (OmegaConf.select(whole, section) if section else whole)]
        full_section = f"{prefix}{section}".rstrip(".")
        suggestion = nearest(last, known, full_section)
        raise BadInput(f"unknown key '{prefix}{key}': {suggestion}") from None
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key or "")
        reason = str(error.msg or error).splitlines()[0]
        if "missing mandatory value" in reason:  # `~data.name`
            key = reason.rpartition(" ")[2]
            raise BadInput(f"{prefix}{key} is missing: it must have a value") from None
        raise BadInput(f"{prefix}{key}={OmegaConf.select(node, key)}: {_rule(reason)}") from None


def _rule(reason: str) -> str:
    """What a value must be, from OmegaConf's message."""
    if "not a ListConfig" in reason:
        return "must be a list, such as [1,2]"
    if "Union[int, float, str]" in reason:
        return "must be a number or a name"
    if "is not Optional" in reason:
        return "must have a value other than null"
    wanted = reason.split("type")[-1]
    kinds = [
        words
        for name, words in KINDS.items()
        if name in wanted or f"to {name}" in reason or f"valid {name}" in reason
    ]
    return f"must be {kinds[0]}" if kinds else reason


def _check_sections_and_flags(schema: type, node: DictConfig, prefix: str) -> None:
    """Refuse a value for a section (`client=3`) and a number for a flag.

    OmegaConf says little about the former, and takes any number for true.
    """
    for name, kind in get_type_hints(schema).items():
        if name not in node:
            continue
        key = f"{prefix}{name}"
        value = OmegaConf.select(node, name)
        if isinstance(kind, type) and is_dataclass(kind):
            example = f"{key}.{fields(kind)[0].name}"
            rule = f"must be a section with keys of its own, such as {example}"
            require(OmegaConf.is_dict(value), key, value, rule)
            _check_sections_and_flags(kind, value, f"{key}.")
        elif kind is bool and isinstance(value, int | float):
            require(isinstance(value, bool), key, value, "must be true or false")

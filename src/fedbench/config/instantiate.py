"""From a part of the configuration to an object of its type; a wrong key, type or class is named
with its full key.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from fedbench.core.errors import BadInput, nearest, require

KINDS = {
    "int": "an integer",
    "Integer": "an integer",
    "float": "a number",
    "Float": "a number",
    "bool": "true or false",
    "str": "a name",
}
LARGEST_INTEGER = 2**63 - 1  # of an array's or a tensor's sizes


def typed(schema: type, node: DictConfig, prefix: str) -> Any:
    """The node as an object of the schema's type."""
    _check_flags(schema, node, prefix)
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), node))
    except ConfigKeyError as error:
        key = str(error.full_key or error.key)
        section, _, last = key.rpartition(".")
        whole = OmegaConf.structured(schema)
        known = [str(k) for k in (OmegaConf.select(whole, section) if section else whole)]
        raise BadInput(f"unknown key '{prefix}{key}': {nearest(last, known)}") from None
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key or "")
        reason = str(error.msg or error).splitlines()[0]
        if "missing mandatory value" in reason:  # `~data.name`
            key = reason.rpartition(" ")[2]
            raise BadInput(
                f"{prefix}{key} is missing: it is needed, so ~{prefix}{key} is not allowed"
            ) from None
        raise BadInput(f"{prefix}{key}={OmegaConf.select(node, key)}: {_allowed(reason)}") from None


def _allowed(reason: str) -> str:
    """What OmegaConf wanted, in plain words."""
    if "not a ListConfig" in reason:
        return "a list is allowed, such as [1,2]"
    if "is not Optional" in reason:
        return "a value is needed, null is not allowed"
    wanted = reason.split("type")[-1]
    kinds = [
        words
        for name, words in KINDS.items()
        if name in wanted or f"to {name}" in reason or f"valid {name}" in reason
    ]
    return f"{kinds[0]} is allowed" if kinds else reason


def _check_flags(schema: type, node: DictConfig, prefix: str) -> None:
    """OmegaConf takes any number for true: `projection=128` would not mean what it says."""
    for name, kind in get_type_hints(schema).items():
        value = OmegaConf.select(node, name)
        if is_dataclass(kind) and OmegaConf.is_dict(value):
            _check_flags(kind, value, f"{prefix}{name}.")
        elif kind is bool and isinstance(value, int | float) and not isinstance(value, bool):
            raise BadInput(f"{prefix}{name}={value}: true or false is allowed")


def filled(node: DictConfig, prefix: str, ability: str) -> Any:
    """The object that a group's or a slot's `_target_` names, filled from the node; it must have
    the named method.
    """
    name = node["_target_"]
    try:
        target = get_class(name)
    except (ImportError, ValueError, TypeError, AttributeError) as error:  # the last: it is no text
        raise BadInput(f"{prefix}._target_={name}: the name of a class is allowed") from error
    fits = is_dataclass(target) and hasattr(target, ability)
    require(fits, f"{prefix}._target_", name, f"a dataclass with the method {ability} is allowed")
    made = typed(
        target,
        OmegaConf.masked_copy(node, [key for key in node if key != "_target_"]),
        f"{prefix}.",
    )
    for field in fields(made):
        value = getattr(made, field.name)
        for number in value if isinstance(value, list) else [value]:
            fits = not isinstance(number, int) or abs(number) <= LARGEST_INTEGER
            require(fits, f"{prefix}.{field.name}", value, "an integer below 2^63 is allowed")
    return made

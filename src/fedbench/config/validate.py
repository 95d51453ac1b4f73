"""The typed configuration: what Hydra composed, checked key by key before anything is built or
written.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.config import environment
from fedbench.config.instantiate import filled, typed
from fedbench.config.schema import (
    CheckpointSettings,
    ClientSettings,
    DiagnosticsSettings,
    EvalSettings,
    RuntimeSettings,
    Scalars,
    ServerSettings,
    check_ranges,
)
from fedbench.core.errors import BadInput, nearest, require, why_unresolved
from fedbench.core.files import config_folder


@dataclass
class Config:
    """A checked configuration: scalars, one settings object a group, and the plain tree that
    identifies the run.
    """

    scalars: Scalars
    data: Any
    model: Any
    partition: Any
    attack: Any
    logger: Any
    algo: dict[str, Any]
    names: dict[str, str]  # group -> chosen file
    tree: dict[str, Any]  # typed, resolved, plain
    shown: dict[
        str, Any
    ]  # the same for files, W&B and people: values of the environment as ${oc.env:NAME}
    folder: Path | None = None  # of the run, once its parts are built


GROUPS = ("data", "model", "partition", "attack", "logger")
SLOTS = (
    "name",
    "weights",
    "aggregate",
    "server_opt",
    "local",
    "local_train",
    "pooled",
    "scoring",
    "modifiers",
    "allow_adaptive",
)
PIECES = ("aggregate", "server_opt", "local_train")  # slots that hold an object
SECTIONS = {
    "client": ClientSettings,
    "server": ServerSettings,
    "eval": EvalSettings,
    "checkpoint": CheckpointSettings,
    "diagnostics": DiagnosticsSettings,
    "runtime": RuntimeSettings,
}
# What an object that fills a group or a slot must be able to do.
ABILITIES = {
    "data": "load",
    "model": "network",
    "partition": "draw",
    "attack": "spoil",
    "logger": "start",
    "aggregate": "coefficients",
    "server_opt": "step",
    "local_train": "phases",
    "modifiers": "bind",
}


def check(composed: DictConfig, names: dict[str, str]) -> Config:
    """Type-check and range-check what Hydra composed. Raises BadInput with one line."""
    masked = environment.shown(composed)
    composed = copy.deepcopy(composed)  # Hydra's own stays as it was written; launchers store it
    _check_values(composed)
    _check_slots(composed.get("algo"))
    _check_short_names(composed)
    OmegaConf.resolve(composed)
    for section in SECTIONS:
        allowed = (
            "it is a section with keys of its own, such as"
            f" {section}.{next(iter(SECTIONS[section].__annotations__))}"
        )
        require(
            OmegaConf.is_dict(composed.get(section, {})), section, composed.get(section), allowed
        )
    decay = OmegaConf.select(composed, "client.lr_decay", default={})
    allowed = "it is a section with keys of its own: client.lr_decay.factor, .every, .first"
    require(decay == {} or OmegaConf.is_dict(decay), "client.lr_decay", decay, allowed)
    for group in GROUPS:
        chosen = composed.get(group)
        require(OmegaConf.is_dict(chosen), group, chosen, f"choose one of conf/{group}")
        target = chosen.get("_target_")
        require(
            isinstance(target, str),
            f"{group}._target_",
            target,
            f"it is needed; choose one of conf/{group}",
        )
    _check_data_name(composed.data, names.get("data"))
    rest = [
        key for key in composed if key not in (*GROUPS, "algo", "study")
    ]  # `study` says what is made of the runs
    scalars_node = OmegaConf.masked_copy(composed, rest)
    scalars = typed(Scalars, scalars_node, "")
    check_ranges(scalars)
    _check_stand_in(composed, scalars.scale)
    groups = {group: filled(composed[group], group, ABILITIES[group]) for group in GROUPS}
    algo = _algo(composed.algo)
    tree = {
        **OmegaConf.to_container(OmegaConf.structured(scalars)),
        **{group: _plain(settings) for group, settings in groups.items()},
        "algo": {
            **algo,
            "modifiers": {name: _plain(piece) for name, piece in algo["modifiers"].items()},
        },
    }
    for slot in PIECES:
        tree["algo"][slot] = _plain(algo[slot])
    shown = environment.put_in(tree, OmegaConf.to_container(composed), masked)
    return Config(scalars, **groups, algo=algo, names=names, tree=tree, shown=shown)


def short_names(composed: DictConfig) -> dict[str, str]:
    """Where a named algorithm's short keys lead: {"algo.modifiers.prox.mu": "algo.mu", ...}."""
    found = {}

    def walk(node: DictConfig, prefix: str) -> None:
        for key in node:
            if OmegaConf.is_interpolation(node, key):
                short = re.fullmatch(
                    r"\$\{(algo\.\w+)\}", str(OmegaConf.to_container(node, resolve=False)[key])
                )
                found.update({f"{prefix}.{key}": short.group(1)} if short else {})
            elif OmegaConf.is_dict(node[key]):
                walk(node[key], f"{prefix}.{key}")

    if OmegaConf.is_dict(composed.get("algo")):
        walk(composed.algo, "algo")
    return found


def _check_stand_in(composed: DictConfig, scale: str | None) -> None:
    """scale=smoke runs on stand-ins, which a file of one's own has not."""
    if scale == "smoke" and composed.data["_target_"].endswith("NpzDataset"):
        raise BadInput(
            "scale=smoke: data=npz has no stand-in; rounds=2 data.subset=300 instead make a"
            " short run"
        )


def _check_values(composed: DictConfig) -> None:
    """What a value refers to is there, and no path can hold a NUL character."""
    for key, raw in _leaves(OmegaConf.to_container(composed, resolve=False)):
        try:
            value = OmegaConf.select(composed, key) if "${" in raw else raw
        except OmegaConfBaseException as error:
            raise BadInput(f"{key}={raw}: {why_unresolved(error)}") from error
        require("\0" not in str(value), key, value, "text without a NUL character is allowed")


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a plain tree, with its key."""
    if isinstance(value, str):
        yield prefix, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))


def _check_data_name(data: DictConfig, choice: str | None) -> None:
    """The name under which a dataset of ours stands in every output is its own. (data=npz is named
    by its owner.)
    """
    file = config_folder() / "data" / f"{choice}.yaml"
    own = yaml.safe_load(file.read_text())["name"] if file.is_file() else None
    name = data.get("name")
    fits = own in (None, "npz") or name in (None, own)
    require(fits, "data.name", name, f"data={choice} is {own}; only {own} is allowed")


def _check_slots(algo: Any) -> None:
    """The slots of an algorithm have types, too; its short names are checked where they lead."""
    require(OmegaConf.is_dict(algo), "algo", algo, "choose one of the files of conf/algo")
    kinds = {"name": str, "weights": str, "local": str, "pooled": bool, "allow_adaptive": bool}
    for key, kind in kinds.items():
        allowed = "true or false is allowed" if kind is bool else "a name is allowed"
        require(isinstance(algo.get(key), kind), f"algo.{key}", algo.get(key), allowed)
    modifiers = algo.get("modifiers")
    require(OmegaConf.is_dict(modifiers), "algo.modifiers", modifiers, "modifier=[...] sets them")
    pieces = {f"algo.modifiers.{name}": piece for name, piece in modifiers.items()}
    for key, piece in {**pieces, **{f"algo.{slot}": algo.get(slot) for slot in PIECES}}.items():
        require(
            OmegaConf.is_dict(piece) and "_target_" in piece,
            key,
            piece,
            "a section with a _target_ is needed",
        )


def _check_short_names(composed: DictConfig) -> None:
    """A key that leads nowhere would be silently ignored."""
    used = [name.removeprefix("algo.") for name in short_names(composed).values()]
    for key in composed.algo:
        if key in _declared(composed.algo.name) and key not in used:
            elsewhere = f"modifier=[...] repeats one that algo={composed.algo.name} has already"
            raise BadInput(
                f"algo.{key} has no effect: {elsewhere}, or a long key algo.modifiers..."
                " overrides it"
            )
        if key not in (*SLOTS, *used):
            raise BadInput(f"unknown key 'algo.{key}': {nearest(str(key), [*SLOTS, *used])}")


def _declared(algo: str) -> list[str]:
    """The short names of a named algorithm, as its file lists them."""
    file = config_folder() / "algo" / f"{algo}.yaml"
    content = OmegaConf.load(file) if file.is_file() else {}
    return [str(key) for key in content if key not in (*SLOTS, "defaults")]


def _plain(settings: Any) -> dict[str, Any]:
    fields = OmegaConf.to_container(OmegaConf.structured(settings))
    return {"type": type(settings).__name__, **fields}


def _algo(node: DictConfig) -> dict[str, Any]:
    algo: dict[str, Any] = {}
    for key, value in node.items():
        if key == "modifiers":
            ability = ABILITIES[key]
            algo[key] = {
                name: filled(piece, f"algo.modifiers.{name}", ability)
                for name, piece in value.items()
            }
        elif isinstance(value, DictConfig) and "_target_" in value:
            algo[key] = filled(value, f"algo.{key}", ABILITIES.get(key, "__init__"))
        else:
            algo[key] = value
    return algo

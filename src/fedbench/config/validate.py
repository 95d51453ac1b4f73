"""From what Hydra composed to a checked `Config`, before anything is built or written."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.config import environment
from fedbench.config.instantiate import as_dataclass, instantiate
from fedbench.config.own_code import code_of, is_framework
from fedbench.config.schema import NEED_VALIDATION, Config, Scalars, check_combinations
from fedbench.core.errors import BadInput, nearest, require, why_unresolved
from fedbench.core.files import config_folder
from fedbench.data.dataset import DatasetSettings
from fedbench.models.base import ModelSettings
from fedbench.partitions.base import PartitionSettings

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
OBJECT_SLOTS = ("aggregate", "server_opt", "local_train")
# The method by which an object of a group or a slot is used: it must have it.
METHODS = {
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
# Groups whose files say in their first line where their content belongs.
PACKAGES = {"modifier": "algo.modifiers", "experiment": "_global_", "scale": "_global_"}
BASES = {"data": DatasetSettings, "model": ModelSettings, "partition": PartitionSettings}


def check(composed: DictConfig, names: dict[str, str]) -> Config:
    """The configuration that Hydra composed, with every key, type and range checked.

    `names` are the chosen files: {"algo": "fedprox", "data": "digits", ...}. Raises BadInput with
    one line.
    """
    masked = environment.shown(composed)
    composed = copy.deepcopy(composed)  # launchers store Hydra's own as it was written
    _check_references(composed)
    _check_packages(composed)
    _check_slots(composed.get("algo"))
    _check_short_names(composed)
    OmegaConf.resolve(composed)
    _check_groups(composed, names)
    scalars = _scalars(composed)
    groups = {group: instantiate(composed[group], group, METHODS[group]) for group in GROUPS}
    for group, base in BASES.items():
        rule = f"must be a class that extends {base.__module__}.{base.__name__}"
        extends = isinstance(groups[group], base)
        require(extends, f"{group}._target_", composed[group]["_target_"], rule)
    algo = _algorithm(composed.algo)
    fits = scalars.objective not in NEED_VALIDATION or groups["data"].validation > 0
    require(fits, "objective", scalars.objective, "must have data.validation above 0")
    tree = _tree(scalars, groups, algo)
    shown = environment.put_in(tree, OmegaConf.to_container(composed), masked)
    own_code = own_code_of(composed, groups, algo)
    return Config(
        scalars, **groups, algo=algo, names=names, tree=tree, shown=shown, own_code=own_code
    )


def own_code_of(
    composed: DictConfig, groups: dict[str, Any], algo: dict[str, Any]
) -> dict[str, str]:
    """The user's own modules that decide the numbers, each with a hash of its source.

    Those that a `_target_` names, and those of the classes that are found there.
    """
    named = [
        text.rpartition(".")[0]
        for key, text in _texts(OmegaConf.to_container(composed))
        if key.rpartition(".")[2] == "_target_" and key.split(".")[0] != "logger"
    ]
    deciding = [settings for group, settings in groups.items() if group != "logger"]
    slots = [algo[slot] for slot in OBJECT_SLOTS]
    kinds = map(type, [*deciding, *slots, *algo["modifiers"].values()])
    return code_of([*named, *(kind.__module__ for kind in kinds)])


def with_algorithm(config: Config, name: str) -> Config:
    """The same experiment with an algorithm of conf/algo that builds on no other, as `check` makes
    it.
    """
    node = OmegaConf.load(config_folder() / "algo" / f"{name}.yaml")
    assert isinstance(node, DictConfig)
    algo = _algorithm(node)
    plain = _plain_algorithm(algo)
    return replace(
        config,
        algo=algo,
        names={**config.names, "algo": name},
        tree={**config.tree, "algo": plain},
        shown={**config.shown, "algo": plain},
    )


def short_names(composed: DictConfig) -> dict[str, str]:
    """Where a named algorithm's short keys lead: {"algo.modifiers.prox.mu": "algo.mu", ...}."""
    found = {}
    for key, text in _texts(OmegaConf.to_container(composed, resolve=False)):
        reference = re.fullmatch(r"\$\{(algo\.\w+)\}", text)
        if reference and key.startswith("algo."):
            found[key] = reference.group(1)
    return found


def _check_references(composed: DictConfig) -> None:
    """Every value that another one refers to is there, and no path has a NUL character."""
    for key, raw in _texts(OmegaConf.to_container(composed, resolve=False)):
        try:
            value = OmegaConf.select(composed, key) if "${" in raw else raw
        except OmegaConfBaseException as error:
            raise BadInput(f"{key}={raw}: {why_unresolved(error)}") from error
        require("\0" not in str(value), key, value, "must be text without a NUL character")


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a plain tree, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _texts(inner, f"{key}.{name}" if key else str(name))


def _check_slots(algo: Any) -> None:
    """The slots of an algorithm have their types. Its short names are checked where they lead."""
    require(OmegaConf.is_dict(algo), "algo", algo, "must be the name of a file in conf/algo")
    kinds = {"name": str, "weights": str, "local": str, "pooled": bool, "allow_adaptive": bool}
    for key, kind in kinds.items():
        rule = "must be true or false" if kind is bool else "must be a name"
        require(isinstance(algo.get(key), kind), f"algo.{key}", algo.get(key), rule)
    modifiers = algo.get("modifiers")
    rule = "must be a section; modifier=[...] sets it"
    require(OmegaConf.is_dict(modifiers), "algo.modifiers", modifiers, rule)
    objects = {f"algo.{slot}": algo.get(slot) for slot in OBJECT_SLOTS}
    objects |= {f"algo.modifiers.{name}": modifier for name, modifier in modifiers.items()}
    for key, node in objects.items():
        fits = OmegaConf.is_dict(node) and "_target_" in node
        require(fits, key, node, "must be a section with a _target_")


def _check_short_names(composed: DictConfig) -> None:
    """A short name that no setting refers to would be ignored silently."""
    used = [name.removeprefix("algo.") for name in short_names(composed).values()]
    for key in composed.algo:
        if key not in (*SLOTS, *used):
            known = nearest(str(key), [*SLOTS, *used])
            if not known.startswith("did you mean"):
                known = f"modifier=[...] must not repeat what algo={composed.algo.name} has already"
            raise BadInput(
                f"algo.{key}: no setting of algo={composed.algo.name} refers to it, so it has no"
                f" effect; {known}"
            )


def _check_packages(composed: DictConfig) -> None:
    """A file without its first line becomes a section of its own, which Hydra takes."""
    for group, package in PACKAGES.items():
        if OmegaConf.is_dict(composed.get(group)):
            raise BadInput(
                f"unknown key '{group}': a file of your own in {group}/ must begin with the line"
                f" '# @package {package}'"
            )


def _check_groups(composed: DictConfig, names: dict[str, str]) -> None:
    for group in GROUPS:
        chosen = composed.get(group)
        rule = f"must be the name of a file in conf/{group}"
        require(OmegaConf.is_dict(chosen), group, chosen, rule)
        target = chosen.get("_target_")
        rule = f"must be the class that the files in conf/{group} name"
        require(isinstance(target, str), f"{group}._target_", target, rule)
    own_file = (config_folder() / "data" / f"{names.get('data')}.yaml").is_file()
    if own_file and names["data"] != "npz":  # users name their own data
        name = composed.data.get("name")
        rule = f"must be {names['data']} with data={names['data']}"
        require(name in (None, names["data"]), "data.name", name, rule)
    if composed.data["_target_"].endswith("NpzDataset"):
        _check_own_name(composed.data.get("name", "npz"))
    if composed.get("scale") == "smoke" and composed.data["_target_"].endswith("NpzDataset"):
        raise BadInput(
            "scale=smoke: data=npz has no synthetic stand-in; for a short run set rounds=2 and"
            " data.subset=300 instead"
        )


def _check_own_name(name: object) -> None:
    """Own examples under the name of a dataset would be taken for it."""
    known = {file.stem for file in (config_folder() / "data").glob("*.yaml")} - {"npz"}
    rule = "must be a name of your own, other than those of the datasets that fedbench knows"
    word = name_of_files(str(name))
    require(bool(word) and word.lower() not in known, "data.name", name, rule)


def name_of_files(name: str) -> str:
    """A name as a part of a folder's: `my data!` -> `my_data`. Perhaps nothing is left."""
    return re.sub(r"[^\w.]+", "_", name).strip("._")


def _scalars(composed: DictConfig) -> Scalars:
    """Everything outside the groups. `study` describes the tables that are made of the runs."""
    keys = [str(key) for key in composed if key not in (*GROUPS, "algo", "study")]
    own = [field.name for field in fields(Scalars)]
    for key in keys:
        if key not in own:  # perhaps a group's name is meant
            raise BadInput(f"unknown key '{key}': {nearest(key, [*GROUPS, 'algo', *own])}")
    scalars: Scalars = as_dataclass(Scalars, OmegaConf.masked_copy(composed, keys), "")
    check_combinations(scalars)
    return scalars


def _algorithm(node: DictConfig) -> dict[str, Any]:
    """The slots of an algorithm, with an object for each that has a `_target_`."""
    algo: dict[str, Any] = {}
    for name, value in node.items():
        slot = str(name)
        if slot == "modifiers":
            algo[slot] = {
                modifier: instantiate(inner, f"algo.modifiers.{modifier}", METHODS[slot])
                for modifier, inner in value.items()
            }
        elif isinstance(value, DictConfig) and "_target_" in value:
            algo[slot] = instantiate(value, f"algo.{slot}", METHODS.get(slot, "__init__"))
        else:
            algo[slot] = value
    return algo


def _tree(scalars: Scalars, groups: dict[str, Any], algo: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain values, for the run's identity and its config.yaml."""
    plain_groups = {group: _plain(settings) for group, settings in groups.items()}
    return {**_fields(scalars), **plain_groups, "algo": _plain_algorithm(algo)}


def _plain_algorithm(algo: dict[str, Any]) -> dict[str, Any]:
    plain = dict(algo)
    for slot in OBJECT_SLOTS:
        plain[slot] = _plain(algo[slot])
    plain["modifiers"] = {name: _plain(one) for name, one in algo["modifiers"].items()}
    return plain


def _plain(settings: Any) -> dict[str, Any]:
    return {"type": _class_name(type(settings)), **_fields(settings)}


def _class_name(kind: type) -> str:
    """Of fedbench's classes the bare name, which is unique; of others with the module."""
    own = is_framework(kind.__module__)
    return kind.__name__ if own else f"{kind.__module__}.{kind.__qualname__}"


def _fields(settings: Any) -> dict[str, Any]:
    fields = OmegaConf.to_container(OmegaConf.structured(settings))
    assert isinstance(fields, dict)
    return {str(name): value for name, value in fields.items()}

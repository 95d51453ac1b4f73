"""Turn what Hydra and OmegaConf raise into one line that names the key and what is allowed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput, nearest, require, why_unresolved
from fedbench.parallel.processes import under_torchrun

CONFIGURATION_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError)
# Hydra's plugins that a sweep may use, and the extra of pyproject.toml that installs each.
PLUGINS = {
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
    "hydra/launcher/ray": "ray",
    "hydra/launcher/ray_aws": "ray",
    "hydra/sweeper/optuna": "optuna",
}
QUOTES = (
    "and quote a value that contains characters other than letters, digits and /._-:+ "
    """for the shell and for Hydra, as in 'key="a=b"'"""
)


def explain(error: Exception, arguments: list[str]) -> str:
    """One line for a configuration that could not be composed."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': write key=value, {QUOTES}"
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        return _unreadable_preset(error, arguments)
    if isinstance(error, InterpolationResolutionError):
        words = [word for word in arguments if "${" in word]
        return ": ".join([*words[:1], why_unresolved(error)])
    sweep = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if sweep:
        return f"{sweep.group(1)}: several values are a sweep, which --multirun (or -m) asks for"
    merged = re.search(r"Error merging override (([^\s=]+)=.*)", text)
    if merged:
        return f"{merged.group(1)}: {_section(merged.group(2), known_keys(arguments))}"
    gone = re.search(
        r"Could not delete from config\. '([^']+)'|Could not delete\. No match for '([^']+)'", text
    )
    if gone:
        return _unknown_key(gone.group(1) or gone.group(2), arguments)
    if "Config group override must be" in text:
        return _not_a_choice(arguments)
    kept = re.search(r"Could not delete '([^']+)'\. No match in the defaults list", text)
    if kept and (config_folder() / kept.group(1)).is_dir():
        nothing = "[]" if kept.group(1) == "modifier" else "null"
        return f"~{kept.group(1)}: it cannot be deleted; {kept.group(1)}={nothing} is allowed"
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing and isinstance(error, HydraException | MissingConfigException):
        path = missing.group(1)
        return (
            _missing_plugin(path, text)
            if path.startswith("hydra/")
            else _missing_choice(path, arguments)
        )
    unknown = re.search(r"Could not override '([^']+)'", text) or re.search(
        r"No match in the defaults list.*?'([^']+)'", text
    )
    if unknown:
        return _unknown_key(unknown.group(1), arguments)
    return " ".join(
        line.strip() for line in text.splitlines() if line.strip() and "https://" not in line
    )


def _not_a_choice(arguments: list[str]) -> str:
    """`scale=null` or `data=3`: what was given for a group is not the name of a file."""
    for word in arguments:
        group, _, value = word.partition("=")
        if (config_folder() / group).is_dir() and not re.fullmatch(
            r"[\[A-Za-z_].*", value.replace("null", "")
        ):
            return _missing_choice(f"{group}/{value}", arguments).replace(
                "did you mean", "name a file, or leave it out; did you mean"
            )
    return "the choice of a group is the name of a file"


def _missing_plugin(path: str, text: str) -> str:
    """A launcher or sweeper that is not installed, or a misspelt choice of Hydra's own groups."""
    group, _, choice = path.rpartition("/")
    if path in PLUGINS:
        return f"{group}={choice}: not installed; pip install 'fedbench-lab[{PLUGINS[path]}]'"
    known = [name.rpartition("/")[2] for name in PLUGINS if name.startswith(f"{group}/")]
    known += re.findall(r"^\s+(\w+)$", text, flags=re.MULTILINE)  # Hydra lists what there is
    return f"{group}={choice}: {nearest(choice, known)}"


def _missing_choice(path: str, arguments: list[str]) -> str:
    group, _, choice = path.partition("/")
    choices = []
    for folder in (config_folder() / group, *(own / group for own in own_folders(arguments))):
        files = [
            file for file in folder.rglob("*.yaml") if file.stem[0] != "_"
        ]  # those are parts of others
        choices += [str(file.relative_to(folder).with_suffix("")) for file in files]
    if not choices:
        return f"{path}: there is no such file in the configuration"
    return f"{group}={choice}: {nearest(choice, choices)}"


def own_folders(arguments: list[str]) -> list[Path]:
    """Where presets of one's own lie: what --config-dir names."""
    named = get_args_parser().parse_known_args(arguments)[0].config_dir
    return [Path(named)] if named else []


def _unreadable_preset(error: yaml.YAMLError | UnicodeDecodeError, arguments: list[str]) -> str:
    """A preset that is no YAML: where, and what is wrong with it."""
    place, reason = (
        getattr(error, "problem_mark", None),
        getattr(error, "problem", None) or str(error),
    )
    file = place.name if place else getattr(error, "name", None)
    if file is None:  # text in another encoding: nobody says which file
        files = [
            file for folder in own_folders(arguments) for file in sorted(folder.rglob("*.yaml"))
        ]
        file = next((file for file in files if not _is_text(file)), "a preset")
    line = f", line {place.line + 1}" if place else ""
    return f"{file}{line}: a YAML file in UTF-8 is allowed ({' '.join(reason.split())})"


def _is_text(file: Path) -> bool:
    try:
        file.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def _unknown_key(key: str, arguments: list[str]) -> str:
    known = known_keys(arguments)
    if key in known:  # it would be there, but for another word
        deleted = [
            word
            for word in arguments
            if word.startswith("~") and f"{key}.".startswith(f"{word[1:]}.")
        ]
        return (
            f"unknown key '{key}': {deleted[0]} deletes it"
            if deleted
            else f"{key}: {_section(key, known)}"
        )
    modifier = re.match(r"algo\.modifiers\.(\w+)", key)
    if modifier and not any(name.startswith(f"{modifier.group()}.") for name in known):
        name = modifier.group(1)
        if (config_folder() / "modifier" / f"{name}.yaml").is_file():
            return f"unknown key '{key}': it needs modifier=[{name}]"
    parent, _, last = key.rpartition(".")
    siblings = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == parent]
    if not siblings:
        return f"unknown key '{key}': {nearest(key, known)}"
    return f"unknown key '{key}': " + nearest(last, siblings).replace(
        "mean '", f"mean '{parent}." if parent else "mean '"
    )


def _section(key: str, known: list[str]) -> str:
    if (config_folder() / key).is_dir():
        return f"a name is allowed, not keys of one's own; see conf/{key}"
    inside = [name for name in known if name.startswith(f"{key}.")]
    return (
        f"it is a section with keys of its own, such as {inside[0]}"
        if inside
        else "a single value is allowed"
    )


def check_words(arguments: list[str]) -> None:
    """Refuse what Hydra stumbles over: unknown options, a list where one file is chosen, a modifier
    twice.
    """
    parser = get_args_parser()
    parser.error = _refuse_option
    for word in parser.parse_args(arguments).overrides:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:
            continue  # Hydra says so itself
        group, value = override.key_or_group, override.value()
        if override.is_delete() or not (config_folder() / group).is_dir():
            continue
        for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
            _check_choice(group, choice, word)


def check_torchrun() -> None:
    """torchrun sets these together; what somebody else has set must be whole."""
    if not under_torchrun():
        return
    numbers = {key: os.environ.get(key, "") for key in ("WORLD_SIZE", "RANK", "MASTER_PORT")}
    for key, value in numbers.items():
        allowed = (
            "torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; a number is allowed here,"
            " or none of them"
        )
        require(value.isdecimal(), f"environment: {key}", value, allowed)
    rank, size = int(numbers["RANK"]), int(numbers["WORLD_SIZE"])
    require(
        rank < size, "environment: RANK", rank, f"a number below WORLD_SIZE, {size}, is allowed"
    )


def options_first(arguments: list[str]) -> list[str]:
    """Options with their values in front of the words: Hydra takes key=value words only in one
    piece.
    """
    actions = {
        name: action for action in get_args_parser()._actions for name in action.option_strings
    }
    options, words, rest = [], [], list(arguments)
    while rest:
        word = rest.pop(0)
        (options if word.startswith("-") else words).append(word)
        action = actions.get(word)
        if (
            action
            and rest
            and (
                action.nargs is None or (action.nargs == "?" and rest[0] in (action.choices or ()))
            )
        ):
            options.append(rest.pop(0))
    return options + words


def _refuse_option(message: str) -> NoReturn:
    raise BadInput(f"{message}; see fedbench --help")


def _check_choice(group: str, choice: object, word: str) -> None:
    if isinstance(choice, dict) or (isinstance(choice, list) and group != "modifier"):
        raise BadInput(f"{word}: the name of one file of conf/{group} is allowed")
    if not isinstance(choice, list):
        return
    if not all(isinstance(name, str) for name in choice):
        raise BadInput(f"{word}: a list of names is allowed, such as modifier=[ecgr,pgvc]")
    repeated = [name for name in choice if choice.count(name) > 1]
    if repeated:
        raise BadInput(f"{word}: {repeated[0]} is named twice, once is allowed")


def known_keys(arguments: list[str]) -> list[str]:
    """Every key of the configuration that the chosen groups make, with the folders of groups."""
    groups = {folder.name for folder in config_folder().iterdir() if folder.is_dir()}
    chosen = [
        word for word in arguments if word.split("=")[0] in groups and "," not in word.split("[")[0]
    ]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        try:
            composed = compose("config", overrides=chosen)
        except CONFIGURATION_ERRORS:  # a choice is wrong as well: the keys of the defaults must do
            composed = compose("config")
    return _flatten(composed, "") + sorted(groups)


def _flatten(node: DictConfig, prefix: str) -> list[str]:
    keys = []
    for key in node:
        if key == "_target_":
            continue
        keys.append(prefix + str(key))
        if (
            OmegaConf.is_dict(node)
            and not OmegaConf.is_interpolation(node, key)
            and OmegaConf.is_dict(node[key])
        ):
            keys += _flatten(node[key], f"{prefix}{key}.")
    return keys

"""One line for what Hydra and OmegaConf refuse, with the nearest name that exists."""

from __future__ import annotations

import re

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString, Sweep
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput, nearest, why_unresolved

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


def explain(error: Exception, overrides: list[str]) -> str:
    """One line for a configuration that could not be composed."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read '{error.override}': write key=value, {QUOTES}"
    if isinstance(error, yaml.YAMLError | UnicodeDecodeError):
        return _unreadable_file(error)
    if isinstance(error, InterpolationResolutionError):
        references = [word for word in overrides if "${" in word]
        return ": ".join([*references[:1], why_unresolved(error)])
    sweep = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if sweep:
        return f"{sweep.group(1)}: several values are a sweep; add --multirun (or -m)"
    missing = re.search(r"Could not (?:find|load) '([^']+)'", text)
    if missing:
        return _missing_file(missing.group(1), text)
    if isinstance(error.__cause__, OmegaConfBaseException) and "Could not override" in text:
        return _unknown_key(error.__cause__)
    merged = re.search(r"Error merging override (.+)", text)
    if merged and error.__cause__:
        return f"{merged.group(1)}: {str(error.__cause__).splitlines()[0]}"
    lines = [line.strip() for line in text.splitlines() if "https://" not in line]
    return " ".join(line for line in lines if line)  # the address is in Hydra's trailer


def options_before_overrides(arguments: list[str]) -> list[str]:
    """The same arguments in the order that Hydra needs: `seed=1 -m lr=1,2` -> `-m seed=1 lr=1,2`.

    Raises BadInput for an option that Hydra does not have.
    """

    def refuse(message: str) -> None:
        raise BadInput(f"{message}; see fedbench --help")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[assignment, method-assign]
    overrides = parser.parse_intermixed_args(arguments).overrides
    return [word for word in arguments if word not in overrides] + overrides


def check_choices(overrides: list[str]) -> None:
    """Refuse a choice of a group that is no name: Hydra would not say which override it means."""
    for word in overrides:
        try:
            override = OverridesParser.create().parse_override(word)
        except HydraException:
            continue  # Hydra reports it
        group, value = override.key_or_group, override.value()
        if override.is_delete() or not (config_folder() / group).is_dir():
            continue
        if isinstance(value, ChoiceSweep):
            choices = value.list
        else:
            choices = [] if isinstance(value, Sweep) else [value]
        for choice in choices:
            _check_choice(group, choice, word)


def _check_choice(group: str, choice: object, word: str) -> None:
    names = choice if isinstance(choice, list) and group == "modifier" else [choice]
    if not all(isinstance(name, str | QuotedString) for name in names):
        several = ", or a list of them" if group == "modifier" else ""
        raise BadInput(f"{word}: must be the name of a file in conf/{group}{several}")
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"{word}: must name {name} once")


def _missing_file(path: str, text: str) -> str:
    """A choice of a group that does not exist, or a plugin that is not installed."""
    if path in PLUGINS:
        group, _, choice = path.rpartition("/")
        return f"{group}={choice}: not installed; pip install 'fedbench-lab[{PLUGINS[path]}]'"
    group, _, choice = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    folder = config_folder() / group
    known = re.findall(r"^\s+(\w+)$", text, flags=re.MULTILINE)  # Hydra lists what exists
    known += [str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml")]
    known += [name.rpartition("/")[2] for name in PLUGINS if name.startswith(f"{group}/")]
    public = [name for name in known if not name.rpartition("/")[2].startswith("_")]
    return f"{group}={choice}: {nearest(choice, public)}"


def _unknown_key(error: OmegaConfBaseException) -> str:
    """OmegaConf's error knows the section in which the key is missing."""
    key = str(error.full_key)
    section, _, last = key.rpartition(".")
    folder = config_folder() / key
    if section == "algo.modifiers" and (config_folder() / "modifier" / f"{last}.yaml").is_file():
        return f"unknown key '{key}': it needs modifier=[{last}]"
    if section == "" and folder.is_dir():
        return f"unknown key '{key}': no file of conf/{key} is chosen"
    if not isinstance(error.parent_node, DictConfig):
        return f"unknown key '{key}': '{section}' has a single value and no keys"
    known = [str(name) for name in error.parent_node if name != "_target_"]
    if not section:
        known += [folder.name for folder in config_folder().iterdir() if folder.is_dir()]
    return f"unknown key '{key}': {nearest(last, known, section)}"


def _unreadable_file(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """A file of a configuration that is not YAML."""
    mark = getattr(error, "problem_mark", None)
    file = mark.name if mark else getattr(error, "name", "a file of --config-dir")
    line = f", line {mark.line + 1}" if mark else ""
    reason = getattr(error, "problem", None) or str(error)
    return f"{file}{line}: must be YAML in UTF-8 ({' '.join(reason.split())})"

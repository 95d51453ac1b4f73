"""What Hydra may not do for a configuration: call things, read the environment, write files, log.

Hydra calls whatever a `_target_` under `hydra.callbacks` names, and Python's logging whatever a handler's `()` names:
a preset that somebody gives would run code. So every configuration is looked at when it is composed, before Hydra acts
on it. A file of presets can then choose values, and nothing else.
"""

from __future__ import annotations

from functools import wraps
from typing import Any, NoReturn

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedbench.errors import BadInput, bad_value, require, why_unresolved

# Hydra writes nothing and logs nothing: a run's folder is fedbench's own.
FIXED = {
    "run.dir": ".",
    "sweep.subdir": ".",
    "output_subdir": None,
    "callbacks": {},
    "job.env_set": {},
    "job.env_copy": [],
}
SILENT = {"version": 1, "root": {"level": "ERROR"}, "disable_existing_loggers": True}
LOGGING = ("hydra_logging", "job_logging")
PLUGINS = {"launcher": Launcher, "sweeper": Sweeper}


def install() -> None:
    """Have every configuration looked at, those of a sweep's jobs, too, and the environment kept out of all."""
    OmegaConf.register_new_resolver("oc.env", _refuse_environment, replace=True)
    original = ConfigLoaderImpl.load_configuration
    if hasattr(original, "__wrapped__"):
        return

    @wraps(original)
    def load_and_check(
        loader: ConfigLoaderImpl, config_name: str | None, overrides: list[str], *rest: Any, **settings: Any
    ) -> DictConfig:
        if config_name is None and overrides:  # Hydra's own configuration, without ours: it would log as they say
            raise BadInput(f"--hydra-help {overrides[0]}: no words are allowed with it")
        composed = original(loader, config_name, overrides, *rest, **settings)
        if config_name is not None:
            check_hydra(composed.hydra)
        return composed

    ConfigLoaderImpl.load_configuration = load_and_check


def check_hydra(node: DictConfig) -> None:
    """Refuse settings of Hydra that run code or write files."""
    plain = OmegaConf.to_container(node, resolve=False)
    for key, only in FIXED.items():
        value = _inside(plain, key)
        allowed = f"only {'null' if only is None else only} is allowed"
        require(value == only or not (value or only), f"hydra.{key}", value, allowed)
    for key in LOGGING:
        chosen = plain["runtime"]["choices"].get(f"hydra/{key}")
        require(plain.get(key) == SILENT, f"hydra/{key}", chosen, "only disabled is allowed, with nothing added to it")
    for key, kind in PLUGINS.items():
        _check_plugin(f"hydra.{key}", _resolved(node, key), kind)


def _inside(plain: dict[str, Any], key: str) -> Any:
    """What a dotted key names; a reference stays as it is written, and so is never what it should be."""
    section, _, last = key.rpartition(".")
    holder = plain.get(section) if section else plain
    return holder.get(last) if isinstance(holder, dict) else holder


def _resolved(node: DictConfig, key: str) -> Any:
    """The settings as Hydra will see them, with what they refer to put in."""
    try:
        value = OmegaConf.select(node, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise BadInput(f"hydra.{key}: {why_unresolved(error)}") from error


def _check_plugin(key: str, settings: Any, kind: type) -> None:
    """Installed launchers and sweepers alone; Hydra would also call what a `_target_` deeper inside names."""
    target = settings.get("_target_") if isinstance(settings, dict) else None
    allowed = f"the name of an installed {kind.__name__.lower()} is allowed, such as {_basic(kind)}"
    known = [f"{found.__module__}.{found.__name__}" for found in Plugins.instance().discover(kind)]
    require(target in known, f"{key}._target_", target, allowed)
    inside = _targets({name: value for name, value in settings.items() if name != "_target_"})
    if inside:
        raise bad_value(f"{key}: _target_", inside[0], "none is allowed inside of its settings")


def _basic(kind: type) -> str:
    name = kind.__name__
    return f"hydra._internal.core_plugins.basic_{name.lower()}.Basic{name}"


def _targets(value: Any) -> list[Any]:
    if isinstance(value, list):
        return [target for inner in value for target in _targets(inner)]
    if not isinstance(value, dict):
        return []
    return [value["_target_"]] if "_target_" in value else _targets(list(value.values()))


def _refuse_environment(*arguments: object) -> NoReturn:
    """Whatever a variable holds would stand in config.yaml or in a message."""
    raise BadInput("a variable of the environment may be a secret, and settings are written down")

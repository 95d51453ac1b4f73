"""What a run is: its id, its readable label, and the code and versions that computed it.

The id is a hash of everything that can change a number, so two runs with one id have the same
numbers: `run_id(identity(...))` is "b414d71324d6", and `label(config)` is
"digits-mlp-dirichlet0.5-fedavg".
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

import fedbench
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import chain
from fedbench.config.schema import Config
from fedbench.config.validate import config_folder

# Keys that cannot change a number: where files are, what is shown, how the work is shared out.
NOT_IDENTITY = ("results", "force", "objective", "scale", "checkpoint", "logger")
NOT_RUNTIME = ("workers", "timeout", "device")
NOT_DATA = ("root", "download")
NOT_MODEL = ("download",)
NOT_PARTITION = ("incomplete",)
FILES = ("path", "weights", "pretrained")  # keys whose value is a file, or leads to one
PACKAGE = Path(__file__).parents[1]

Tree = dict[str, Any]


def identity(
    config: Config, algorithm: Algorithm, device: str, fingerprint: str, clients: int | None = None
) -> Tree:
    """The part of the configuration that decides the numbers.

    Files are replaced by hashes of their contents, and two ways to say the same become one.
    """
    tree = _without(config.tree, NOT_IDENTITY)
    tree["runtime"] = {**_without(tree["runtime"], NOT_RUNTIME), "device": device}
    data = _with_contents(_without(tree["data"], NOT_DATA), config.data)
    tree["data"] = {**data, "fingerprint": fingerprint}  # of the examples in the data root
    model = _with_contents(_without(tree["model"], NOT_MODEL), config.model)
    tree["model"] = {**model, "projection": model["projection"] or algorithm.projection}
    partition = _without(tree["partition"], NOT_PARTITION)
    tree["partition"] = _with_contents(partition, config.partition)
    if algorithm.pooled or (clients is not None and (tree["cohort"] or 0) >= clients):
        tree["cohort"] = None  # all clients, every round
    tree["client"] = _client_identity(tree, algorithm)
    # A rate scales what clients send. Where they send nothing, it has no effect.
    server_lr = 1.0 if algorithm.local == "all" else config.scalars.server.lr
    tree["server"] = {"lr": server_lr, "weights": algorithm.weights}
    tree["algo"] = _algorithm_identity(tree["algo"], algorithm, server_lr)
    for group, key in (("data", "augment"), ("attack", "clients")):
        if key in tree[group]:  # the order in which they are named has no effect
            tree[group] = {**tree[group], key: sorted(tree[group][key])}
    return _without_signed_zeros(tree)


def _without(tree: Tree, keys: tuple[str, ...]) -> Tree:
    return {key: value for key, value in tree.items() if key not in keys}


def _with_contents(tree: Tree, settings: Any) -> Tree:
    """With the hash of a file's content in place of its name."""
    given = [key for key in FILES if tree.get(key) not in (None, False)]
    return {**tree, **{key: settings.content_hash() for key in given}}


def _client_identity(tree: Tree, algorithm: Algorithm) -> Tree:
    client = dict(tree["client"])
    if client["steps"] is not None:
        client["epochs"] = None  # steps win over epochs
    # A method with its own number of steps needs these for the clients' own tests only.
    if chain(algorithm.modifiers, "num_steps") and not tree["partition"].get("local_test"):
        client["epochs"] = None
        client["steps"] = None
    decay = dict(client["lr_decay"])
    if decay["first"] is None:
        decay["first"] = decay["every"]
    client["lr_decay"] = None if decay["factor"] == 1.0 else decay
    return client


def _algorithm_identity(tree: Tree, algorithm: Algorithm, server_lr: float) -> Tree:
    return {
        "name": algorithm.name,
        "aggregate": algorithm.aggregate.identity(tree["aggregate"]),
        "server_opt": algorithm.server_opt.identity(tree["server_opt"], server_lr),
        "local": algorithm.local,
        "local_train": tree["local_train"],
        "pooled": algorithm.pooled,
        "scoring": algorithm.scoring,
        "modifiers": {
            name: modifier.identity(tree["modifiers"][name])
            for name, modifier in algorithm.modifiers.items()
        },
    }


def _without_signed_zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_signed_zeros(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_signed_zeros(inner) for inner in value]
    return 0.0 if isinstance(value, float) and value == 0 else value


def run_id(identity_tree: Tree) -> str:
    canonical = json.dumps(identity_tree, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


def label(config: Config) -> str:
    """A readable name: data-model-partition-algorithm, then added modifiers and an attack."""
    names = config.names
    data, split = split_label(config).split(" ")
    # A user's own file builds on a named algorithm.
    own = _own_modifiers(names["algo"]) or _own_modifiers(config.algo["name"])
    added = [name for name in config.algo["modifiers"] if name not in own]
    attack = [] if names.get("attack", "none") == "none" else [names["attack"]]
    words = [data, names["model"], split, "+".join([names["algo"], *added]), *attack]
    return "-".join(words).replace("/", "-")  # a choice may lie in a folder of its group


def split_label(config: Config) -> str:
    """Which data, split in which way: "mnist dirichlet0.5"."""
    data, partition = config.names["data"], config.names["partition"]
    if getattr(config.data, "source", "real") == "synthetic":
        data += "-synthetic"
    settings = config.partition
    strength = getattr(settings, "alpha", getattr(settings, "per_client", None))
    return f"{data} {partition}" if strength is None else f"{data} {partition}{strength:g}"


def _own_modifiers(algo: str) -> list[str]:
    """The modifiers that a named algorithm's file lists; none for a user's own file."""
    file = config_folder() / "algo" / f"{algo}.yaml"
    content = yaml.safe_load(file.read_text()) if file.is_file() else {}
    defaults = [entry for entry in content.get("defaults", []) if isinstance(entry, dict)]
    listed = [name for entry in defaults for names in entry.values() for name in names]
    return listed + list(content.get("modifiers", {}))


def versions() -> dict[str, str]:
    return {
        "fedbench": fedbench.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


# The code: its hash and its commit, both as they were when the program started. Forked workers
# inherit them. A file that is edited during a sweep changes neither the code in memory nor what is
# written about it.


def hash_of(package: Path) -> str:
    """A hash of all Python files except those that only read finished runs."""
    result = hashlib.blake2b(digest_size=6)
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package)
        if name.parts[0] != "study":
            result.update(f"{name}\0".encode() + file.read_bytes())
    return result.hexdigest()


_SOURCE_HASH = hash_of(PACKAGE)  # now: later, the files may differ from the code in memory


def source_hash() -> str:
    return _SOURCE_HASH


@cache
def source_commit() -> dict[str, Any]:
    """The commit of the code, and whether it had uncommitted changes; None means unknown.

    Programs call this when they start; later calls return the same.
    """
    return commit_of(PACKAGE.parents[1])


def commit_of(checkout: Path) -> dict[str, Any]:
    """Unknown for an installed wheel, without git, and for a checkout that git does not trust."""
    if not (checkout / ".git").exists():  # git would find a repository further up
        return {"commit": None, "dirty": None}
    changes = _git(checkout, "status", "--porcelain")
    return {
        "commit": _git(checkout, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def _git(checkout: Path, *words: str) -> str | None:
    """The output of a git command; None when it fails."""
    # A hook that starts a run has GIT_DIR, which names another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(checkout), *words]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
    except OSError:  # there is no git on this machine
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None

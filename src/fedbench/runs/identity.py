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
from fedbench.config.own_code import own_folders
from fedbench.config.schema import Config
from fedbench.config.validate import config_folder, name_of_files

# Keys that cannot change a number: where files are, what is shown, how the work is shared out.
NOT_IDENTITY = ("results", "force", "objective", "scale", "checkpoint", "logger")
NOT_RUNTIME = (
    "workers",
    "timeout",
    "device",
    "deterministic",
    "precision",
    "kernels",
    "graph",
)
# Which examples are in the subset and in the validation set is part of the fingerprint.
NOT_DATA = ("root", "download", "subset_seed", "validation")
NOT_MODEL = ("download",)
NOT_PARTITION = ("incomplete",)
FILES = ("path", "weights", "pretrained")  # keys whose value is a file, or leads to one
LONGEST_NAME = 80  # of own data, in a label: a folder's name has at most 255 bytes
# Keys that are left out of the id at their defaults, which are listed here: such a key does nothing
# then, so the ids of runs that were made before it existed stay.
ADDED_LATER = {
    "client.last_batch": "keep",
    "data.pool": False,
    "diagnostics.drift": False,
    "diagnostics.seconds": False,
    "diagnostics.update_variance": False,
    "eval.population": "all",
    "model.padding": None,
    "model.frozen": False,
    "partition.cap": False,
    "partition.least_share": 0.0,
    "stop.accuracy": None,
    "stop.loss_factor": 1000.0,
    "stop.patience": None,
}
PACKAGE = Path(__file__).parents[1]

Tree = dict[str, Any]


def identity(
    config: Config,
    algorithm: Algorithm,
    device: str,
    fingerprint: str,
    clients: int | None = None,
    kernels: str = "torch",
) -> Tree:
    """The part of the configuration that decides the numbers.

    Files are replaced by hashes of their contents, and two ways to say the same become one.
    """
    tree = _without(config.tree, NOT_IDENTITY)
    tree["runtime"] = _runtime_identity(tree["runtime"], device)
    if kernels != "torch":  # last bits differ; a network that has none of its own uses torch's
        tree["runtime"]["kernels"] = kernels
    data = _with_contents(_without(tree["data"], NOT_DATA), config.data)
    tree["data"] = {**data, "fingerprint": fingerprint}  # of the examples in the data root
    model = _with_contents(_without(tree["model"], NOT_MODEL), config.model)
    tree["model"] = {**model, "projection": model["projection"] or algorithm.projection}
    tree["partition"] = _partition_identity(tree, config)
    if algorithm.pooled or (clients is not None and (tree["cohort"] or 0) >= clients):
        tree["cohort"] = None  # all clients, every round
    if tree["cohort"] is None or not tree["partition"].get("local_test"):
        tree["eval"] = {**tree["eval"], "population": "all"}  # the same clients, or none
    tree["client"] = _client_identity(tree, algorithm)
    # A rate scales what clients send. Where they send nothing, it has no effect.
    server_lr = 1.0 if algorithm.local == "all" else config.scalars.server.lr
    tree["server"] = {"lr": server_lr, "weights": algorithm.weights}
    tree["algo"] = _algorithm_identity(tree["algo"], algorithm, server_lr)
    for group, key in (("data", "augment"), ("attack", "clients")):
        if key in tree[group]:  # the order in which they are named has no effect
            tree[group] = {**tree[group], key: sorted(tree[group][key])}
    if config.own_code:  # a run without own classes has no such key
        tree["own code"] = config.own_code
    return _without_signed_zeros(_without_later_defaults(tree))


def _without(tree: Tree, keys: tuple[str, ...]) -> Tree:
    return {key: value for key, value in tree.items() if key not in keys}


def _without_later_defaults(tree: Tree) -> Tree:
    """Without keys of `ADDED_LATER` at their defaults, and without sections that then are empty."""
    for name, default in ADDED_LATER.items():
        section, _, key = name.rpartition(".")
        if section in tree and tree[section].get(key, default) == default:
            tree[section] = _without(tree[section], (key,))
            if not tree[section]:
                del tree[section]
    return tree


def _with_contents(tree: Tree, settings: Any) -> Tree:
    """With the hash of a file's content in place of its name."""
    given = [key for key in FILES if tree.get(key) not in (None, False)]
    return {**tree, **{key: settings.content_hash() for key in given}}


def _runtime_identity(runtime: Tree, device: str) -> Tree:
    """Settings of a GPU count where they are not the default; on the CPU they have no effect."""
    tree = {**_without(runtime, NOT_RUNTIME), "device": device}
    if device != "cpu" and not runtime["deterministic"]:
        tree["deterministic"] = False
    if runtime["precision"] != "float32":
        tree["precision"] = runtime["precision"]
    return tree


def _partition_identity(tree: Tree, config: Config) -> Tree:
    partition = _with_contents(_without(tree["partition"], NOT_PARTITION), config.partition)
    own_seed = partition.pop("seed")
    # A file needs a seed for the clients' own tests only.
    seeded = not partition.get("path") or partition["local_test"]
    if seeded and own_seed not in (None, config.scalars.seed):
        partition["seed"] = own_seed
    return partition


def _client_identity(tree: Tree, algorithm: Algorithm) -> Tree:
    client = dict(tree["client"])
    if client["batch_size"] == "full":
        client["last_batch"] = "keep"  # no batch is incomplete
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


def series_id(identity_tree: Tree) -> str:
    """The id of all runs that differ in nothing but the number of rounds."""
    return run_id(_without(identity_tree, ("rounds",)))


def label(config: Config) -> str:
    """A readable name: data-model-partition-algorithm, then added modifiers and an attack."""
    names = config.names
    data, split = split_label(config).split(" ")
    # A user's own file lists its modifiers, or builds on a named algorithm.
    own = [*_own_modifiers(names["algo"]), *_own_modifiers(config.algo["name"])]
    added = [name for name in config.algo["modifiers"] if name not in own]
    attack = [] if names.get("attack", "none") == "none" else [names["attack"]]
    words = [data, names["model"], split, "+".join([names["algo"], *added]), *attack]
    return "-".join(words).replace("/", "-")  # a choice may lie in a folder of its group


def split_label(config: Config) -> str:
    """Which data, split in which way: "mnist dirichlet0.5"."""
    data, partition = _data_name(config), config.names["partition"]
    if getattr(config.data, "source", "real") == "synthetic":
        data += "-synthetic"
    settings = config.partition
    strength = getattr(settings, "alpha", getattr(settings, "per_client", None))
    return f"{data} {partition}" if strength is None else f"{data} {partition}{strength:g}"


def _data_name(config: Config) -> str:
    """The chosen file of conf/data; of data=npz the user's own name for it."""
    chosen, name = config.names["data"], str(config.shown["data"].get("name"))
    if chosen != "npz" or "${" in name:  # a value of the environment may be a secret
        return chosen
    return name_of_files(name)[:LONGEST_NAME]


def _own_modifiers(algo: str, above: tuple[str, ...] = ()) -> list[str]:
    """The modifiers that an algorithm's file lists, in fedbench or in a user's own folder, and
    those of the files that it builds on. `above` are the files that build on this one.
    """
    files = [folder / "algo" / f"{algo}.yaml" for folder in (config_folder(), *own_folders())]
    found = [file for file in files if file.is_file()]
    if not found or algo in above:
        return []
    content = yaml.safe_load(found[0].read_text()) or {}
    listed = list(content.get("modifiers") or {})
    for entry in content.get("defaults") or []:
        if isinstance(entry, str):
            listed += _own_modifiers(entry, (*above, algo))
        else:
            listed += [
                name for chosen in entry.values() if isinstance(chosen, list) for name in chosen
            ]
    return listed


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
    """A hash of all source files except those that only read finished runs."""
    result = hashlib.blake2b(digest_size=6)
    kinds = (".py", ".cpp", ".h")
    for file in sorted(file for file in package.rglob("*") if file.suffix in kinds):
        name = file.relative_to(package)
        if name.parts[0] != "report":
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

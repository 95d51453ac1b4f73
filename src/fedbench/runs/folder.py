"""A run is a folder of plain files, named by a hash of everything that can change its numbers."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout

import fedbench
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import chain
from fedbench.config.validate import Config, config_folder
from fedbench.core.errors import bad_value
from fedbench.core.files import remove_made, write_atomically
from fedbench.parallel.failures import full_disk
from fedbench.runs.checksums import SEALED, SUMMARY, examine

# Keys that cannot change a number: where things are, how they are shown, how the work is shared
# out.
NOT_IDENTITY = ("results", "force", "objective", "scale", "checkpoint", "logger")
NOT_RUNTIME = ("workers", "timeout", "device")
DAMAGED = ".damaged"  # in a run's folder: what was found damaged, until the run is finished again


def identity(
    config: Config, algorithm: Algorithm, device: str, fingerprint: str, clients: int | None = None
) -> dict[str, Any]:
    """The part of the configuration that decides the numbers, with files by content and defaults
    made explicit.
    """
    tree = {key: value for key, value in config.tree.items() if key not in NOT_IDENTITY}
    tree["runtime"] = {
        key: value for key, value in tree["runtime"].items() if key not in NOT_RUNTIME
    }
    tree["runtime"]["device"] = device
    tree["data"] = {
        key: value for key, value in tree["data"].items() if key not in ("root", "download")
    }
    tree["data"]["fingerprint"] = (
        fingerprint  # of the examples themselves: a data root may hold somebody's own
    )
    for group, settings in (
        ("data", config.data),
        ("model", config.model),
        ("partition", config.partition),
    ):
        for key in ("path", "weights", "pretrained"):
            if tree[group].get(key) not in (None, False):
                tree[group] = {**tree[group], key: settings.content_hash()}
    tree["model"] = {
        **tree["model"],
        "projection": tree["model"]["projection"] or algorithm.projection,
    }
    tree["model"].pop("download", None)
    tree["partition"] = {
        key: value for key, value in tree["partition"].items() if key != "incomplete"
    }
    if not tree["diagnostics"]["gradient_norms"]:
        del tree["diagnostics"]  # a run without them is what it was before they existed
    if algorithm.pooled or (clients is not None and (tree["cohort"] or 0) >= clients):
        tree["cohort"] = None  # everybody, every round
    client = dict(tree["client"])
    if client["steps"] is not None:
        client["epochs"] = None
    # A method with its own number of steps leaves these to the clients' tests: they train as long
    # as others would.
    if chain(algorithm.modifiers, "num_steps") and not tree["partition"].get("local_test"):
        client["epochs"] = client["steps"] = None
    decay = dict(client["lr_decay"])
    if decay["first"] in (None, decay["every"]):
        del decay["first"]  # as it was before there was such a key
    client["lr_decay"] = None if decay["factor"] == 1.0 else decay
    tree["client"] = client
    # Where nothing leaves the clients, nothing is scaled.
    server_lr = 1.0 if algorithm.local == "all" else config.scalars.server.lr
    tree["server"] = {"lr": server_lr, "weights": algorithm.weights}
    tree["algo"] = {
        "name": algorithm.name,
        "aggregate": algorithm.aggregate.identity(tree["algo"]["aggregate"]),
        "server_opt": algorithm.server_opt.identity(tree["algo"]["server_opt"], server_lr),
        "local": algorithm.local,
        "local_train": tree["algo"]["local_train"],
        "pooled": algorithm.pooled,
        "scoring": algorithm.scoring,
        "modifiers": {
            name: piece.identity(tree["algo"]["modifiers"][name])
            for name, piece in algorithm.modifiers.items()
        },
    }
    for group, key in (("data", "augment"), ("attack", "clients")):
        if key in tree[group]:  # in which order they are named plays no part
            tree[group] = {**tree[group], key: sorted(tree[group][key])}
    return _without_signed_zeros(tree)


def _without_signed_zeros(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_signed_zeros(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_signed_zeros(inner) for inner in value]
    return 0.0 if isinstance(value, float) and value == 0 else value


def run_id(identity_tree: dict[str, Any]) -> str:
    canonical = json.dumps(identity_tree, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=6).hexdigest()


def label(config: Config) -> str:
    """A readable name: data-model-partition-algorithm, with the modifiers that were added to it,
    and an attack.
    """
    names = config.names
    data, split = split_label(config).split(" ")
    # A file of somebody's own builds on a named one.
    own = _own_modifiers(names["algo"]) or _own_modifiers(config.algo["name"])
    added = [name for name in config.algo["modifiers"] if name not in own]
    attack = [] if names.get("attack", "none") == "none" else [names["attack"]]
    words = [data, names["model"], split, "+".join([names["algo"], *added]), *attack]
    return "-".join(words).replace("/", "-")  # a file of one's own may lie in a folder of its group


def split_label(config: Config) -> str:
    """Which data, split in which way: "mnist dirichlet0.5"."""
    names, partition = config.names, config.partition
    share = getattr(partition, "alpha", getattr(partition, "per_client", ""))
    data = names["data"] + (
        "-synthetic" if getattr(config.data, "source", "real") == "synthetic" else ""
    )
    return f"{data} {names['partition']}" + (f"{share:g}" if share != "" else "")


def _own_modifiers(algo: str) -> list[str]:
    """The modifiers that belong to a named algorithm, as its file lists them; none of a file that
    is not ours.
    """
    file = config_folder() / "algo" / f"{algo}.yaml"
    content = yaml.safe_load(file.read_text()) if file.is_file() else {}
    defaults = [entry for entry in content.get("defaults", []) if isinstance(entry, dict)]
    return [name for entry in defaults for names in entry.values() for name in names] + list(
        content.get("modifiers", {})
    )


@dataclass(frozen=True)
class RunFolder:
    path: Path

    def finished(self) -> dict[str, Any] | None:
        """The summary of a finished run whose files have the sizes that it tells, or None."""
        return examine(self.path, by_content=False)[0]

    def damage(self) -> str:
        """What is not as it was written of a finished run, by the contents of all its files; or
        nothing.
        """
        return examine(self.path, by_content=True)[1]

    def set_aside(self) -> None:
        """Keep the files of a damaged run until new ones are whole; first what says that it is
        finished.
        """
        aside = self.path / DAMAGED
        aside.mkdir(exist_ok=True)
        for name in (SUMMARY, *SEALED):
            with suppress(FileNotFoundError):
                os.replace(self.path / name, aside / name)

    def lock(self, force: bool = False) -> FileLock | None:
        """Held while the run is worked on; the kernel releases it when the process dies.

        None: there is nothing to do but to report a finished run, in a folder that cannot be
        written.
        """
        file = self.path.parent / f".{self.path.name}.lock"
        made = [
            place for place in (file, self.path, *self.path.parents) if not os.path.exists(place)
        ]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(file)
            lock.acquire(timeout=0)
        except Timeout:
            print(f"another process is doing this run; waiting for it: {self.path}", flush=True)
            lock.acquire()
        except OSError as error:
            if full_disk(error):
                raise
            if not force and self.finished() is not None and not self.damage():
                return None
            remove_made(made)
            folder, allowed = self.path.parents[2], "a folder that can be written"
            if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
                allowed = "a folder on a file system with locks (flock)"
            raise bad_value(
                "results", folder, f"{allowed} is allowed ({error.strerror})"
            ) from error
        return lock

    def clear(self) -> None:
        """Remove what an earlier attempt left, as `force=true` asks for; first what says that it is
        finished.
        """
        (self.path / SUMMARY).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def write(self, name: str, content: str | bytes, durable: bool = True) -> None:
        """Write one file so that readers see the whole of it or nothing."""
        write_atomically(self.path / name, content, durable)


def versions() -> dict[str, str]:
    import numpy

    return {
        "fedbench": fedbench.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }

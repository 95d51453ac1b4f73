"""The settings outside the config groups: their types, and their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedbench.core.errors import nearest, require

MANY = 10**12
LARGEST, SMALLEST = (
    1e38,
    1e-30,
)  # float32 holds numbers up to 3.4e38, and loses precision below 1.2e-38
OPTIMIZERS = ("sgd", "adam")
WEIGHTS = ("samples", "uniform")
DEVICES = ("auto", "cpu", "cuda")
# What a sweeper may optimise: numbers of summary.json, and of the last row of metrics.csv.
LARGER_IS_BETTER = ("best_accuracy", "final_accuracy")
SMALLER_IS_BETTER = ("test_loss", "train_loss", "train_seconds", "wall_time")
OBJECTIVES = LARGER_IS_BETTER + SMALLER_IS_BETTER


@dataclass
class RateDecay:
    factor: float = 1.0
    every: int = 1
    first: int | None = None  # the first round, counted from 0, with a new rate; None = every


@dataclass
class ClientSettings:
    epochs: int = 2
    steps: int | None = None
    batch_size: Any = 32  # an integer or "full"
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    lr_decay: RateDecay = field(default_factory=RateDecay)

    def rate(self, index: int) -> float:
        """The learning rate of a round, counted from 0."""
        decay = self.lr_decay
        first = decay.every if decay.first is None else decay.first
        changes = max(0, 1 + (index - first) // decay.every)
        return self.lr * decay.factor**changes


@dataclass
class ServerSettings:
    lr: float = 1.0
    weights: str | None = None


@dataclass
class EvalSettings:
    every: int = 1
    batch_size: int = 500
    conformal: bool = (
        False  # store the final model's softmax outputs, and the coverage of prediction sets
    )


@dataclass
class CheckpointSettings:
    every: int = 10


@dataclass
class DiagnosticsSettings:
    gradient_norms: bool = False  # of every layer, for each client and round


@dataclass
class RuntimeSettings:
    device: str = "auto"
    workers: int | None = None
    threads: int = 1
    timeout: int = 1800


@dataclass
class Scalars:
    """Everything that is not a config group with files of its own."""

    rounds: int = 20
    seed: int = 0
    cohort: int | None = None
    client: ClientSettings = field(default_factory=ClientSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    diagnostics: DiagnosticsSettings = field(default_factory=DiagnosticsSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    objective: str | None = None  # what a sweeper optimises; None = the best (validation) accuracy
    results: str = "results"
    scale: str | None = None
    force: bool = False


def check_ranges(scalars: Scalars) -> None:
    """Ranges of everything outside the groups."""
    _check_integers(scalars)
    _check_numbers(scalars)
    client, server, runtime = scalars.client, scalars.server, scalars.runtime
    require(bool(scalars.results), "results", scalars.results, "the path of a folder is allowed")
    for key, value, choices in (
        ("client.optimizer", client.optimizer, OPTIMIZERS),
        ("server.weights", server.weights or "samples", WEIGHTS),
        ("runtime.device", runtime.device, DEVICES),
        ("objective", scalars.objective or OBJECTIVES[0], OBJECTIVES),
    ):
        require(value in choices, key, value, nearest(value, choices))
    adam_fits = client.optimizer != "adam" or client.momentum == 0
    require(
        adam_fits, "client.momentum", client.momentum, "adam has its own; only 0 is allowed with it"
    )
    nesterov_fits = not client.nesterov or client.momentum > 0
    require(
        nesterov_fits, "client.nesterov", client.nesterov, "Nesterov needs client.momentum above 0"
    )


def _check_integers(scalars: Scalars) -> None:
    client, runtime = scalars.client, scalars.runtime
    upper = {
        "rounds": (scalars.rounds, MANY),
        "cohort": (scalars.cohort, MANY),
        "client.epochs": (client.epochs, MANY),
        "client.steps": (client.steps, MANY),
        "client.lr_decay.every": (client.lr_decay.every, MANY),
        "client.lr_decay.first": (client.lr_decay.first, MANY),
        "eval.every": (scalars.eval.every, MANY),
        "eval.batch_size": (scalars.eval.batch_size, MANY),
        "checkpoint.every": (scalars.checkpoint.every, MANY),
        "runtime.workers": (runtime.workers, 1024),
        "runtime.threads": (runtime.threads, 1024),
        "runtime.timeout": (runtime.timeout, 10**7),
    }
    for key, (value, most) in upper.items():
        require(value is None or value >= 1, key, value, "an integer of at least 1 is allowed")
        require(
            value is None or value <= most, key, value, f"an integer of at most {most} is allowed"
        )
    require(
        0 <= scalars.seed < 2**63, "seed", scalars.seed, "an integer from 0 to 2^63 - 1 is allowed"
    )
    size = client.batch_size
    whole = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    require(
        whole or size == "full",
        "client.batch_size",
        size,
        "an integer of at least 1, or `full`, is allowed",
    )
    fits = size == "full" or size <= MANY
    require(fits, "client.batch_size", size, f"an integer of at most {MANY}, or `full`, is allowed")


def _check_numbers(scalars: Scalars) -> None:
    client = scalars.client
    positive = {
        "client.lr": client.lr,
        "server.lr": scalars.server.lr,
        "client.lr_decay.factor": client.lr_decay.factor,
    }
    for key, value in positive.items():
        require(
            0 < value <= LARGEST,
            key,
            value,
            f"a finite number above 0, at most {LARGEST:g}, is allowed",
        )
    for key in ("client.lr", "server.lr"):
        require(
            positive[key] >= SMALLEST,
            key,
            positive[key],
            f"a number of at least {SMALLEST:g} is allowed",
        )
    decay = client.weight_decay
    require(
        0 <= decay <= LARGEST,
        "client.weight_decay",
        decay,
        f"a finite number of at least 0, at most {LARGEST:g}, is allowed",
    )
    require(
        0 <= client.momentum < 1,
        "client.momentum",
        client.momentum,
        "a number from 0 to below 1 is allowed",
    )
    try:
        last = client.rate(scalars.rounds - 1)
    except OverflowError:
        last = math.inf
    allowed = (
        f"the last round's rate would be {last:g}; from {SMALLEST:g} to {LARGEST:g} is allowed"
    )
    require(SMALLEST <= last <= LARGEST, "client.lr_decay.factor", client.lr_decay.factor, allowed)

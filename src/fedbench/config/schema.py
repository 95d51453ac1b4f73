"""The settings outside the config groups: their types, and their ranges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fedbench.core.errors import require
from fedbench.core.fields import LARGEST, MANY, SMALLEST, check_fields, choice, count, number

OPTIMIZERS = ("sgd", "adam")
WEIGHTS = ("samples", "uniform")
DEVICES = ("auto", "cpu", "cuda")
# What a sweeper may optimise: numbers of summary.json, and of the last row of metrics.csv.
LARGER_IS_BETTER = ("best_accuracy", "final_accuracy")
SMALLER_IS_BETTER = ("test_loss", "train_loss", "train_seconds", "wall_time")
OBJECTIVES = LARGER_IS_BETTER + SMALLER_IS_BETTER


@dataclass
class RateDecay:
    factor: float = number(1.0, above=0)
    every: int = count(1)
    first: int | None = count(
        None
    )  # the first round, counted from 0, with a new rate; None = every


@dataclass
class ClientSettings:
    epochs: int = count(2)
    steps: int | None = count(None)
    batch_size: Any = 32  # an integer or "full"
    lr: float = number(0.1, at_least=SMALLEST)
    optimizer: str = choice("sgd", OPTIMIZERS)
    momentum: float = number(0.0, at_least=0, below=1)
    nesterov: bool = False
    weight_decay: float = number(0.0, at_least=0)
    lr_decay: RateDecay = field(default_factory=RateDecay)

    def rate(self, index: int) -> float:
        """The learning rate of a round, counted from 0."""
        decay = self.lr_decay
        first = decay.every if decay.first is None else decay.first
        changes = max(0, 1 + (index - first) // decay.every)
        return self.lr * decay.factor**changes


@dataclass
class ServerSettings:
    lr: float = number(1.0, at_least=SMALLEST)
    weights: str | None = choice(None, WEIGHTS)


@dataclass
class EvalSettings:
    every: int = count(1)
    batch_size: int = count(500)
    # Store the final model's softmax outputs, and the coverage of prediction sets.
    conformal: bool = False


@dataclass
class CheckpointSettings:
    every: int = count(10)


@dataclass
class DiagnosticsSettings:
    gradient_norms: bool = False  # of every layer, for each client and round


@dataclass
class RuntimeSettings:
    device: str = choice("auto", DEVICES)
    workers: int | None = count(None, at_most=1024)
    threads: int = count(1, at_most=1024)
    timeout: int = count(1800, at_most=10**7)


@dataclass
class Scalars:
    """Everything that is not a config group with files of its own."""

    rounds: int = count(20)
    seed: int = count(0, at_least=0, at_most=2**63 - 1)
    cohort: int | None = count(None)
    client: ClientSettings = field(default_factory=ClientSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    diagnostics: DiagnosticsSettings = field(default_factory=DiagnosticsSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    # What a sweeper optimises; None = the best (validation) accuracy.
    objective: str | None = choice(None, OBJECTIVES)
    results: str = "results"
    scale: str | None = None
    force: bool = False


def check_ranges(scalars: Scalars) -> None:
    """Ranges of everything outside the groups, and what must fit together."""
    check_fields(scalars)
    client = scalars.client
    require(bool(scalars.results), "results", scalars.results, "must be the path of a folder")
    _check_batch_size(client.batch_size)
    _check_last_rate(client, scalars.rounds)
    adam_fits = client.optimizer != "adam" or client.momentum == 0
    require(adam_fits, "client.momentum", client.momentum, "must be 0: adam has its own")
    nesterov_fits = not client.nesterov or client.momentum > 0
    require(nesterov_fits, "client.nesterov", client.nesterov, "client.momentum must be above 0")


def _check_batch_size(size: Any) -> None:
    whole = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MANY
    words = f"must be `full` or an integer of at least 1 and at most {MANY}"
    require(whole or size == "full", "client.batch_size", size, words)


def _check_last_rate(client: ClientSettings, rounds: int) -> None:
    try:
        last = client.rate(rounds - 1)
    except OverflowError:
        last = math.inf
    words = f"the last round's rate would be {last:g}; it must be {SMALLEST:g} to {LARGEST:g}"
    factor = client.lr_decay.factor
    require(SMALLEST <= last <= LARGEST, "client.lr_decay.factor", factor, words)

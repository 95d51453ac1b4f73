"""The typed configuration: every setting with its default and its range."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbench.core.errors import require
from fedbench.core.fields import LARGEST, MANY, SMALLEST, choice, count, number
from fedbench.core.precision import PRECISIONS
from fedbench.core.seeding import LARGEST_SEED

OPTIMIZERS = ("sgd", "adam")
WEIGHTS = ("samples", "uniform")
LAST_BATCHES = ("keep", "drop", "scaled")
POPULATIONS = ("all", "cohort")
DEVICES = ("auto", "cpu", "cuda")
KERNELS = ("auto", "native", "torch")
GRAPHS = ("auto", "off")
# What a sweeper may optimise: numbers of summary.json, and of the last row of metrics.csv.
BEST_VALIDATION = "best_val_accuracy"
LARGER_IS_BETTER = ("best_accuracy", "final_accuracy", BEST_VALIDATION)
SMALLER_IS_BETTER = ("test_loss", "val_loss", "train_loss", "train_seconds", "wall_time")
OBJECTIVES = LARGER_IS_BETTER + SMALLER_IS_BETTER
NEED_VALIDATION = (BEST_VALIDATION, "val_loss")


@dataclass
class RateDecay:
    """The clients' rate is multiplied by `factor` every so many rounds."""

    factor: float = number(1.0, above=0)
    every: int = count(1)
    first: int | None = count(None)  # the first round with a new rate, from 0; None = `every`


@dataclass
class ClientSettings:
    """Local training. `steps` wins over `epochs`."""

    epochs: int = count(2)
    steps: int | None = count(None)
    batch_size: Any = 32  # an integer or "full"
    # An epoch's last batch, where it is incomplete: a step like any other, left out unless it is
    # the only one, or a step whose gradient is multiplied by the batch's share of a full one.
    last_batch: str = choice("keep", LAST_BATCHES)
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
    """The server's step. `weights` are those of the clients; None = the method's own."""

    lr: float = number(1.0, at_least=SMALLEST)
    weights: str | None = choice(None, WEIGHTS)


@dataclass
class EvalSettings:
    """How often, and in which batches, the model is tested."""

    every: int = count(1)
    batch_size: int = count(500)
    # Whose own test data is scored, where clients have some: of all, or of the next round's cohort.
    population: str = choice("all", POPULATIONS)
    # Store the final model's softmax outputs and the coverage of prediction sets.
    conformal: bool = False


@dataclass
class StopSettings:
    """When a run ends before its last round. None = never.

    The first two are looked at in evaluations; the third ends a run as diverged.
    """

    accuracy: float | None = number(None, above=0, at_most=1)  # on the test set
    # Evaluations without a new best validation accuracy (test accuracy without data.validation).
    patience: int | None = count(None)
    # A loss so many times that of guessing, and of the initial model, has exploded; None = only
    # what is not finite has.
    loss_factor: float | None = number(1000.0, above=1)


@dataclass
class CheckpointSettings:
    """How many rounds lie between two checkpoints."""

    every: int = count(10)
    keep: bool = False  # whether a finished run keeps its last one, so that it can be extended


@dataclass
class DiagnosticsSettings:
    """Measurements that cost time and change no result."""

    gradient_norms: bool = False  # of every layer, for each client and round
    drift: bool = False  # by layer: how far each client moved, and what it sent
    seconds: bool = False  # of each client's local training
    update_variance: bool = False  # between clients, of what they send


@dataclass
class RuntimeSettings:
    """Where and how a run computes. `timeout` is in seconds."""

    device: str = "auto"  # one of DEVICES
    workers: int | None = count(None, at_most=1024)
    threads: int = count(1, at_most=1024)
    timeout: int = count(1800, at_most=10**7)
    deterministic: bool = True  # on a GPU; the CPU always is
    precision: str = choice("float32", PRECISIONS)
    kernels: str = choice("auto", KERNELS)  # of LeNet, cnn5 and cnn_bn on a CPU
    graph: str = choice("auto", GRAPHS)  # whether a GPU replays a recorded step; the same bits


@dataclass
class Scalars:
    """Every setting outside the config groups."""

    rounds: int = count(20)
    seed: int = count(0, at_least=0, at_most=LARGEST_SEED)
    cohort: int | None = count(None)
    client: ClientSettings = field(default_factory=ClientSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    stop: StopSettings = field(default_factory=StopSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    diagnostics: DiagnosticsSettings = field(default_factory=DiagnosticsSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    # What a sweeper optimises; None = the best (validation) accuracy.
    objective: str | None = choice(None, OBJECTIVES)
    results: str = "results"
    scale: str | None = None
    force: bool = False


@dataclass
class Config:
    """A checked configuration: the scalars, an object for each group, and the run's plain tree."""

    scalars: Scalars
    data: Any
    model: Any
    partition: Any
    attack: Any
    logger: Any
    algo: dict[str, Any]
    names: dict[str, str]  # group -> chosen file
    tree: dict[str, Any]  # plain values, by which the run is identified
    # The same for files, W&B and messages: values of the environment are ${oc.env:NAME}.
    shown: dict[str, Any]
    own_code: dict[str, str] = field(default_factory=dict)  # own module -> hash of its source
    folder: Path | None = None  # the run's, once its parts are built


def check_combinations(scalars: Scalars) -> None:
    """Refuse settings that are each within their range but do not fit together."""
    client = scalars.client
    require(scalars.results != "", "results", scalars.results, "must be the path of a folder")
    device, rule = scalars.runtime.device, "must be auto, cpu or cuda; no other device is supported"
    require(device in DEVICES, "runtime.device", device, rule)
    _check_batch_size(client.batch_size)
    _check_last_rate(client, scalars.rounds)
    adam_fits = client.optimizer != "adam" or client.momentum == 0
    require(adam_fits, "client.momentum", client.momentum, "must be 0: adam has its own")
    nesterov_fits = not client.nesterov or client.momentum > 0
    rule = "must be false unless client.momentum is above 0"
    require(nesterov_fits, "client.nesterov", client.nesterov, rule)


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

"""What the engine and a method say to each other.

A method is told about the experiment once (`BindContext`), about every round (`RoundPlan`) and
about every client's work (`LocalRun`); it answers with a `ClientResult`, and may ask about clients
between rounds (`Clients`). It never sees the engine itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedbench.core.flat_model import FlatModel, Selection
from fedbench.parallel.group import Group

State = dict[str, Tensor]


@dataclass(frozen=True)
class BindContext:
    """What a method may know about the experiment when it is bound to it."""

    model: FlatModel
    clients: int
    classes: int
    rounds: int | None  # as in `RoundPlan`
    seed: int
    momentum: float = 0.0  # of the clients' optimizer
    weight_decay: float = 0.0  # of the same
    batch_size: int | str | None = None  # of the clients' steps
    # Set by `Algorithm.bind`: the parameters that leave the client, and the slot's value.
    shared: Selection = None  # type: ignore[assignment]
    aggregate: Any = None


@dataclass(frozen=True)
class RoundPlan:
    """One round before it begins, the same on every rank. Lists follow the order of the cohort."""

    index: int  # counted from 0
    cohort: list[int]
    samples: list[int]  # n_k
    weights: list[float]  # p_k over the cohort (or uniform): they sum to one
    population_weights: list[float]  # of the cohort's members when all clients' sum to one
    lr: float
    steps: list[int]  # tau_k, local mini-batch updates
    norms: list[float]  # ||a_k||_1, what the local solver makes of unit gradients
    # tau_k, in which a scaled step is the part of one that it is.
    lengths: list[float] = field(default_factory=list)
    momentum: float = 0.0
    proximal: float = 0.0
    # Of the whole run, for methods that declare `uses_rounds`; None for others.
    rounds: int | None = None
    server_lr: float = 1.0
    # The cohort, and the clients that were then left out of it.
    invited: list[int] = field(default_factory=list)
    # For the record: a number for each of `invited`, by the name of its column.
    notes: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class StepPlan:
    """How many local steps every invited client takes, and numbers about it for the record."""

    steps: list[int]
    notes: dict[str, list[float]] = field(default_factory=dict)


class Clients(Protocol):
    """What a method may ask about clients between rounds. All ranks ask the same questions."""

    sizes: list[int]  # training examples of every client
    owners: list[int]  # the rank that keeps a client's memory
    group: Group

    @property
    def weights(self) -> Tensor:
        """Of the server's model."""

    def batch_size(self, client: int) -> int:
        """Examples in a full training batch of this client."""

    def cohort_weights(self, cohort: list[int]) -> list[float]:
        """p_k of these clients; they sum to one."""

    def gradient_moments(self, client: int, examples: int, index: int) -> tuple[Tensor, Tensor]:
        """Mean and variance of single examples' gradients at what the client would receive.

        The examples are drawn anew for every round `index`. Weight decay and the corrections of
        other modifiers are part of the mean.
        """

    def full_gradient(self) -> Tensor:
        """Of all clients' training loss, weighted by p_k, at the server's model."""

    def iid_gradient_norms(
        self, where: Selection, layers: list[slice], rounds: int
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the norms of some layers' mini-batch gradients.

        Over all local steps of FedAvg's first rounds on the same data, shared out at random to as
        many clients, with this experiment's settings. Nothing of that training is kept.
        """

    def server_state(self, modifier: str) -> State:
        """What the server keeps for a modifier."""

    def client_state(self, client: int, modifier: str) -> State:
        """What a client of this rank keeps for a modifier; empty if it has never taken part.

        With a GPU, this is in the machine's own memory.
        """


class OwnExamples(Protocol):
    """A client's own training examples, for work outside the local steps."""

    index: Tensor  # their places in the training set

    @property
    def labels(self) -> Tensor: ...

    @property
    def steps_an_epoch(self) -> int: ...

    def gradient(self, only: Sequence[nn.Parameter] | None = None) -> Tensor:
        """The mean gradient over all of them at the model as it is, in evaluation mode.

        With `only`, the entries of the other parameters are zero.
        """

    def loss_of(self, number: int) -> Tensor:
        """The loss of one of them by the model as it is."""


@dataclass
class Batch:
    """One mini-batch on its way through the network, for the hooks that work on the loss."""

    x: Tensor
    y: Tensor
    logits: Tensor
    each: Tensor  # the loss of every example
    # The input of the head, for methods that need it.
    embedding: Tensor = None  # type: ignore[assignment]


@dataclass
class LocalRun:
    """One client's work in one round, as the hooks see it."""

    client: int
    samples: int
    steps: int
    norm: float
    lr: float
    model: FlatModel  # model.w is the iterate, model.g the gradient of the current step
    before: Tensor  # the parameters that the client started from
    own: OwnExamples
    round: int = 0
    shared_steps: int = 0  # of the steps, those in which the parameters move that leave the client
    shared_frozen: bool = False  # whether they stay as they are in the current step
    step: int = 0
    share: float = 1.0  # by which the current step's gradient is multiplied: a scaled last batch
    batch: Batch = None  # type: ignore[assignment]  # only inside `loss` and `probe`
    notes: dict[str, float] = field(default_factory=dict)  # the client's own of the round's notes
    # Of the steps so far: the data loss before each, and the examples of its batch.
    losses: list[Tensor] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    # After minus before: of the local steps themselves, and what is sent, as `update` leaves it.
    raw_update: Tensor = None  # type: ignore[assignment]
    update: Tensor = None  # type: ignore[assignment]

    @property
    def epoch(self) -> int:
        """How often the client has been through its examples in this round, counted from 0."""
        return self.step // self.own.steps_an_epoch


@dataclass
class Memory:
    """What one modifier may read about itself while a client works."""

    server: State
    client: State
    scratch: State = field(default_factory=dict)  # lives for this client and this round only


@dataclass
class ClientResult:
    """What a modifier leaves behind when a client is done."""

    client: State = field(default_factory=dict)  # the client's new memory
    upload: Tensor | None = None  # summed over the cohort with `upload_weights`
    # For the record: numbers under the names of `records`, step numbers under `records_steps`.
    numbers: list[Tensor | float] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)


def label_counts(labels: Tensor, classes: int) -> Tensor:
    """How many of the labels are of each class. `bincount` would read the largest label first."""
    counts = torch.zeros(classes, dtype=torch.int64, device=labels.device)
    return counts.scatter_add_(0, labels, torch.ones_like(labels))


def zeros_like(selection: Selection, model: FlatModel) -> Tensor:
    """A vector of zeros for the parameters of a selection."""
    return torch.zeros(selection.size, dtype=model.w.dtype, device=model.device)

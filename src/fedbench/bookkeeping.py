"""What a round leaves for the books: losses, communication, work, and whether training has broken down."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.algorithms.base import Round
from fedbench.algorithms.build import Algorithm
from fedbench.evaluation import Score
from fedbench.flat import FlatModel, Layer

if TYPE_CHECKING:
    from fedbench.client import Trained

DIVERGED_FACTOR = 1000.0  # a training loss this many times that of guessing at random has exploded
FIXED = 3  # numbers that every client leaves: training loss, drift, blamed layer


@dataclass(frozen=True)
class Divergence:
    """How training broke down, and where, as far as that can be said."""

    cause: str
    client: int | None = None
    layer: str | None = None


@dataclass
class Record:
    """One round, for the metrics."""

    round: int  # counted from 1
    numbers: dict[str, float]
    clients: list[dict[str, object]] = field(default_factory=list)  # a row for each client that was asked
    score: Score | None = None  # None when this round is not evaluated
    diverged: Divergence | None = None  # when training broke down


@dataclass
class Totals:
    """Sums over the run so far, as every row of the metrics shows them."""

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0  # per-example gradient evaluations
    seconds: float = 0.0

    def count(self, facts: Round, algorithm: Algorithm, examples: int, bytes_a_float: int) -> None:
        """Add a round. Communication is that of the trainable parameters (buffers are not counted) and extras."""
        down = algorithm.shared.size * len(facts.asked)
        up = (algorithm.shared.size + algorithm.aggregate.extra_scalars) * len(facts.cohort)
        for piece in algorithm.modifiers.values():
            more_down, more_up = piece.traffic(facts)
            down, up = down + more_down, up + more_up
            examples += piece.extra_gradients(facts)
        self.bytes_down += down * bytes_a_float
        self.bytes_up += up * bytes_a_float
        self.gradients += examples


class Ledger:
    """The numbers that a client's work leaves: how they stand in the row that ranks exchange, and what they are called.

    Side by side: training loss, drift, the layer that is to blame when the loss is out of bounds (else -1), batch
    counters, what modifiers record, gradient norms, and chosen steps (their numbers, then -1 up to the longest client).
    """

    def __init__(self, model: FlatModel, algorithm: Algorithm, gradient_norms: bool, classes: int):
        self.model, self.algorithm, self.limit = model, algorithm, loss_limit(classes)
        self.names = [column for piece in algorithm.modifiers.values() for column in piece.records]
        self.steps_names = [piece.records_steps for piece in algorithm.modifiers.values() if piece.records_steps]
        self.norm_names = [f"gradient_norm/{layer.name}" for layer in model.layers] if gradient_norms else []
        self.first = FIXED + len(model.counters)

    def width(self, facts: Round) -> int:
        fixed = self.first + len(self.names) + len(self.norm_names)
        return fixed + len(self.steps_names) * max(facts.steps)

    def write(self, row: Tensor, trained: Trained) -> None:
        """The drift is how far the client's model is from what it received, as SCAFFOLD's authors use the word."""
        finished = trained.finished.values()
        loss = float(trained.loss)
        blamed = -1 if loss <= self.limit else blamed_layer(self.model, trained.local.path)
        numbers = [loss, trained.local.path.norm(), blamed, *self.model.counters.tolist()]
        numbers += [number for left in finished for number in left.numbers]
        if trained.gradient_norms is not None:
            numbers += trained.gradient_norms.tolist()
        row.fill_(-1.0)
        row[: len(numbers)] = torch.tensor([float(number) for number in numbers], dtype=torch.float64)
        rest = row[len(numbers) :].tensor_split(max(len(self.steps_names), 1))
        for chosen, steps in zip([left.chosen for left in finished if left.chosen], rest, strict=False):
            steps[: len(chosen)] = torch.tensor(chosen)

    def losses(self, numbers: Tensor) -> Tensor:
        return numbers[:, 0]

    def counters(self, numbers: Tensor) -> Tensor:
        return numbers[:, FIXED : self.first]

    def means(self, facts: Round, numbers: Tensor) -> dict[str, float]:
        """What a round's row of the metrics shows: the weighted mean of the drift, plain means of the rest."""
        means = {"client_drift": float(torch.tensor(facts.weights, dtype=torch.float64) @ numbers[:, 1])}
        recorded = numbers[:, self.first : self.first + len(self.names)].mean(dim=0).tolist()
        return means | dict(zip(self.names, recorded, strict=True))

    def rows(self, facts: Round, numbers: Tensor, sizes: list[int]) -> list[dict[str, object]]:
        """A row for every client that was asked; one that was left out has no steps and no numbers of training."""
        rows, columns = [], ["train_loss", "drift", *self.names, *self.norm_names]
        places = {client: place for place, client in enumerate(facts.cohort)}
        for asked, client in enumerate(facts.asked):
            row: dict[str, object] = {"round": facts.index + 1, "client": client, "samples": sizes[client]}
            place = places.get(client)
            row["steps"] = 0 if place is None else facts.steps[place]
            row["weight"] = 0.0 if place is None else facts.weights[place]
            values = [] if place is None else [*numbers[place, :2].tolist(), *numbers[place, self.first :].tolist()]
            row |= dict(zip(columns, values or [""] * len(columns), strict=False))
            row |= {name: note[asked] for name, note in facts.notes.items()}
            chosen = torch.tensor(values[len(columns) :]).tensor_split(max(len(self.steps_names), 1))
            for name, steps in zip(self.steps_names, chosen, strict=False):
                row[name] = " ".join(str(int(step)) for step in steps if step >= 0)
            rows.append(row)
        return rows


def loss_limit(classes: int) -> float:
    return DIVERGED_FACTOR * math.log(max(classes, 2))


def blamed_layer(model: FlatModel, vector: Tensor) -> int:
    """The number of the first layer with a non-finite value, else of the one with the largest."""
    sizes = [float(vector[layer.start : layer.stop].abs().max()) for layer in model.layers]
    broken = [place for place, size in enumerate(sizes) if not math.isfinite(size)]
    return broken[0] if broken else sizes.index(max(sizes))


def why_test_diverged(
    loss: float, record: Record, model: FlatModel, weights: Tensor | None, limit: float
) -> Divergence | None:
    """A step can break a model whose training loss, taken before it, still looked well.

    The client is one whose own step was not finite; the layer is that of the global `weights`, where there are any.
    """
    if loss <= limit:  # never true of what is not a number
        return None
    drifts = {row["client"]: row["drift"] for row in record.clients if row["drift"] != ""}
    client = next((client for client, drift in drifts.items() if not math.isfinite(drift)), None)
    layer = None if weights is None else model.layers[blamed_layer(model, weights)].name
    return Divergence(f"test loss {loss:.4g}", client, layer)


def why_diverged(
    facts: Round, numbers: Tensor, model: FlatModel, w: Tensor, b: Tensor, limit: float
) -> Divergence | None:
    """The cause with client and layer, or nothing when all is well; who is to blame is looked for only when not."""
    losses, drifts = numbers[:, 0], numbers[:, 1]
    bad = (~torch.isfinite(losses)) | (losses > limit)
    if bad.any():
        place = int(bad.nonzero()[0])
        client, blamed = facts.cohort[place], int(numbers[place, 2])
        return Divergence(f"training loss {losses[place]:.4g} on client {client}", client, model.layers[blamed].name)
    if torch.isfinite(w).all() and torch.isfinite(b).all():
        return None
    sent = (~torch.isfinite(drifts)).nonzero()  # its loss was taken before the step that broke it
    client = facts.cohort[int(sent[0])] if len(sent) else None
    if torch.isfinite(w).all():
        return Divergence("non-finite statistics after the server step", client, _first_broken(model.buffer_layers, b))
    return Divergence("non-finite weights after the server step", client, _first_broken(model.layers, w))


def _first_broken(layers: list[Layer], vector: Tensor) -> str:
    place = int((~torch.isfinite(vector)).nonzero()[0])
    return next(layer.name for layer in layers if layer.start <= place < layer.stop)

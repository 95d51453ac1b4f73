"""What a round leaves for the record: losses, communication, work, a row a client."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import RoundPlan
from fedbench.core.flat_model import FlatModel
from fedbench.training.client import Trained
from fedbench.training.divergence import Divergence, broken_layer, loss_limit
from fedbench.training.evaluation import Score

FIXED = 3  # numbers that every client leaves: training loss, drift, blamed layer


@dataclass
class Record:
    """One round, for the metrics."""

    round: int  # counted from 1
    numbers: dict[str, float]
    # A row for each client that was invited.
    clients: list[dict[str, object]] = field(default_factory=list)
    score: Score | None = None  # None when this round is not evaluated
    diverged: Divergence | None = None  # when training broke down


@dataclass
class Totals:
    """Sums over the run so far, as every row of the metrics shows them."""

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0  # per-example gradient evaluations
    seconds: float = 0.0

    def count(
        self, plan: RoundPlan, algorithm: Algorithm, examples: int, bytes_a_float: int
    ) -> None:
        """Add a round. Communication: trainable parameters (no buffers), and methods' extras."""
        down = algorithm.shared.size * len(plan.invited)
        up = (algorithm.shared.size + algorithm.aggregate.extra_scalars) * len(plan.cohort)
        for modifier in algorithm.modifiers.values():
            more_down, more_up = modifier.traffic(plan)
            down, up = down + more_down, up + more_up
            examples += modifier.extra_gradients(plan)
        self.bytes_down += down * bytes_a_float
        self.bytes_up += up * bytes_a_float
        self.gradients += examples


class ClientNumbers:
    """The numbers that a client's work leaves: the row that ranks exchange, and its columns.

    Side by side: training loss, drift, the layer that is to blame should the loss be out of bounds
    (else -1), batch counters, what modifiers record, gradient norms, and chosen steps (their
    numbers, then -1 up to the longest client).
    """

    def __init__(self, model: FlatModel, algorithm: Algorithm, gradient_norms: bool, classes: int):
        self.model = model
        self.suspicious = loss_limit(classes)
        modifiers = list(algorithm.modifiers.values())
        self.names = [column for modifier in modifiers for column in modifier.records]
        self.steps_names = [one.records_steps for one in modifiers if one.records_steps]
        layers = model.layers if gradient_norms else []
        self.norm_names = [f"gradient_norm/{layer.name}" for layer in layers]
        self.first = FIXED + len(model.counters)

    def width(self, plan: RoundPlan) -> int:
        fixed = self.first + len(self.names) + len(self.norm_names)
        return fixed + len(self.steps_names) * max(plan.steps)

    def write(self, row: Tensor, trained: Trained) -> None:
        """The drift is how far the client's model is from what it received (SCAFFOLD's word)."""
        results = list(trained.results.values())
        loss, update = float(trained.loss), trained.local.raw_update
        blamed = -1
        if not loss <= self.suspicious:  # also when it is not a number
            blamed = broken_layer(self.model.layers, update)
        numbers = [loss, update.norm(), blamed, *self.model.counters.tolist()]
        numbers += [number for result in results for number in result.numbers]
        if trained.gradient_norms is not None:
            numbers += trained.gradient_norms.tolist()
        row.fill_(-1.0)
        values = [float(number) for number in numbers]
        row[: len(values)] = torch.tensor(values, dtype=torch.float64)
        rest = row[len(values) :].tensor_split(max(len(self.steps_names), 1))
        chosen = [result.chosen for result in results if result.chosen]
        for own, steps in zip(chosen, rest, strict=False):
            steps[: len(own)] = torch.tensor(own)

    def losses(self, numbers: Tensor) -> Tensor:
        return numbers[:, 0]

    def counters(self, numbers: Tensor) -> Tensor:
        return numbers[:, FIXED : self.first]

    def means(self, plan: RoundPlan, numbers: Tensor) -> dict[str, float]:
        """For a round's row of the metrics: the drift's weighted mean, plain means of the rest."""
        weights = torch.tensor(plan.weights, dtype=torch.float64)
        recorded = numbers[:, self.first : self.first + len(self.names)].mean(dim=0).tolist()
        means = {"client_drift": float(weights @ numbers[:, 1])}
        return means | dict(zip(self.names, recorded, strict=True))

    def rows(self, plan: RoundPlan, numbers: Tensor, sizes: list[int]) -> list[dict[str, object]]:
        """A row for every client that was invited; without numbers if it was then left out."""
        columns = ["train_loss", "drift", *self.names, *self.norm_names]
        positions = {client: position for position, client in enumerate(plan.cohort)}
        rows = []
        for invited, client in enumerate(plan.invited):
            position = positions.get(client)
            row: dict[str, object] = {
                "round": plan.index + 1,
                "client": client,
                "samples": sizes[client],
                "steps": 0 if position is None else plan.steps[position],
                "weight": 0.0 if position is None else plan.weights[position],
            }
            values: list[float] = []
            if position is not None:
                own = numbers[position]
                values = [*own[:2].tolist(), *own[self.first :].tolist()]
            filled: list[object] = [*values] or [""] * len(columns)
            row |= dict(zip(columns, filled, strict=False))
            row |= {name: note[invited] for name, note in plan.notes.items()}
            rest = torch.tensor(values[len(columns) :])
            chosen = rest.tensor_split(max(len(self.steps_names), 1))
            for name, steps in zip(self.steps_names, chosen, strict=False):
                row[name] = " ".join(str(int(step)) for step in steps if step >= 0)
            rows.append(row)
        return rows

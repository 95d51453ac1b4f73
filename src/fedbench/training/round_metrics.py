"""What a round leaves for the books: losses, communication, work, and whether training has broken
down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import Round
from fedbench.core.flat_model import FlatModel
from fedbench.training.divergence import Divergence, broken_layer, loss_limit
from fedbench.training.evaluation import Score

if TYPE_CHECKING:
    from fedbench.training.client import Trained

FIXED = 3  # numbers that every client leaves: training loss, drift, blamed layer


@dataclass
class Record:
    """One round, for the metrics."""

    round: int  # counted from 1
    numbers: dict[str, float]
    clients: list[dict[str, object]] = field(
        default_factory=list
    )  # a row for each client that was asked
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
        """Add a round. Communication is that of the trainable parameters (buffers are not counted)
        and extras.
        """
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
    """The numbers that a client's work leaves: how they stand in the row that ranks exchange, and
    what they are called.

    Side by side: training loss, drift, the layer that is to blame should the loss be out of bounds
    (else -1), batch counters, what modifiers record, gradient norms, and chosen steps (their
    numbers, then -1 up to the longest client).
    """

    def __init__(self, model: FlatModel, algorithm: Algorithm, gradient_norms: bool, classes: int):
        self.model, self.algorithm, self.suspicious = model, algorithm, loss_limit(classes)
        self.names = [column for piece in algorithm.modifiers.values() for column in piece.records]
        self.steps_names = [
            piece.records_steps for piece in algorithm.modifiers.values() if piece.records_steps
        ]
        self.norm_names = (
            [f"gradient_norm/{layer.name}" for layer in model.layers] if gradient_norms else []
        )
        self.first = FIXED + len(model.counters)

    def width(self, facts: Round) -> int:
        fixed = self.first + len(self.names) + len(self.norm_names)
        return fixed + len(self.steps_names) * max(facts.steps)

    def write(self, row: Tensor, trained: Trained) -> None:
        """The drift is how far the client's model is from what it received, as SCAFFOLD's authors
        use the word.
        """
        finished = trained.finished.values()
        loss = float(trained.loss)
        blamed = (
            -1 if loss <= self.suspicious else broken_layer(self.model.layers, trained.local.path)
        )
        numbers = [loss, trained.local.path.norm(), blamed, *self.model.counters.tolist()]
        numbers += [number for left in finished for number in left.numbers]
        if trained.gradient_norms is not None:
            numbers += trained.gradient_norms.tolist()
        row.fill_(-1.0)
        row[: len(numbers)] = torch.tensor(
            [float(number) for number in numbers], dtype=torch.float64
        )
        rest = row[len(numbers) :].tensor_split(max(len(self.steps_names), 1))
        for chosen, steps in zip(
            [left.chosen for left in finished if left.chosen], rest, strict=False
        ):
            steps[: len(chosen)] = torch.tensor(chosen)

    def losses(self, numbers: Tensor) -> Tensor:
        return numbers[:, 0]

    def counters(self, numbers: Tensor) -> Tensor:
        return numbers[:, FIXED : self.first]

    def means(self, facts: Round, numbers: Tensor) -> dict[str, float]:
        """What a round's row of the metrics shows: the weighted mean of the drift, plain means of
        the rest.
        """
        means = {
            "client_drift": float(torch.tensor(facts.weights, dtype=torch.float64) @ numbers[:, 1])
        }
        recorded = numbers[:, self.first : self.first + len(self.names)].mean(dim=0).tolist()
        return means | dict(zip(self.names, recorded, strict=True))

    def rows(self, facts: Round, numbers: Tensor, sizes: list[int]) -> list[dict[str, object]]:
        """A row for every client that was asked; one that was left out has no steps and no numbers
        of training.
        """
        rows, columns = [], ["train_loss", "drift", *self.names, *self.norm_names]
        places = {client: place for place, client in enumerate(facts.cohort)}
        for asked, client in enumerate(facts.asked):
            row: dict[str, object] = {
                "round": facts.index + 1,
                "client": client,
                "samples": sizes[client],
            }
            place = places.get(client)
            row["steps"] = 0 if place is None else facts.steps[place]
            row["weight"] = 0.0 if place is None else facts.weights[place]
            values = (
                []
                if place is None
                else [*numbers[place, :2].tolist(), *numbers[place, self.first :].tolist()]
            )
            row |= dict(zip(columns, values or [""] * len(columns), strict=False))
            row |= {name: note[asked] for name, note in facts.notes.items()}
            chosen = torch.tensor(values[len(columns) :]).tensor_split(
                max(len(self.steps_names), 1)
            )
            for name, steps in zip(self.steps_names, chosen, strict=False):
                row[name] = " ".join(str(int(step)) for step in steps if step >= 0)
            rows.append(row)
        return rows

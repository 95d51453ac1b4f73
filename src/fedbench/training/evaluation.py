"""Scoring on the test set or the validation set, shared by the ranks, with the same bits for any
number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.core.errors import require
from fedbench.core.flat_model import FlatModel
from fedbench.core.precision import autocast
from fedbench.core.transfer import upload
from fedbench.data.batches import Examples
from fedbench.parallel.exchange import gather
from fedbench.parallel.group import Group
from fedbench.training.client import Loss


@dataclass
class Score:
    """What an evaluation found."""

    accuracy: float
    loss: float
    # Classes on the test set: [examples], or [clients, examples] for personal models.
    predictions: Tensor
    spread: float | None = None  # standard deviation over clients, for personal models
    losses: dict[int, float] = field(default_factory=dict)  # of every client, for personal models
    # More columns: other models, other test data.
    others: dict[str, float] = field(default_factory=dict)
    # Rows about clients' own test data.
    clients: list[dict[str, object]] = field(default_factory=list)
    validation: Score | None = None  # the same models on the validation set, if there is one


class Evaluator:
    """Scores the model as it is, on the test set or on a part of other examples."""

    def __init__(
        self,
        model: FlatModel,
        test: Examples,
        batch_size: int,
        group: Group,
        classes: int,
        loss: Loss,
        precision: str = "float32",
    ):
        self.model = model
        self.test = test
        self.group = group
        self.classes = classes
        self.loss = loss
        self.precision = precision
        self.batch_size = batch_size
        starts = range(0, len(test), batch_size)
        self.batches = [slice(start, min(start + batch_size, len(test))) for start in starts]
        # The narrowest type that the process group can send.
        self.kind = torch.uint8 if classes <= 256 else torch.int32

    @cached_property
    def labels(self) -> Tensor:
        return self.test.y.to("cpu")

    def score(self) -> Score:
        """Batches are fixed and dealt out in turn; sums run in their order."""
        owners = [number % self.group.size for number in range(len(self.batches))]
        mine = self.batches[self.group.rank :: self.group.size]
        width = self.batches[0].stop
        device = self.model.device
        predictions = torch.zeros(len(mine), width, dtype=self.kind, device=device)
        losses = torch.zeros(len(mine), 1, dtype=torch.float64, device=device)
        for row, batch in enumerate(mine):
            predicted, loss = self._forward(batch)
            predictions[row, : len(predicted)] = predicted
            losses[row] = loss
        predictions, losses = predictions.to("cpu"), losses.to("cpu")
        predicted = gather(self.group, predictions, owners).flatten()[: len(self.test)]
        mean_loss = float(gather(self.group, losses, owners).sum()) / len(self.test)
        return Score(self._accuracy(predicted), mean_loss, predicted)

    def personal(
        self,
        receive: Callable[[int], object],
        owners: list[int],
        class_counts: list[Tensor],
        scoring: str,
    ) -> Score:
        """Every client's own model, averaged over clients.

        `mean_acc`: on the whole test set. `per_client`: on test data with the client's own mixture
        of classes, that is, the accuracies of the single classes weighted by their share in the
        client's training data.
        """
        clients = [k for k, count in enumerate(class_counts) if count.sum() > 0]
        client_owners = [owners[k] for k in clients]
        mine = [k for k in clients if owners[k] == self.group.rank]
        device = self.model.device
        predictions = torch.zeros(len(mine), len(self.test), dtype=self.kind, device=device)
        losses = torch.zeros(len(mine), dtype=torch.float64, device=device)
        weights = [self._example_weights(class_counts[client], scoring) for client in mine]
        for row, client in enumerate(mine):
            receive(client)
            own_weights = upload(weights[row], device)
            for batch in self.batches:
                predicted, loss = self._forward(batch, own_weights[batch])
                predictions[row, batch] = predicted
                losses[row] += loss
        predictions = predictions.to("cpu")
        results = torch.zeros(len(mine), 2, dtype=torch.float64)
        results[:, 1] = losses.to("cpu")
        for row in range(len(mine)):
            hits = (predictions[row] == self.labels).to(torch.float64)
            results[row, 0] = hits @ weights[row]
        results = gather(self.group, results, client_owners)
        # Without those that have no class of this set.
        scored = (~results[:, 0].isnan()).nonzero().flatten().tolist()
        results = results[scored]
        words = "must be mean_acc: no client has a class of the test set"
        require(len(results) > 0, "algo.scoring", scoring, words)
        spread = float(results[:, 0].std(correction=0))
        predictions = gather(self.group, predictions, client_owners)
        client_losses = dict(
            zip([clients[place] for place in scored], results[:, 1].tolist(), strict=True)
        )
        accuracy, mean_loss = float(results[:, 0].mean()), float(results[:, 1].mean())
        return Score(accuracy, mean_loss, predictions, spread, client_losses)

    def softmax(self) -> Tensor:
        """Probabilities of all classes for every test example, by the model as it stands."""
        owners = [number % self.group.size for number in range(len(self.batches))]
        mine = self.batches[self.group.rank :: self.group.size]
        rows = torch.zeros(len(mine), self.batches[0].stop * self.classes, device=self.model.device)
        self.model.module.eval()
        with torch.inference_mode():
            for row, batch in zip(rows, mine, strict=True):
                outputs = functional.softmax(
                    self._outputs(self.test.batch(batch)[0]).float(), dim=1
                )
                row[: outputs.numel()] = outputs.flatten()
        return gather(self.group, rows.to("cpu"), owners).view(-1, self.classes)[: len(self.test)]

    def score_part(self, examples: Examples, index: Tensor) -> tuple[float, float]:
        """Accuracy and mean loss of the model as it stands on some of these examples, on this rank
        alone.
        """
        self.model.module.eval()
        found = torch.zeros(2, dtype=torch.float64, device=self.model.device)  # hits, loss
        with torch.inference_mode():
            for batch in index.split(self.batch_size):
                x, y = examples.batch(batch)
                outputs = self._outputs(x)
                found[0] += (outputs.argmax(dim=1) == y).sum()
                found[1] += self.loss(outputs, y, reduction="none").double().sum()
        hits, loss = found.to("cpu").tolist()
        return hits / len(index), loss / len(index)

    def _outputs(self, x: Tensor) -> Tensor:
        if self.precision != "bf16":
            return self.model.module(x)
        with autocast(self.model.device, self.precision):
            return self.model.module(x).float()

    def _example_weights(self, counts: Tensor, scoring: str) -> Tensor:
        """How much each test example counts for one client; the weights sum to one."""
        if scoring == "mean_acc":
            return torch.full((len(self.test),), 1.0 / len(self.test), dtype=torch.float64)
        if scoring != "per_client":
            raise ValueError(f"unknown scoring {scoring}")
        available = torch.bincount(self.labels, minlength=self.classes).to(torch.float64)
        share = torch.where(available > 0, counts.to("cpu", torch.float64), 0.0)
        return (share / share.sum() / available.clamp(min=1.0))[self.labels]

    def _forward(self, batch: slice, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Predicted classes of one batch and its summed (or weighted) loss, on the device."""
        self.model.module.eval()
        with torch.inference_mode():
            x, y = self.test.batch(batch)
            outputs = self._outputs(x)
            each = self.loss(outputs, y, reduction="none").double()
            loss = each.sum() if weights is None else each @ weights
            predicted = outputs.argmax(dim=1)
        return predicted.to(self.kind), loss

    def _accuracy(self, predicted: Tensor) -> float:
        return int((predicted == self.labels).sum()) / len(self.labels)

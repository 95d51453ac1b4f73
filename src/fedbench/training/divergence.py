"""Whether training has broken down, how, and where: the client and the layer, where that shows."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.algorithms.context import LocalRun, RoundPlan
from fedbench.core.flat_model import FlatModel, Layer
from fedbench.data.batches import Examples
from fedbench.parallel.exchange import gather
from fedbench.training.evaluation import Evaluator, Score
from fedbench.training.state import ExperimentState


@dataclass(frozen=True)
class Divergence:
    """How training broke down, and where, as far as that can be said."""

    cause: str
    client: int | None = None
    layer: str | None = None
    step: int | None = None  # of the client's local steps, counted from 1
    batch: int | None = None  # examples of that step


def loss_limit(classes: int, factor: float | None) -> float:
    """A loss above it is suspicious; only then is the initial model asked, too.

    `factor` is how many times the loss of guessing it is; None: anything finite is well.
    """
    return sys.float_info.max if factor is None else factor * math.log(max(classes, 2))


class DivergenceCheck:
    """Looks at every round. All ranks ask the same questions and get the same answers.

    A loss may be `factor` times that of guessing, or of the initial model on the same data if that
    is more. The initial model is asked only about a loss above the first of the two, so an ordinary
    run never pays for it. Its parameters come from the seed: after a resume the limit is the same.
    """

    def __init__(
        self,
        model: FlatModel,
        state: ExperimentState,
        evaluator: Evaluator,
        train: Examples,
        shards: list[Tensor],
        classes: int,
        factor: float | None,
    ):
        self.factor = factor
        self.model = model
        self.state = state
        self.evaluator = evaluator
        self.train = train
        self.shards = shards
        self.guessing = loss_limit(classes, factor)
        self.initial = [vector.clone() for vector in (model.w, model.b, model.counters)]
        self.limits: dict[int | None, float] = {}  # by client; None: on the test set

    def after_training(self, plan: RoundPlan, numbers: Tensor) -> Divergence | None:
        """From the first columns of the cohort's numbers, and the server's model."""
        for client, row in zip(plan.cohort, numbers[:, :6].tolist(), strict=True):
            loss, blamed, step, batch = row[0], *map(int, row[3:])
            if self.exceeded(loss, client):
                cause = f"training loss {loss:.4g} on client {client}"
                layer = self.model.layers[blamed].name
                return Divergence(cause, client, layer, *_known(step, batch))
        w, b = self.state.w, self.state.b
        weights_broken = not torch.isfinite(w).all()
        if not weights_broken and torch.isfinite(b).all():
            return None
        # The loss of a client was taken before the step that broke its model.
        sent_broken = (~torch.isfinite(numbers[:, 1])).nonzero()
        sender, where = None, []
        if len(sent_broken):
            position = int(sent_broken[0])
            sender, where = plan.cohort[position], _known(*numbers[position, 4:6].int().tolist())
        if weights_broken:
            what, layers, vector = "weights", self.model.layers, w
        else:
            what, layers, vector = "statistics", self.model.buffer_layers, b
        cause = f"non-finite {what} after the server step"
        return Divergence(cause, sender, layers[broken_layer(layers, vector)].name, *where)

    def after_evaluation(
        self, score: Score, rows: list[dict[str, Any]], load_global: Callable[[], None]
    ) -> Divergence | None:
        """A step can break a model whose training loss, taken before it, still looked well.

        Where clients have models of their own, the client is the one whose model is worst, and the
        layer is that model's; else the client is one whose step was not finite, and the layer is
        the global model's.
        """
        if not self.exceeded(score.loss):
            return None
        cause = f"test loss {score.loss:.4g}"
        client: int | None = None
        if score.losses:
            client = worst(score.losses)
            cause += f", {score.losses[client]:.4g} of client {client}'s own model"
            layer = self._layer_of_client(client)
        else:
            drifts = {row["client"]: row["drift"] for row in rows if row["drift"] != ""}
            broken = [number for number, drift in drifts.items() if not math.isfinite(drift)]
            client = broken[0] if broken else None
            load_global()
            layer = _layer_of(self.model)
        return Divergence(cause, client, self.model.layers[layer].name)

    def exceeded(self, loss: float, client: int | None = None) -> bool:
        """Of a client's training loss, or of the loss on the test set."""
        if loss <= self.guessing:  # never true of what is not a number
            return False
        if not math.isfinite(loss):
            return True
        assert self.factor is not None  # else what is finite is below the limit
        if client not in self.limits:
            start = self.factor * self.initial_loss(client)
            self.limits[client] = max(self.guessing, start if math.isfinite(start) else 0.0)
        return loss > self.limits[client]

    def initial_loss(self, client: int | None) -> float:
        """Before the first step, on a client's training data or on the test set."""
        model, group = self.model, self.evaluator.group
        for vector, start in zip((model.w, model.b, model.counters), self.initial, strict=True):
            vector.copy_(start)
        if client is None:
            return self.evaluator.score().loss
        rows = []
        if group.leader:
            rows = [[self.evaluator.score_part(self.train, self.shards[client])[1]]]
        return float(gather(group, torch.tensor(rows, dtype=torch.float64).view(-1, 1), [0]))

    def _layer_of_client(self, client: int) -> int:
        """The rank that keeps the client's model looks at it; the others hear of it."""
        group, owner = self.state.group, self.state.owners[client]
        rows = torch.zeros(0, 1, dtype=torch.float64)
        if owner == group.rank:
            self.state.receive(client)
            rows = torch.tensor([[_layer_of(self.model)]], dtype=torch.float64)
        return int(gather(group, rows, [owner]))


def worst(losses: dict[int, float]) -> int:
    """The first client whose loss is not finite, else the one with the largest."""
    broken = [client for client, loss in losses.items() if not math.isfinite(loss)]
    return broken[0] if broken else max(losses, key=losses.__getitem__)


def broken_layer(layers: list[Layer], vector: Tensor) -> int:
    """The number of the first layer with a non-finite value, else of the one with the largest."""
    values = [vector[layer.start : layer.stop].abs() for layer in layers]
    # Not every layer has statistics.
    sizes = [float(own.max()) if len(own) else 0.0 for own in values]
    broken = [number for number, size in enumerate(sizes) if not math.isfinite(size)]
    return broken[0] if broken else sizes.index(max(sizes))


def _known(step: int, batch: int) -> list[int]:
    return [step, batch] if step > 0 else []


def broken_step(local: LocalRun, limit: float) -> tuple[int, int]:
    """The step that broke a client's model, counted from 1, and the examples of its batch.

    A loss is taken before its step: the one before the first loss out of bounds is to blame, and
    the last one where all losses were within. (A first loss out of bounds blames the first step.)
    Both are -1 where the losses of single steps are not at hand.
    """
    if not local.losses:
        return -1, -1
    losses = torch.stack(local.losses)
    broken = (~(losses <= limit)).nonzero()
    step = max(int(broken[0]), 1) if len(broken) else len(losses)
    return step, local.batch_sizes[step - 1]


def _layer_of(model: FlatModel) -> int:
    """Statistics are to blame only when they are not finite and the parameters are."""
    if torch.isfinite(model.w).all() and not torch.isfinite(model.b).all():
        return broken_layer(model.buffer_layers, model.b)
    return broken_layer(model.layers, model.w)

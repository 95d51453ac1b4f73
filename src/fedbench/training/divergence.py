"""Whether training has broken down, how, and where: the client and the layer, as far as they can be
told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.algorithms.modifier import Round
from fedbench.core.flat_model import FlatModel, Layer
from fedbench.parallel.exchange import gather

if TYPE_CHECKING:
    from fedbench.training.federation import Federation
    from fedbench.training.round_metrics import Record

# a loss this many times that of guessing at random, or of the initial model, has exploded
DIVERGED_FACTOR = 1000.0


@dataclass(frozen=True)
class Divergence:
    """How training broke down, and where, as far as that can be said."""

    cause: str
    client: int | None = None
    layer: str | None = None


def loss_limit(classes: int) -> float:
    return DIVERGED_FACTOR * math.log(max(classes, 2))


class LossLimits:
    """How large a loss may be: 1,000 times that of guessing, or of the initial model on the same
    data if that is more.

    The initial model is asked only about a loss above the first of the two, so an ordinary run
    never pays for it. Its parameters come from the seed: after a resume they are the same, and so
    is the limit.
    """

    def __init__(self, model: FlatModel, classes: int, initial_loss: Callable[[int | None], float]):
        self.guessing, self.initial_loss = loss_limit(classes), initial_loss
        self.initial = [vector.clone() for vector in (model.w, model.b, model.counters)]
        self._known: dict[int | None, float] = {}

    def exceeded(self, loss: float, client: int | None = None) -> bool:
        """Of a client's training loss, or of the loss on the test set. All ranks ask the same
        questions.
        """
        if loss <= self.guessing:  # never true of what is not a number
            return False
        return not math.isfinite(loss) or loss > self._of_the_start(client)

    def _of_the_start(self, client: int | None) -> float:
        if client not in self._known:
            start = DIVERGED_FACTOR * self.initial_loss(client)
            self._known[client] = (
                max(self.guessing, start) if math.isfinite(start) else self.guessing
            )
        return self._known[client]


def initial_loss(federation: Federation, client: int | None) -> float:
    """The loss before the first step on a client's training data, or on the test set; the same
    number on every rank.
    """
    model, group, evaluator = federation.model, federation.group, federation.evaluator
    for vector, start in zip(
        (model.w, model.b, model.counters), federation.limits.initial, strict=True
    ):
        vector.copy_(start)
    if client is None:
        return evaluator.score().loss
    own = (
        [[evaluator.score_part(federation.trainer.train, federation.shards[client])[1]]]
        if group.leader
        else []
    )
    return float(gather(group, torch.tensor(own, dtype=torch.float64).view(-1, 1), [0]))


def why_diverged(federation: Federation, facts: Round, numbers: Tensor) -> Divergence | None:
    """The cause with client and layer, or nothing when all is well; who is to blame is looked for
    only when not.
    """
    model, w, b = federation.model, federation.state.w, federation.state.b
    for client, (loss, _, blamed) in zip(facts.cohort, numbers[:, :3].tolist(), strict=True):
        if federation.limits.exceeded(loss, client):
            return Divergence(
                f"training loss {loss:.4g} on client {client}",
                client,
                model.layers[int(blamed)].name,
            )
    if torch.isfinite(w).all() and torch.isfinite(b).all():
        return None
    sent = (
        ~torch.isfinite(numbers[:, 1])
    ).nonzero()  # its loss was taken before the step that broke it
    client = facts.cohort[int(sent[0])] if len(sent) else None
    what, layers, vector = ("statistics", model.buffer_layers, b)
    if not torch.isfinite(w).all():
        what, layers, vector = ("weights", model.layers, w)
    return Divergence(
        f"non-finite {what} after the server step",
        client,
        layers[broken_layer(layers, vector)].name,
    )


def why_test_diverged(federation: Federation, record: Record) -> Divergence | None:
    """A step can break a model whose training loss, taken before it, still looked well.

    Where clients have models of their own, the client is the one whose model is worst, and the
    layer is that model's; else the client is one whose step was not finite, and the layer is the
    global model's.
    """
    loss, model = record.score.loss, federation.model
    if not federation.limits.exceeded(loss):
        return None
    if record.score.losses:
        client = worst(record.score.losses)
        cause = (
            f"test loss {loss:.4g}, {record.score.losses[client]:.4g} of client {client}'s own"
            " model"
        )
        return Divergence(cause, client, model.layers[_layer_of_client(federation, client)].name)
    drifts = {row["client"]: row["drift"] for row in record.clients if row["drift"] != ""}
    client = next((client for client, drift in drifts.items() if not math.isfinite(drift)), None)
    federation.load_global()
    return Divergence(f"test loss {loss:.4g}", client, model.layers[_layer_of(model)].name)


def worst(losses: dict[int, float]) -> int:
    """The first client whose loss is not finite, else the one with the largest."""
    return next(
        (k for k, loss in losses.items() if not math.isfinite(loss)),
        max(losses, key=losses.__getitem__),
    )


def broken_layer(layers: list[Layer], vector: Tensor) -> int:
    """The number of the first layer with a non-finite value, else of the one with the largest."""
    pieces = [vector[layer.start : layer.stop].abs() for layer in layers]
    sizes = [
        float(piece.max()) if len(piece) else 0.0 for piece in pieces
    ]  # not every layer has statistics
    broken = [place for place, size in enumerate(sizes) if not math.isfinite(size)]
    return broken[0] if broken else sizes.index(max(sizes))


def _layer_of(model: FlatModel) -> int:
    """Of the model as it stands: statistics are to blame only when they are not finite and the
    parameters are.
    """
    if torch.isfinite(model.w).all() and not torch.isfinite(model.b).all():
        return broken_layer(model.buffer_layers, model.b)
    return broken_layer(model.layers, model.w)


def _layer_of_client(federation: Federation, client: int) -> int:
    """The rank that keeps the client's model looks at it, and tells the others."""
    owner, rows = federation.owners[client], torch.zeros(0, 1, dtype=torch.float64)
    if owner == federation.group.rank:
        federation.state.receive(client)
        rows = torch.tensor([[_layer_of(federation.model)]], dtype=torch.float64)
    return int(gather(federation.group, rows, [owner]))

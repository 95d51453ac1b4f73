"""The two-client least-squares problem on which the worked numbers were computed by hand and with
numpy.

Prediction u * x0 + v * x1, per-example loss half the squared error. Client A has 2 examples, client
B has 8. The body is u, the head is v. Everything runs through the real engine, in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext, StepPlan
from fedbench.algorithms.modifier import Modifier
from fedbench.config.schema import ClientSettings, Scalars, ServerSettings
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.data.batches import Examples, Sampler
from fedbench.parallel.group import Group
from fedbench.training.evaluation import Score
from fedbench.training.federation import Federation
from fedbench.training.round_metrics import Record

X_A, Y_A = [[1.0, 0.0], [1.0, 2.0]], [1.0, 3.0]
X_B, Y_B = [[1.0, 1.0], [0.0, 1.0], [1.0, -1.0], [2.0, 1.0]] * 2, [-1.0, 1.0, 2.0, 0.0] * 2
SHARDS = [torch.tensor([0, 1]), torch.arange(2, 10)]


class TwoLayers(Model):
    """u and v as two one-element layers, so that masks by layer can be tried."""

    head_name = "v"

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        self.v = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.u.weight.fill_(1.0)
            self.v.weight.fill_(0.5)

    def layers(self) -> list[tuple[str, list[nn.Module]]]:
        return [("u", [self.u]), ("v", [self.v])]

    def forward(self, x: Tensor) -> Tensor:
        return self.u(x[:, :1]) + self.v(x[:, 1:])


def half_squared(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    each = 0.5 * (outputs.squeeze(1) - targets) ** 2
    return each.mean() if reduction == "mean" else each


@dataclass
class FixedSteps(Modifier):
    """Gives each client its own number of steps, as the worked numbers of FedNova need."""

    steps: tuple[int, ...] = ()

    def num_steps(self, clients, index, cohort, steps):
        return StepPlan([self.steps[k] for k in cohort])


@dataclass
class FixedCohorts(Modifier):
    """Lets named clients take part, round by round."""

    cohorts: tuple[tuple[int, ...], ...] = ()

    def num_steps(self, clients, index, cohort, steps):
        return StepPlan(
            [
                count if k in self.cohorts[index] else 0
                for k, count in zip(cohort, steps, strict=True)
            ]
        )


@dataclass(frozen=True)
class FixedBatches(Sampler):
    """The batches of every client, by place among its own examples, instead of drawn ones."""

    batches: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def indices(self, round_index, client, own, steps):
        for places in self.batches[client][:steps]:
            yield own[list(places)]


def federation(
    algorithm: Algorithm,
    rounds: int = 3,
    client: dict | None = None,
    server_lr: float = 1.0,
    batches: tuple = (),
) -> Federation:
    x, y = (
        torch.tensor(X_A + X_B, dtype=torch.float64),
        torch.tensor(Y_A + Y_B, dtype=torch.float64),
    )
    data = Examples(x, y, None, None)
    settings = Scalars(
        rounds=rounds,
        client=ClientSettings(**{"steps": 2, "batch_size": "full", "lr": 0.1, **(client or {})}),
        server=ServerSettings(lr=server_lr),
    )
    settings.eval.every = rounds
    algorithm.modifiers = dict(sorted(algorithm.modifiers.items(), key=lambda item: item[1].order))
    model = FlatModel(TwoLayers())
    context = BindContext(model, len(SHARDS), 2, rounds, settings.seed, settings.client.momentum)
    made = Federation(
        model,
        data,
        data,
        SHARDS,
        algorithm.bind(context),
        settings,
        Group(),
        classes=2,
        loss=half_squared,
    )
    if batches:
        made.sampler = made.trainer.sampler = FixedBatches(**vars(made.sampler), batches=batches)
    made.evaluate = lambda: Score(0.0, 0.0, torch.zeros(0))  # least squares has no classes to score
    return made


def trajectory(algorithm: Algorithm, rounds: int = 2, **options) -> list[list[float]]:
    """The server's model after every round."""
    return [list(state.w.tolist()) for state in states(federation(algorithm, rounds, **options))]


def states(made: Federation) -> Iterator:
    for _ in made.rounds():
        yield made.state


def column(record: Record, name: str) -> list:
    """A number of every client that was asked in a round."""
    return [row[name] for row in record.clients]


def close(measured, expected, tolerance: float = 1e-9) -> None:
    """Row by row, or number by number."""
    assert len(measured) == len(expected)
    for got, wanted in zip(measured, expected, strict=True):
        assert got == pytest.approx(wanted, abs=tolerance)

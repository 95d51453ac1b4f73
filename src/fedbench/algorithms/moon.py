"""MOON: features close to the received model's, far from the client's own last ones.

Li, He and Song, "Model-contrastive federated learning", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.context import ClientResult, LocalRun, Memory
from fedbench.algorithms.modifier import Modifier, Needs
from fedbench.core.fields import SMALLEST, number
from fedbench.core.flat_model import FlatModel

PROJECTION = 256  # width of the projection in the authors' program


@dataclass
class Contrast(Modifier):
    """loss + mu * mean_b( -log( e^{cos(z, z_g)/T} / (e^{cos(z, z_g)/T} + e^{cos(z, z_p)/T}) ) ).

    z is the head's input (a projection of the features, unless `projection` is off), z_g that of
    the received model, z_p that of the client's own last local model, however old. A client that
    takes part for the first time has none: its term is zero. Both other networks run in evaluation
    mode, without gradients.
    """

    order = 2
    capturable = True
    needs = Needs(embedding=True)
    mu: float = number(1.0, at_least=0, at_most=1e30)
    temperature: float = number(0.5, at_least=SMALLEST, at_most=1e30)
    projection: bool = True

    @cached_property
    def received(self) -> FlatModel:
        return self.context.model.twin()

    @cached_property
    def previous(self) -> FlatModel:
        return self.context.model.twin()

    @property
    def active(self) -> bool:
        return self.mu != 0.0

    @property
    def remembers(self) -> bool:
        """Although a client that has never taken part has nothing to remember."""
        return True

    @property
    def projection_size(self) -> int | None:
        return PROJECTION if self.projection else None

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "projection": None}  # the network's identity says it

    def begin(self, local: LocalRun, memory: Memory) -> None:
        if memory.client:
            self.received.load(local.before, local.model.b)
            self.previous.load(memory.client["w"], memory.client["b"])

    def loss(self, local: LocalRun, memory: Memory, loss: Tensor) -> Tensor:
        if not memory.client:
            return loss
        with torch.no_grad():
            received = self.received.module.embed(local.batch.x)
            previous = self.previous.module.embed(local.batch.x)
        z = local.batch.embedding
        return loss + self.mu * contrastive(z, received, previous, self.temperature)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        return ClientResult(client={"w": local.model.w.clone(), "b": local.model.b.clone()})


def contrastive(z: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """-log of the softmax of two similarities is the softplus of their difference."""
    towards = functional.cosine_similarity(z, received, dim=1)
    away = functional.cosine_similarity(z, previous, dim=1)
    return functional.softplus((away - towards) / temperature).mean()

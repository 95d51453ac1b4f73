"""MOON: features close to the received model's, far from the client's own last ones.

Li, He and Song, "Model-contrastive federated learning", 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Scene
from fedbench.core.errors import require

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
    needs_embedding = True
    mu: float = 1.0
    temperature: float = 0.5
    projection: bool = True

    def bind(self, scene: Scene, key: str) -> None:
        require(0 <= self.mu <= 1e30, f"{key}.mu", self.mu, "a number from 0 to 1e30 is allowed")
        allowed = "a number from 1e-30 to 1e30 is allowed"
        require(1e-30 <= self.temperature <= 1e30, f"{key}.temperature", self.temperature, allowed)
        super().bind(scene, key)
        if self.active:
            self.received, self.previous = scene.model.twin(), scene.model.twin()

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

    def begin(self, local: Local, memory: Memory) -> None:
        if memory.client:
            self.received.load(local.before, local.model.b)
            self.previous.load(memory.client["w"], memory.client["b"])

    def loss(self, local: Local, memory: Memory, loss: Tensor) -> Tensor:
        if not memory.client:
            return loss
        with torch.no_grad():
            received, previous = (
                twin.module.embed(local.batch.x) for twin in (self.received, self.previous)
            )
        return loss + self.mu * contrastive(
            local.batch.embedding, received, previous, self.temperature
        )

    def finish(self, local: Local, memory: Memory) -> Finished:
        return Finished(client={"w": local.model.w.clone(), "b": local.model.b.clone()})


def contrastive(z: Tensor, received: Tensor, previous: Tensor, temperature: float) -> Tensor:
    """-log of the softmax of two similarities is the softplus of their difference."""
    towards = functional.cosine_similarity(z, received, dim=1)
    away = functional.cosine_similarity(z, previous, dim=1)
    return functional.softplus((away - towards) / temperature).mean()

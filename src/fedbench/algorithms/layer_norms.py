"""Norms of layers' gradients in the local steps, measured where nothing else is changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

import torch

from fedbench.algorithms.context import BindContext, ClientResult, LocalRun, Memory
from fedbench.algorithms.modifier import Modifier
from fedbench.core.flat_model import Selection


@dataclass
class LayerNorms(Modifier):
    """Sums over a client's steps of the norms of some layers' gradients, and of their squares."""

    selection: Selection
    layer_slices: list[slice] = field(default_factory=list)  # of the selection's values

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        bound.where = self.selection
        layers = range(len(self.layer_slices))
        bound.records = tuple(  # type: ignore[misc]
            f"{sums} {layer}" for sums in ("norms", "squares") for layer in layers
        )
        return bound

    def begin(self, local: LocalRun, memory: Memory) -> None:
        shape = (2, len(self.layer_slices))
        memory.scratch["sums"] = torch.zeros(shape, dtype=torch.float64, device=local.model.device)

    def grad(self, local: LocalRun, memory: Memory) -> None:
        g = self.where.read(local.model.g)
        norms = torch.stack([torch.linalg.vector_norm(g[layer]) for layer in self.layer_slices])
        memory.scratch["sums"] += torch.stack([norms, norms.square()])

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        return ClientResult(numbers=memory.scratch["sums"].flatten().tolist())

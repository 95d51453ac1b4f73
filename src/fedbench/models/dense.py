"""Networks without convolutions. They take any example: images are flattened in C, H, W order."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.errors import require
from fedbench.core.model import Model
from fedbench.models.base import ModelSettings


class LinearNetwork(Model):
    """One layer, `fc`."""

    head_name = "fc"

    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.fc = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class MlpNetwork(Model):
    """Three layers with ReLU between them: fc1, fc2 and fc3."""

    head_name = "fc3"

    def __init__(self, inputs: int, hidden: list[int], classes: int):
        super().__init__()
        first, second = hidden
        self.fc1 = nn.Linear(inputs, first)
        self.fc2 = nn.Linear(first, second)
        self.fc3 = nn.Linear(second, classes)

    def features(self, x: Tensor) -> Tensor:
        return functional.relu(self.fc2(functional.relu(self.fc1(x.flatten(1)))))


@dataclass
class Linear(ModelSettings):
    """Softmax regression: one layer `fc`, a convex problem."""

    def build(self, shape: tuple[int, ...], classes: int) -> LinearNetwork:
        return LinearNetwork(math.prod(shape), classes)


@dataclass
class Mlp(ModelSettings):
    """fc1-ReLU-fc2-ReLU-fc3. The default widths are those of the 2NN of McMahan et al. (2017)."""

    hidden: list[int] = field(default_factory=lambda: [200, 200])

    def build(self, shape: tuple[int, ...], classes: int) -> MlpNetwork:
        fits = len(self.hidden) == 2 and all(width >= 1 for width in self.hidden)
        rule = "must be two integers of at least 1, such as [64,32]"
        require(fits, "model.hidden", self.hidden, rule)
        return MlpNetwork(math.prod(shape), self.hidden, classes)

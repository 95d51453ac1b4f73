"""The bench's networks in PyTorch's own layers, without fedbench: for the bare loop and rivals."""

from __future__ import annotations

import torch.nn.functional as functional
from torch import Tensor, nn


class BareLeNet(nn.Module):
    """LeNet for grey images of 28 pixels, or cnn5 for colour images of 32."""

    def __init__(self, channels: int = 1, padding: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(functional.relu(self.fc2(functional.relu(self.fc1(x)))))


def bare_cnn_bn() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        ]

    layers = [
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        *block(32, 64),
        nn.MaxPool2d(2),
    ]
    layers += [
        *block(64, 128),
        *block(128, 128),
        nn.MaxPool2d(2),
        *block(128, 256),
        *block(256, 256),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4096, 10, bias=False))


def bare_network(model: str) -> nn.Module:
    """The network of a workload, by fedbench's name."""
    if model == "cnn_bn":
        return bare_cnn_bn()
    return BareLeNet() if model == "lenet" else BareLeNet(channels=3, padding=0)

"""The bare PyTorch loop that `bench.py` compares with: no federated code, PyTorch's default memory
layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.data.dataset import Dataset
from fedbench.parallel.group import Group


class BareLeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
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


class Bare:
    """The bare loop's share of a round in this process."""

    def __init__(self, load, data: Dataset, group: Group):
        torch.manual_seed(0)
        self.load = load
        self.module = BareLeNet() if load.model == "lenet" else bare_cnn_bn()
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01)
        images = (
            torch.from_numpy(data.train_x)
            .permute(0, 3, 1, 2)
            .float()
            .div(127.5)
            .sub(2.0)
            .contiguous()
        )
        self.x, self.y = images, torch.from_numpy(data.train_y)
        self.test = (
            torch.from_numpy(data.test_x)
            .permute(0, 3, 1, 2)
            .float()
            .div(127.5)
            .sub(2.0)
            .contiguous()
        )
        share = (load.cohort or load.clients) / group.size
        self.clients = int(share) + (group.rank < (share % 1) * group.size)
        self.tests = load.test // group.size

    def round(self) -> None:
        self.module.train()
        for _ in range(self.clients * self.load.epochs):
            order = torch.randperm(self.load.images)
            for index in order.split(self.load.batch):
                self.optimizer.zero_grad()
                functional.cross_entropy(self.module(self.x[index]), self.y[index]).backward()
                self.optimizer.step()
        if self.tests:
            self.module.eval()
            with torch.inference_mode():
                for piece in self.test[: self.tests].split(500):
                    self.module(piece).argmax(dim=1)

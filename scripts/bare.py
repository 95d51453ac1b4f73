"""The bare PyTorch loop that `bench.py` compares with: no federated code, PyTorch's default memory
layout.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from bare_networks import bare_network

from fedbench.data.dataset import Dataset
from fedbench.parallel.group import Group


class Bare:
    """The bare loop's share of a round in this process."""

    def __init__(self, load, data: Dataset, group: Group):
        torch.manual_seed(0)
        self.load = load
        self.module = bare_network(load.model)
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

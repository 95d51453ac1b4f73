"""The engine's own SGD against PyTorch's."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from fedbench.core.optimizers import Sgd


@pytest.mark.parametrize(
    ("momentum", "nesterov", "weight_decay"),
    [
        (momentum, nesterov, decay)
        for momentum, nesterov, decay in itertools.product((0.0, 0.9), (False, True), (0.0, 0.01))
        if momentum or not nesterov
    ],
)
def test_sgd_has_the_bits_of_pytorchs(momentum, nesterov, weight_decay):
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(1001, generator=draw)
    own, other = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings = {"lr": 0.07, "momentum": momentum, "nesterov": nesterov}
    optimizers = (
        Sgd(own, **settings, weight_decay=weight_decay),
        torch.optim.SGD([other], **settings, weight_decay=weight_decay),
    )
    for _ in range(5):
        gradient = torch.randn(1001, generator=draw)
        for parameter, optimizer in zip((own, other), optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
            assert torch.equal(parameter.grad, gradient)  # hooks read it after the step
        assert torch.equal(own, other)

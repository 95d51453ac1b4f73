"""`runtime.precision`: what networks compute in, and what stays float32."""

from __future__ import annotations

import torch
from torch import nn

from fedbench.core.precision import PRECISIONS, autocast

CPU = torch.device("cpu")


def test_bf16_is_for_products_and_parameters_and_gradients_stay_float32():
    layer, x = nn.Linear(5, 3), torch.randn(2, 5)
    with autocast(CPU, "bf16"):
        outputs = layer(x)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def test_the_other_precisions_cost_nothing():
    x = torch.randn(2, 5)
    for precision in set(PRECISIONS) - {"bf16"}:
        with autocast(CPU, precision):
            assert not torch.is_autocast_enabled("cpu")
            assert (x @ x.T).dtype == torch.float32

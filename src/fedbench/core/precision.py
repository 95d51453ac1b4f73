"""In which precision networks compute: `runtime.precision`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

PRECISIONS = ("float32", "tf32", "bf16")


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """The context of a network's forward pass.

    With bf16, matrix products and convolutions take bfloat16 numbers. Parameters, gradients and
    everything that methods compute stay float32. For the other precisions this does nothing:
    `fedbench.parallel.devices` has set what tf32 needs.

        with autocast(model.device, "bf16"):
            logits = model.module(x)
        loss = functional.cross_entropy(logits.float(), y)
    """
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()

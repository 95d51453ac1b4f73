"""Copies from the machine's memory to a device, for which nobody waits."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device.

    A copy from ordinary memory to a GPU waits for all of the GPU's work; one from pinned memory is
    put in line behind it. PyTorch keeps the pinned memory until the copy is done.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)

"""Copies from the machine's memory to a device, for which nobody waits."""

from __future__ import annotations

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device.

    A copy from ordinary memory to a GPU waits for all of the GPU's work; one from pinned memory is
    put in line behind it. PyTorch keeps the pinned memory until the copy is done, and then uses it
    for others. Where the machine has no more of it, the copy is an ordinary one.
    """
    if device.type == "cuda" and values.device.type == "cpu":
        try:
            values = values.pin_memory()
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
        return values.to(device, non_blocking=True)
    return values.to(device)

"""Random crops and flips of a batch of images, on tensors, all at once.

Draws come from torch's own generator, which is seeded for every client and round: the same for any
number of workers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.core.errors import require

CHOICES = ("crop", "flip")
MARGIN = 4  # black pixels on each side, before a crop of the original size


def check_choices(asked: list[str]) -> None:
    good = len(set(asked)) == len(asked) and all(choice in CHOICES for choice in asked)
    require(good, "data.augment", asked, f"must be a list of {' and '.join(CHOICES)}, each once")


def augment(images: Tensor, choices: tuple[str, ...]) -> Tensor:
    """[N, H, W, C] -> the same shape and type."""
    if "crop" in choices:
        images = _crop(images)
    if "flip" in choices:
        mirrored = torch.rand(len(images), device=images.device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(2), images)
    return images


def _crop(images: Tensor) -> Tensor:
    count, height, width, _ = images.shape
    padded = functional.pad(images, (0, 0, MARGIN, MARGIN, MARGIN, MARGIN))
    offsets = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), device=images.device)
    rows = offsets[0] + torch.arange(height, device=images.device)
    columns = offsets[1] + torch.arange(width, device=images.device)
    image = torch.arange(count, device=images.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]]

"""Batches without a DataLoader: the data is a tensor in memory, a batch is an index gather on
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedbench.core.seeding import torch_generator
from fedbench.data.augment import augment
from fedbench.data.dataset import Dataset


class Examples:
    """Inputs and labels on the training device. uint8 images are standardised a batch at a time.

    Memory-mapped inputs stay where they are, and a batch of them goes to the labels' device.
    Sequences of integers are passed on untouched.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        augment: tuple[str, ...] = (),
    ):
        self.x = x
        self.y = y
        self.augment = augment
        self.scale: Tensor | None = None
        self.shift: Tensor | None = None
        # Where an example has other inputs: its row in `replaced_inputs`, else -1.
        self.replaced_rows: Tensor | None = None
        self.replaced_inputs: Tensor | None = None
        if x.dtype == torch.uint8:
            mean_tensor = torch.tensor(mean, device=y.device)
            std_tensor = torch.tensor(std, device=y.device)
            # As large as an image: spreading one number a channel over it anew takes longer than
            # the arithmetic.
            self.scale = (1.0 / (255.0 * std_tensor)).expand(x.shape[1:]).contiguous()
            self.shift = (-mean_tensor / std_tensor).expand(x.shape[1:]).contiguous()

    def __len__(self) -> int:
        return len(self.y)

    def replace(self, index: Tensor, values: Tensor) -> None:
        """Give some examples other inputs, as the network sees them, from now on."""
        rows = torch.full((len(self.y),), -1, dtype=torch.int64, device=index.device)
        rows[index] = torch.arange(len(index), device=index.device)
        self.replaced_rows = rows
        self.replaced_inputs = values

    def batch(self, index: Tensor | slice, training: bool = False) -> tuple[Tensor, Tensor]:
        """Floats in NCHW shape and channels_last memory (images), or rows (vectors, sequences), and
        their labels.

        In training, images are cropped and flipped at random where that was asked for.
        """
        if isinstance(index, slice):
            x, y = self.x[index], self.y[index]
        else:
            x, y = self.x.index_select(0, index.to(self.x.device)), self.y.index_select(0, index)
        x = x.to(y.device)
        if training and self.augment:
            x = augment(x, self.augment)
        if self.scale is not None and self.shift is not None:
            x = x.to(torch.float32).mul_(self.scale).add_(self.shift)
        if self.replaced_rows is not None and self.replaced_inputs is not None:
            rows = self.replaced_rows[index]
            x[rows >= 0] = self.replaced_inputs[rows[rows >= 0]].to(x.dtype)
        # The data is NHWC, so a permuted view is channels_last already.
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x), y


def examples(
    data: Dataset, split: str, device: torch.device, augmented: Sequence[str] = ()
) -> Examples:
    x, y = (data.train_x, data.train_y) if split == "train" else (data.test_x, data.test_y)
    place = torch.device("cpu") if isinstance(x, np.memmap) else device
    return Examples(
        _tensor(x, place), _tensor(y, device), data.mean, data.std, tuple(sorted(augmented))
    )


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


@dataclass(frozen=True)
class Sampler:
    """Which examples a client sees in which step: a fresh permutation every epoch, from (seed,
    round, client).
    """

    seed: int
    batch_size: int | str  # an integer or "full"
    epochs: int
    steps: int | None
    # Batch norm has no statistics of one example, so a trailing batch of one is left out.
    drop_single: bool

    def size(self, samples: int) -> int:
        """Examples of a full batch."""
        if isinstance(self.batch_size, str):
            return samples
        return min(self.batch_size, samples)

    def batches_per_epoch(self, samples: int) -> int:
        if samples == 0:
            return 0
        whole, rest = divmod(samples, self.size(samples))
        if self.drop_single and self.size(samples) == 1:
            return 0
        return whole + (rest > 1 or (rest == 1 and not self.drop_single))

    def planned_steps(self, samples: int) -> int:
        per_epoch = self.batches_per_epoch(samples)
        if per_epoch == 0:
            return 0
        return self.epochs * per_epoch if self.steps is None else self.steps

    def examples_seen(self, samples: int, steps: int) -> int:
        """How many per-example gradients `steps` local steps cost."""
        size, per_epoch = self.size(samples), self.batches_per_epoch(samples)
        epochs, rest = divmod(steps, per_epoch)
        return epochs * min(per_epoch * size, samples) + rest * size

    def indices(self, round_index: int, client: int, own: Tensor, steps: int) -> Iterator[Tensor]:
        """`steps` batches of the client's own training indices."""
        generator = torch_generator(self.seed, "batches", round_index, client)
        size, per_epoch = self.size(len(own)), self.batches_per_epoch(len(own))
        while steps > 0:
            order = own[torch.randperm(len(own), generator=generator).to(own.device)]
            for position in range(min(per_epoch, steps)):
                yield order[position * size : (position + 1) * size]
            steps -= per_epoch

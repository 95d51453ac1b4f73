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
from fedbench.core.transfer import upload
from fedbench.data.arrays import MappedRows
from fedbench.data.augment import augment
from fedbench.data.dataset import Dataset


class Examples:
    """Inputs and labels on the training device. uint8 images are standardised a batch at a time.

    Memory-mapped inputs stay where they are, and a batch of them goes to the labels' device. `rows`
    are the places of the examples in such inputs, where those have others, too. Indices are
    expected where the inputs are: reading them from a GPU would wait for its work. Sequences of
    integers are passed on untouched.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        augment: tuple[str, ...] = (),
        rows: Tensor | None = None,
    ):
        self.x = x
        self.y = y
        self.rows = rows
        self.mapped = x.device != y.device  # memory-mapped inputs of a GPU
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

    def labels(self, index: Tensor) -> Tensor:
        return self.y.index_select(0, upload(index, self.y.device) if self.mapped else index)

    def replace(self, index: Tensor, values: Tensor) -> None:
        """Give some examples other inputs, as the network sees them, from now on."""
        rows = torch.full((len(self.y),), -1, dtype=torch.int64, device=self.y.device)
        rows[index.to(rows.device)] = torch.arange(len(index), device=rows.device)
        self.replaced_rows = rows
        self.replaced_inputs = values

    def batch(self, index: Tensor | slice, training: bool = False) -> tuple[Tensor, Tensor]:
        """Floats in NCHW shape and channels_last memory (images), or rows (vectors, sequences), and
        their labels.

        In training, images are cropped and flipped at random where that was asked for.
        """
        place = index
        if isinstance(index, slice):
            x = self.x[index] if self.rows is None else self.x.index_select(0, self.rows[index])
            y = self.y[index]
        else:
            place = upload(index, self.y.device) if self.mapped else index
            x = self.x.index_select(0, index if self.rows is None else self.rows[index])
            y = self.y.index_select(0, place)
        if self.mapped:
            x = upload(x, y.device)
        if training and self.augment:
            x = augment(x, self.augment)
        if self.scale is not None and self.shift is not None:
            x = torch.mul(x, self.scale).add_(self.shift)
        if self.replaced_rows is not None and self.replaced_inputs is not None:
            rows = self.replaced_rows[place]
            chosen = (rows >= 0).view(-1, *[1] * (x.ndim - 1))
            x = torch.where(chosen, self.replaced_inputs[rows.clamp(min=0)].to(x.dtype), x)
        # The data is NHWC, so a permuted view is channels_last already.
        return (x.permute(0, 3, 1, 2) if x.ndim == 4 else x), y


def examples(
    data: Dataset, split: str, device: torch.device, augmented: Sequence[str] = ()
) -> Examples:
    """The examples of one set: train, val or test."""
    x, y = data.split(split)
    rows = None
    if isinstance(x, MappedRows):
        rows = _tensor(x.rows, torch.device("cpu"))
        x = x.array
    place = torch.device("cpu") if isinstance(x, np.memmap) else device
    return Examples(
        _tensor(x, place), _tensor(y, device), data.mean, data.std, tuple(sorted(augmented)), rows
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
    last_batch: str = "keep"  # an incomplete one: keep, drop (unless it is the only one), scaled

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
        if self.last_batch == "drop":
            return whole  # a client with less than one batch has one of its own size
        return whole + (rest > 1 or (rest == 1 and not self.drop_single))

    def planned_steps(self, samples: int) -> int:
        per_epoch = self.batches_per_epoch(samples)
        if per_epoch == 0:
            return 0
        return self.epochs * per_epoch if self.steps is None else self.steps

    def share(self, examples: int) -> float:
        """The factor of a step's gradient: 1, or with `scaled` what the batch is of a full one."""
        if self.last_batch != "scaled" or isinstance(self.batch_size, str):
            return 1.0
        return examples / self.batch_size

    def shares(self, samples: int, steps: int) -> list[float]:
        """The factors of a round's steps; empty when all are 1."""
        size, per_epoch = self.size(samples), self.batches_per_epoch(samples)
        if self.last_batch != "scaled" or (self.share(size) == 1.0 and samples % size == 0):
            return []
        lengths = [min(size, samples - place * size) for place in range(per_epoch)]
        return [self.share(lengths[step % per_epoch]) for step in range(steps)]

    def examples_seen(self, samples: int, steps: int) -> int:
        """How many per-example gradients `steps` local steps cost."""
        size, per_epoch = self.size(samples), self.batches_per_epoch(samples)
        epochs, rest = divmod(steps, per_epoch)
        return epochs * min(per_epoch * size, samples) + rest * size

    def indices(self, round_index: int, client: int, own: Tensor, steps: int) -> Iterator[Tensor]:
        """`steps` batches of the client's own training indices, in one copy to their device."""
        generator = torch_generator(self.seed, "batches", round_index, client)
        samples = len(own)
        size, per_epoch = self.size(samples), self.batches_per_epoch(samples)
        epochs = -(-steps // per_epoch) if steps > 0 else 0
        if epochs == 0:
            return
        orders = [torch.randperm(samples, generator=generator) for _ in range(epochs)]
        order = orders[0] if epochs == 1 else torch.cat(orders)
        drawn = own.index_select(0, upload(order, own.device))
        for epoch in [drawn] if epochs == 1 else drawn.split(samples):
            yield from epoch.split(size)[: min(per_epoch, steps)]
            steps -= per_epoch

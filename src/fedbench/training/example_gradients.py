"""Mean and variance of the gradients of single examples.

One example at a time, memory stays that of one gradient and any network will do; a CPU is no slower
that way. A GPU would wait for the next of many small kernels, so there `torch.func` computes the
gradients of a chunk of examples at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedbench.core.flat_model import FlatModel
from fedbench.data.batches import Examples

Loss = Callable[..., Tensor]  # loss(outputs, targets, reduction="mean" | "none")
CHUNK_ELEMENTS = 2**26  # of the gradients that are computed at once


def gradient_moments(
    model: FlatModel, loss: Loss, examples: Examples, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Over the examples of `index`, at the model as it is, in evaluation mode.

    Batch norm in training mode has no gradient of a single example.
    """
    set_evaluation_mode(model.module, model.device)
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.module.modules())
    if model.device.type == "cuda" and not recurrent:  # vmap has no rule for recurrent layers
        return moments_in_chunks(model, loss, examples, index)
    return moments_one_by_one(model, loss, examples, index)


def moments_one_by_one(
    model: FlatModel, loss: Loss, examples: Examples, index: Tensor
) -> tuple[Tensor, Tensor]:
    """Welford's recursion: a difference of squares would lose small variances."""
    mean, squares = torch.zeros_like(model.g), torch.zeros_like(model.g)
    for count, one in enumerate(index.split(1), start=1):
        x, y = examples.batch(one)
        model.g.zero_()
        loss(model.module(x), y).backward()
        difference = model.g - mean
        mean.add_(difference, alpha=1.0 / count)
        squares.addcmul_(difference, model.g - mean)
    return mean, squares / max(len(index), 1)


def moments_in_chunks(
    model: FlatModel, loss: Loss, examples: Examples, index: Tensor
) -> tuple[Tensor, Tensor]:
    """The same recursion from chunk to chunk (Chan, Golub and LeVeque)."""
    mean, squares = torch.zeros_like(model.g), torch.zeros_like(model.g)
    count = 0
    for part in index.split(max(1, CHUNK_ELEMENTS // model.size)):
        rows = example_gradients(model, loss, *examples.batch(part))
        total = count + len(rows)
        own_mean = rows.mean(dim=0)
        difference = own_mean - mean
        mean.add_(difference, alpha=len(rows) / total)
        squares.add_((rows - own_mean).square_().sum(dim=0))
        squares.addcmul_(difference, difference, value=count * len(rows) / total)
        count = total
    return mean, squares / max(count, 1)


def example_gradients(model: FlatModel, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """The flat gradient of every example, [examples, parameters]."""
    module = model.module
    buffers = dict(module.named_buffers())
    named = {id(parameter): name for name, parameter in module.named_parameters()}
    order = [named[id(parameter)] for parameter, _, _ in model.parameter_slices]
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def loss_of(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, (parameters, buffers), (one.unsqueeze(0),))
        return loss(outputs, label.unsqueeze(0))

    gradients = vmap(grad(loss_of), in_dims=(None, 0, 0))(parameters, x, y)
    return torch.cat([_flat_rows(gradients[name]) for name in order], dim=1)


def _flat_rows(gradients: Tensor) -> Tensor:
    """A parameter's gradients as rows in the order in which the flat vector stores it."""
    if gradients.ndim == 5:
        gradients = gradients.permute(0, 1, 3, 4, 2)
    return gradients.reshape(len(gradients), -1)


def set_evaluation_mode(module: nn.Module, device: torch.device) -> None:
    """Evaluation mode for a forward pass with a backward pass after it.

    On a GPU, cuDNN has that for recurrent layers in training mode only. Without dropout between
    their layers, both modes compute the same.
    """
    module.eval()
    if device.type == "cuda":
        for inner in module.modules():
            if isinstance(inner, nn.RNNBase) and inner.dropout == 0:
                inner.train()

"""The layers in PyTorch: for machines without native kernels, and what those must agree with.

Each part names its gain over PyTorch's plain layers, measured on one thread of a busy AMD EPYC
(torch 2.13), interleaved, as medians of ratios. On other devices, and under torch.func (per-example
gradients), PyTorch's own operators run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.polynomial.polynomial import polyfromroots
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def channels_last(images: Tensor) -> Tensor:
    """The same images in channels_last memory, which torch recognises by the strides alone.

    With one channel both layouts have the same bytes, so torch has only the strides to go by, and
    the slow kernel for the weight's gradient needs 1.4 ms where the right one needs 0.4 (LeNet's
    first layer, batch 32).
    """
    count, channels, height, width = images.shape
    if channels == 1:
        return images.reshape(count, height, width, 1).permute(0, 3, 1, 2)
    if torch._C._are_functorch_transforms_active():  # which know no memory formats
        return images
    return images.contiguous(memory_format=torch.channels_last)


def pool_relu(x: Tensor) -> Tensor:
    """ReLU of 2x2 max-pooling. The papers pool after ReLU, which gives the same bits.

    ReLU keeps order, so the maximum commutes with it. Where the maximum is positive, the same entry
    is the first largest in both orders and gets the gradient; elsewhere ReLU's gradient is 0. This
    order has a quarter of the ReLU's work and memory: LeNet's step takes 0.86 to 0.96 of its time
    (batch 32; the more the allocator has to ask for pages, the less) and 0.95 (batch 10), cnn_bn's
    is the same within noise.
    """
    return functional.relu(functional.max_pool2d(x, 2), inplace=True)


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """layer(x) with extra channels of zeros up to a multiple of 8; x may have such channels, too.

    A CPU's vectors hold 8 floats, and the channels_last pooling kernel falls back to single numbers
    for a rest: 0.54 ms for LeNet's 6 channels, 0.21 ms for 8 (batch 32). Zero weights leave the
    results as they are. LeNet's step takes 0.91 (batch 32) and 1.00 (batch 10) of its time, its
    evaluation 0.72.
    """
    outputs = -layer.out_channels % 8 if x.device.type == "cpu" else 0
    inputs, weight, bias = x.shape[1] - layer.in_channels, layer.weight, layer.bias
    if inputs or outputs:
        weight = functional.pad(weight, (0, 0, 0, 0, 0, inputs, 0, outputs))
    if outputs and bias is not None:
        bias = functional.pad(bias, (0, outputs))
    return functional.conv2d(x, weight, bias, padding=layer.padding)


def _transforms() -> tuple[Tensor, Tensor, Tensor]:
    """Toom and Cook's matrices for 4 outputs of a filter of 3: outputs, filter and inputs.

    In one dimension, outputs = A ((G filter) * (B inputs)): a product of polynomials from its
    values at five points and at infinity. Kronecker products give two dimensions. These points
    round better than the usual 0, 1, -1, 2, -2.
    """
    points = np.array([0, 0.5, -0.5, 1.5, -1.5])
    others = [np.delete(points, i) for i in range(5)]
    scale = np.array([np.prod(point - rest) for point, rest in zip(points, others, strict=True)])
    infinity = np.eye(6)[:, 5:]
    outputs = np.hstack([np.vander(points, 4, increasing=True).T, infinity[2:]])
    filters = np.vstack([np.vander(points, 3, increasing=True) / scale[:, None], infinity[3:].T])
    inputs = np.array(
        [np.append(polyfromroots(rest), 0) for rest in others] + [polyfromroots(points)]
    )
    return _squared(outputs), _squared(filters), _squared(inputs)


def _squared(matrix: np.ndarray) -> Tensor:
    return torch.from_numpy(np.kron(matrix, matrix)).to(torch.float32)


_OUTPUTS, _FILTERS, _INPUTS = _transforms()  # [16, 36], [36, 9], [36, 36]
# Numbers at each of the 36 positions that are computed at a time: 2.4 MB stay in the cache.
_PART = 2**14
_INNER = slice(1, 5)
# A tile reaches one pixel into its neighbours: (their index, their pixel, own index, own pixel).
_BORDERS = ((slice(None, -1), 3, slice(1, None), 0), (slice(1, None), 0, slice(None, -1), 5))


class Winograd(torch.autograd.Function):
    """F(4x4, 3x3) of Lavin and Gray (2016): 16 outputs take 36 multiplications instead of 144.

    Every 6x6 tile of the input (4 apart) and every filter is transformed to 36 numbers, the sum
    over channels is one matrix product for each of the 36, and the results give 4x4 outputs. The
    gradients are the same steps transposed. PyTorch's kernels are near the CPU's peak already,
    except for the weight's gradient; this has a quarter of their multiplications, and cnn_bn's step
    takes 0.66 of its time. Rounding errors (rms relative to float64, 128 channels): output 1.1e-6
    (PyTorch 0.4e-6), input's gradient 1.3e-6 (0.6e-6), weight's gradient 1.2e-6 (1.6e-6).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        images = x.permute(0, 2, 3, 1).contiguous()
        count, height, width, inputs = images.shape
        outputs, rows, columns = len(weight), height // 4, width // 4
        filters = transformed_filters(weight)
        result = x.new_empty(count, rows, 4, columns, 4, outputs)
        ctx.part = max(1, _PART // (rows * columns * inputs))
        ctx.save_for_backward(images, filters)
        for some, into in zip(images.split(ctx.part), result.split(ctx.part), strict=True):
            products = torch.bmm(_tiles(some), filters.transpose(1, 2)).view(36, -1)
            into.copy_(
                (_OUTPUTS @ products)
                .view(4, 4, -1, rows, columns, outputs)
                .permute(2, 3, 0, 4, 1, 5)
            )
        return result.view(count, height, width, outputs).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        images, filters = ctx.saved_tensors
        (count, height, width, inputs), outputs = images.shape, filters.shape[1]
        rows, columns = height // 4, width // 4
        arriving = (
            gradient.permute(0, 2, 3, 1).contiguous().view(count, rows, 4, columns, 4, outputs)
        )
        result = gradient.new_empty(count, rows, 4, columns, 4, inputs)
        total = torch.zeros_like(filters)
        parts = (tensor.split(ctx.part) for tensor in (images, arriving, result))
        for some, given, into in zip(*parts, strict=True):
            pixels = given.permute(2, 4, 0, 1, 3, 5).reshape(16, -1)
            products = (_OUTPUTS.T @ pixels).view(36, -1, outputs)
            total.baddbmm_(products.transpose(1, 2), _tiles(some))
            tiles = _INPUTS.T @ torch.bmm(products, filters).view(36, -1)
            _add_tiles(into, tiles.view(6, 6, -1, rows, columns, inputs).permute(2, 3, 0, 4, 1, 5))
        images_gradient = result.view(count, height, width, inputs).permute(0, 3, 1, 2)
        return images_gradient, filters_gradient(total)


def transformed_filters(weight: Tensor) -> Tensor:
    """Filters [O, I, 3, 3] at the 36 positions: [36, O, I]."""
    filters = _FILTERS @ weight.permute(2, 3, 0, 1).reshape(9, -1)
    return filters.view(36, *weight.shape[:2])


def filters_gradient(total: Tensor) -> Tensor:
    """The transpose of `transformed_filters`."""
    filters = (_FILTERS.T @ total.view(36, -1)).view(3, 3, *total.shape[1:])
    return filters.permute(2, 3, 0, 1)


def _tiles(images: Tensor) -> Tensor:
    """The transformed tiles of images [N, H, W, C] inside a border of zeros: [36, tiles, C]."""
    padded = functional.pad(images, (0, 0, 1, 1, 1, 1))
    tiles = padded.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3)
    return (_INPUTS @ tiles.reshape(36, -1)).view(36, -1, images.shape[3])


def _add_tiles(images: Tensor, tiles: Tensor) -> None:
    """Sum overlapping tiles [N, rows, 6, columns, 6, C] into images [N, rows, 4, columns, 4, C]."""
    images.copy_(tiles[:, :, _INNER, :, _INNER])
    for to_row, to_y, row, y in _BORDERS:
        images[:, to_row, to_y] += tiles[:, row, y, :, _INNER]
        images[:, :, :, to_row, to_y] += tiles[:, :, _INNER, row, y]
        for to_column, to_x, column, x in _BORDERS:
            images[:, to_row, to_y, to_column, to_x] += tiles[:, row, y, column, x]

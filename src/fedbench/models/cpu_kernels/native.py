"""The C++ kernels as nodes of autograd. What they compute, torch_layers.py says in PyTorch.

A node works on float32 tensors in CPU memory, with one thread, and needs no other conditions.
Elsewhere (`applies` is false), under torch.func and autocast, and for images whose own gradient is
wanted, the layers use PyTorch's operators.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from fedbench.models.cpu_kernels import library
from fedbench.models.cpu_kernels.torch_layers import filters_gradient, transformed_filters

# Numbers at each of the 36 positions of Winograd's tiles that are computed at a time: many, because
# a product takes 10 us before it begins.
_PART = 2**16
_PADDING = 16  # floats between two positions: see _matrices
# Which gradients `lenet_backward` computes: that of the last bias, the second block's, or all.
_SECOND_BIAS, _SECOND_BLOCK, _BOTH_BLOCKS = range(3)
LANES = 8  # channels of a vector: Winograd's kernels need a multiple of it


def applies(*tensors: Tensor) -> bool:
    """Whether the kernels can take these inputs and weights."""
    return (
        all(one.dtype is torch.float32 and one.is_cpu for one in tensors)
        and not torch._C._are_functorch_transforms_active()
        and not torch.is_autocast_enabled("cpu")
    )


@cache
def _sizes(*numbers: int) -> ctypes.Array:
    """Numbers in the memory layout of C++, such as a `Geometry`."""
    return (ctypes.c_int64 * len(numbers))(*numbers)


@cache
def _forward_floats(geometry: tuple[int, ...], keep: bool) -> int:
    return library.load().lenet_forward_floats(_sizes(*geometry), keep)


@cache
def _backward_floats(geometry: tuple[int, ...]) -> int:
    return library.load().lenet_backward_floats(_sizes(*geometry))


def lenet_applies(x: Tensor, first: nn.Conv2d, second: nn.Conv2d) -> bool:
    """Whether they can take these two blocks: C++ would read beyond what does not fit together."""
    if first.bias is None or second.bias is None or x.requires_grad:
        return False
    padding = int(first.padding[0])
    weight1, weight2 = first.weight, second.weight  # a module searches for them every time
    return (
        applies(x, weight1, first.bias, weight2, second.bias)
        and (x.shape[1], weight1.shape[0]) == (weight1.shape[1], weight2.shape[1])
        and min(_pooled(side, padding) for side in x.shape[2:]) > 0
    )


def _pooled(side: int, padding: int) -> int:
    """What both blocks leave of an image's side."""
    return ((side + 2 * padding - 4) // 2 - 4) // 2


def lenet_blocks(x: Tensor, first: nn.Conv2d, second: nn.Conv2d) -> Tensor:
    """Two 5x5 convolutions, each with bias, 2x2 maximum and ReLU: features [N, C * H * W]."""
    weights = first.weight, first.bias, second.weight, second.bias
    return _LeNetBlocks.apply(x, *weights, first.padding[0], torch.is_grad_enabled())


class _LeNetBlocks(torch.autograd.Function):
    """Both blocks in one node: what lies between them never leaves the kernels' layout."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        bias2: Tensor,
        pad: int,
        graph: bool,  # needs_input_grad is true under no_grad, too
    ) -> Tensor:
        # No copies: the engine's images and weights are in this order already.
        images = x.contiguous(memory_format=torch.channels_last)
        weight1 = weight1.contiguous(memory_format=torch.channels_last)
        weight2 = weight2.contiguous(memory_format=torch.channels_last)
        bias1, bias2 = bias1.contiguous(), bias2.contiguous()
        count, channels, height, width = images.shape
        middle, features = weight1.shape[0], weight2.shape[0]
        geometry = (count, channels, height, width, pad, middle, features)
        keep = graph and any(ctx.needs_input_grad)
        memory = x.new_empty(_forward_floats(geometry, keep))
        output = x.new_empty(count, features * _pooled(height, pad) * _pooled(width, pad))
        library.load().lenet_forward(
            _sizes(*geometry),
            keep,
            images.data_ptr(),
            weight1.data_ptr(),
            bias1.data_ptr(),
            weight2.data_ptr(),
            bias2.data_ptr(),
            memory.data_ptr(),
            output.data_ptr(),
        )
        if keep:
            ctx.geometry = geometry
            ctx.save_for_backward(memory, weight2)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        forward_memory, weight2 = ctx.saved_tensors
        _, channels, _, _, _, middle, features = geometry = ctx.geometry
        own1, own2 = _filters(middle, channels), _filters(features, middle)
        bias1, bias2 = gradient.new_empty(middle), gradient.new_empty(features)
        needs_first, needs_second = any(ctx.needs_input_grad[1:3]), ctx.needs_input_grad[3]
        wanted = _BOTH_BLOCKS if needs_first else _SECOND_BLOCK if needs_second else _SECOND_BIAS
        memory = gradient.new_empty(_backward_floats(geometry))
        gradient = gradient.contiguous()
        library.load().lenet_backward(
            _sizes(*geometry),
            wanted,
            gradient.data_ptr(),
            weight2.data_ptr(),
            forward_memory.data_ptr(),
            memory.data_ptr(),
            own1.data_ptr(),
            bias1.data_ptr(),
            own2.data_ptr(),
            bias2.data_ptr(),
        )
        if wanted < _SECOND_BLOCK:
            return None, None, None, None, bias2, None, None
        if wanted < _BOTH_BLOCKS:
            return None, None, None, own2, bias2, None, None
        return None, own1, bias1, own2, bias2, None, None


def _filters(outputs: int, inputs: int) -> Tensor:
    """Room for the gradient of 5x5 filters [O, I, 5, 5], in channels_last order."""
    strides = (25 * inputs, 1, 5 * inputs, inputs)
    return torch.empty_strided((outputs, inputs, 5, 5), strides, dtype=torch.float32)


class NativeWinograd(torch.autograd.Function):
    """`torch_layers.Winograd` with its transforms in C++. The products are PyTorch's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        kernels, images = library.load(), x.permute(0, 2, 3, 1).contiguous()
        count, height, width, inputs = images.shape
        outputs, tiles = len(weight), height * width // 16
        filters = transformed_filters(weight)
        result = x.new_empty(count, height, width, outputs)
        ctx.part = part = max(1, _PART // (tiles * inputs))
        ctx.save_for_backward(images, filters)
        transformed = _matrices(images, part * tiles, inputs)
        for some, into in zip(images.split(part), result.split(part), strict=True):
            own = [matrix[: len(some) * tiles] for matrix in transformed]
            sizes = _sizes(len(some), height, width, inputs)
            kernels.winograd_inputs(sizes, some.data_ptr(), _addresses(own))
            products = [_product(*pair) for pair in zip(own, filters, strict=True)]
            sizes = _sizes(len(some), height, width, outputs)
            kernels.winograd_outputs(sizes, _addresses(products), into.data_ptr())
        return result.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        kernels = library.load()
        images, filters = ctx.saved_tensors
        _, height, width, inputs = images.shape
        outputs, part, tiles = filters.shape[1], ctx.part, height * width // 16
        arriving = gradient.permute(0, 2, 3, 1).contiguous()
        result, total = torch.zeros_like(images), torch.zeros_like(filters)
        transformed = _matrices(images, part * tiles, inputs)
        products = _matrices(images, part * tiles, outputs)
        room = images.new_empty(outputs * part * tiles)
        parts = (tensor.split(part) for tensor in (images, arriving, result))
        for some, given, into in zip(*parts, strict=True):
            own = [matrix[: len(some) * tiles] for matrix in transformed]
            input_sizes = _sizes(len(some), height, width, inputs)
            kernels.winograd_inputs(input_sizes, some.data_ptr(), _addresses(own))
            given_own = [matrix[: len(some) * tiles] for matrix in products]
            sizes = _sizes(len(some), height, width, outputs)
            kernels.winograd_outputs_backward(sizes, given.data_ptr(), _addresses(given_own))
            turned = room[: outputs * len(some) * tiles].view(outputs, -1)
            for sum_, given_one, one in zip(total, given_own, own, strict=True):
                # oneDNN wants the columns side by side; PyTorch's copy takes four times as long.
                kernels.winograd_transpose(
                    *given_one.shape, given_one.data_ptr(), turned.data_ptr()
                )
                sum_ += _product(turned, one.T)
            pairs = zip(given_own, filters.transpose(1, 2), strict=True)
            given_tiles = [_product(*pair) for pair in pairs]
            kernels.winograd_inputs_backward(input_sizes, _addresses(given_tiles), into.data_ptr())
        return result.permute(0, 3, 1, 2), filters_gradient(total)


def _matrices(like: Tensor, rows: int, columns: int) -> list[Tensor]:
    """Room for 36 matrices of the type of `like`.

    They are a little further apart than their size: with a power of two between them, numbers that
    are written together would share one set of the processor's cache.
    """
    room = like.new_empty(36, rows * columns + _PADDING)
    return [one[: rows * columns].view(rows, columns) for one in room]


def _addresses(matrices: list[Tensor]) -> ctypes.Array:
    return (ctypes.c_void_p * len(matrices))(*[matrix.data_ptr() for matrix in matrices])


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b.T by oneDNN.

    On AMD's processors torch.mm, which is MKL's, uses only half of the vectors' width: it takes
    twice as long there, and cnn_bn's step 1.4 times.
    """
    return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")

"""The layers that have a C++ kernel, and use it while their `native` is true.

`choose_kernels` sets `native` for all layers of a network, for a whole run.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedbench.models.cpu_kernels import native
from fedbench.models.cpu_kernels.torch_layers import Winograd, channels_last, convolve, pool_relu

TILE = 4  # outputs of a side that Winograd's method computes at a time


class NativeLayer(nn.Module):
    """A module for which there is a C++ kernel."""

    native = False


class LeNetBlocks(NativeLayer):
    """Two 5x5 convolutions, each with bias, 2x2 max-pooling and ReLU: features [N, C * H * W].

    It has no parameters: the convolutions belong to the network, which names them.
    """

    def forward(self, x: Tensor, first: nn.Conv2d, second: nn.Conv2d) -> Tensor:
        if self.native and native.lenet_applies(x, first, second):
            return native.lenet_blocks(x, first, second)
        x = channels_last(x)
        for convolution in (first, second):
            x = pool_relu(convolve(x, convolution))
        return x.flatten(1)


class Conv3x3(NativeLayer, nn.Conv2d):
    """A 3x3 convolution with padding 1 and no bias, by Winograd's method where that is possible."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs, 3, padding=1, bias=False)
        self.whole_vectors = inputs % native.LANES == 0 and outputs % native.LANES == 0

    def forward(self, x: Tensor) -> Tensor:
        whole_tiles = x.shape[2] % TILE == 0 and x.shape[3] % TILE == 0
        plain = x.device.type != "cpu" or x.dtype != torch.float32
        plain |= x.shape[1] != self.in_channels
        if plain or not whole_tiles or torch._C._are_functorch_transforms_active():
            return super().forward(x)
        if self.native and self.whole_vectors and native.applies(x, self.weight):
            return native.NativeWinograd.apply(x, self.weight)
        return Winograd.apply(x, self.weight)


def conv3x3(inputs: int, outputs: int, height: int, width: int) -> nn.Conv2d:
    """A 3x3 convolution of images of this size: a `Conv3x3` where they consist of whole tiles."""
    if height % TILE == 0 and width % TILE == 0:
        return Conv3x3(inputs, outputs)
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)

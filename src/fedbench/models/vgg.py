"""VGG-16 and VGG-19 (Simonyan and Zisserman 2015) for images of 32 pixels a side."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.model import Model
from fedbench.models.base import ModelSettings, image_size
from fedbench.models.cpu_kernels import channels_last, pool_relu

# Configurations D and E: the channels of each block's convolutions. A block ends with max-pooling.
_BLOCKS = {
    16: ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3),
    19: ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4),
}
_HIDDEN = 512


class VggNetwork(Model):
    """Five blocks of 3x3 convolutions with ReLU, a pooling to one pixel, three linear layers."""

    head_name = "fc3"

    def __init__(self, depth: int, channels: int, classes: int, batch_norm: bool):
        super().__init__()
        number = 0
        self.ends: list[int] = []  # the last convolution of each block
        for block in _BLOCKS[depth]:
            for width in block:
                number += 1
                setattr(self, f"conv{number}", _he(nn.Conv2d(channels, width, 3, padding=1)))
                setattr(self, f"bn{number}", nn.BatchNorm2d(width) if batch_norm else None)
                channels = width
            self.ends.append(number)
        self.fc1 = _he(nn.Linear(channels, _HIDDEN))
        self.fc2 = _he(nn.Linear(_HIDDEN, _HIDDEN))
        self.fc3 = nn.Linear(_HIDDEN, classes)

    def features(self, x: Tensor) -> Tensor:
        x = channels_last(x)
        for number in range(1, self.ends[-1] + 1):
            x = getattr(self, f"conv{number}")(x)
            norm = getattr(self, f"bn{number}")
            x = x if norm is None else norm(x)
            x = pool_relu(x) if number in self.ends else functional.relu(x, inplace=True)
        x = functional.adaptive_avg_pool2d(x, 1).flatten(1)  # images of 32 pixels have one left
        return functional.relu(self.fc2(functional.relu(self.fc1(x))))


def _he(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Set the initial weights of He et al. (2015), for deep networks with ReLU, and biases of 0.

    They keep the size of the signals: the outputs of a VGG-19 deviate by 0.03 between images. With
    torchvision's for the convolutions (fan_out) and PyTorch's for the others it is 0.0003, with
    PyTorch's for all 3e-9. On CIFAR-10 (batch 32, rate 0.01, momentum 0.9) the loss after 160 steps
    is 2.09, and was 2.30 with the former.
    """
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


@dataclass
class Vgg(ModelSettings):
    """What the two depths share.

    No paper says how it fits a VGG to images of 32 pixels. The convolutions are torchvision's. Of
    its three linear layers of width 4096, for 224 pixels, this network keeps the number, which
    makes 16 and 19 layers with weights, and takes the width 512 that is usual for CIFAR. FedPVR's
    VGG-11, whose corrected layers FedPMVR takes over, has three as well, so the last two layers are
    fc2 and fc3 in both. There is no dropout: none of the papers mentions it, and without it a
    gradient in evaluation mode (FedGSNR's) is that of the network in training.
    """

    batch_norm: bool = False
    depth = 16

    def build(self, shape: tuple[int, ...], classes: int) -> VggNetwork:
        _, _, channels = image_size(f"vgg{self.depth}", shape, least=32)
        return VggNetwork(self.depth, channels, classes, self.batch_norm)


@dataclass
class Vgg16(Vgg):
    """FedGSNR's network for CIFAR-100 (section VIII).

    It has 15,245,130 parameters for 32x32x3 and 10 classes.
    """

    depth = 16


@dataclass
class Vgg19(Vgg):
    """FedPMVR's second network for CIFAR-10 (table 1).

    It has 20,554,826 parameters for 32x32x3 and 10 classes. In that table FedBN fails where FedAvg
    does not (beta 0.1). Without batch norm both are the same method, which suggests a network with
    batch norm; but the table's LeNet and CNN columns, which have none, differ as well.
    """

    depth = 19

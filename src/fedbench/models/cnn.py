"""The convolutional networks of the papers. Their input is a batch of images [N, C, H, W]."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.fields import count
from fedbench.core.model import Model
from fedbench.models.base import ModelSettings, image_size
from fedbench.models.cpu_kernels import LeNetBlocks, channels_last, conv3x3, pool_relu

_LARGE = 32  # pixels from which LeNet does not pad


class LeNetNetwork(Model):
    """Two 5x5 convolutions, each with ReLU and 2x2 max-pooling, and three linear layers."""

    head_name = "fc3"

    def __init__(
        self, size: tuple[int, int, int], classes: int, padding: int, batch_norm: bool = False
    ):
        super().__init__()
        height, width, channels = size
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=padding)
        self.bn1 = nn.BatchNorm2d(6) if batch_norm else None
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.bn2 = nn.BatchNorm2d(16) if batch_norm else None
        # Batch norm lies between a convolution and its pooling, which are one step otherwise.
        self.blocks = nn.Identity() if batch_norm else LeNetBlocks()
        pooled = [((side + 2 * padding - 4) // 2 - 4) // 2 for side in (height, width)]
        self.fc1 = nn.Linear(16 * pooled[0] * pooled[1], 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, classes)

    def features(self, x: Tensor) -> Tensor:
        if self.bn1 is None or self.bn2 is None:
            x = self.blocks(x, self.conv1, self.conv2)
        else:
            x = pool_relu(self.bn1(self.conv1(channels_last(x))))
            x = pool_relu(self.bn2(self.conv2(x))).flatten(1)
        return functional.relu(self.fc2(functional.relu(self.fc1(x))))


class CnnBnNetwork(Model):
    """Three blocks of 3x3 convolutions with batch norm, ReLU and max-pooling, and a classifier."""

    head_name = "fc"

    def __init__(self, size: tuple[int, int, int], classes: int):
        super().__init__()
        height, width, channels = size
        half, quarter = (height // 2, width // 2), (height // 4, width // 4)
        self.conv0 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv1 = conv3x3(32, 64, height, width)
        self.bn1 = nn.BatchNorm2d(64)
        self.conv2 = conv3x3(64, 128, *half)
        self.bn2 = nn.BatchNorm2d(128)
        self.conv3 = conv3x3(128, 128, *half)
        self.bn3 = nn.BatchNorm2d(128)
        self.conv4 = conv3x3(128, 256, *quarter)
        self.bn4 = nn.BatchNorm2d(256)
        self.conv5 = conv3x3(256, 256, *quarter)
        self.bn5 = nn.BatchNorm2d(256)
        self.fc = nn.Linear(256 * (height // 8) * (width // 8), classes, bias=False)

    def features(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv0(channels_last(x)), inplace=True)
        x = pool_relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)), inplace=True)
        x = pool_relu(self.bn3(self.conv3(x)))
        x = functional.relu(self.bn4(self.conv4(x)), inplace=True)
        x = pool_relu(self.bn5(self.conv5(x)))
        return x.flatten(1)


@dataclass
class LeNet(ModelSettings):
    """LeNet-5 as the ECGR paper has it (section 4.1 and released code): ReLU and max-pooling.

    It has 61,706 parameters for 28x28x1 and 10 classes. Images below 32 pixels are padded by 2, as
    in the paper. The LeNet that the authors of FedPMVR and FedPGVC released has tanh, average
    pooling and no padding; all tables here use this one, which is that of the papers' text.
    `batch_norm` adds batch norm after each convolution, where FL-bench's LeNet5 has it (FedNCV's
    experiments); FL-bench does not pad (`padding=0`).
    """

    batch_norm: bool = False
    # Of the first convolution; None = 2 for images below 32 pixels, else 0.
    padding: int | None = count(None, at_least=0, at_most=2)

    def build(self, shape: tuple[int, ...], classes: int) -> LeNetNetwork:
        given = self.padding
        size = image_size("lenet", shape, least=12 if given is None else 16 - 2 * given)
        padding = (2 if min(size[:2]) < _LARGE else 0) if given is None else given
        return LeNetNetwork(size, classes, padding, self.batch_norm)


@dataclass
class Cnn5(ModelSettings):
    """The 5-layer CNN of FedPMVR (appendix C.1 and released code), LeNet's layers without padding.

    The appendix mentions ReLU for the linear layers only; the released code has it after the
    convolutions, too. FedPGVC uses this network as well.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> LeNetNetwork:
        return LeNetNetwork(image_size("cnn5", shape, least=16), classes, padding=0)


@dataclass
class CnnBn(ModelSettings):
    """The CNN of ECGR (section 4.1 and released code): 32-64-128-256 channels.

    The classifier has no bias. The paper's log-softmax is left out: the cross-entropy of a
    log-softmax is that of the logits.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> CnnBnNetwork:
        return CnnBnNetwork(image_size("cnn_bn", shape, least=8), classes)

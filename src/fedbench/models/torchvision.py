"""ResNet-18 and ViT-B/32 from torchvision, with or without the two linear layers that FedPGVC adds.

torchvision is imported when a network is built: it takes a second or more, and other models do not
need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.errors import bad_value, require
from fedbench.models.base import Layers, Model, ModelSettings, grouped, image_size, weighted
from fedbench.models.cpu_kernels import channels_last
from fedbench.models.pretrained import find_checkpoint, load_trunk, sha256
from fedbench.models.torchvision_operators import import_torchvision

_PATCH = 32  # pixels a side of what ViT-B/32 takes for one word
_MOST_PIXELS = (
    4096  # a side: a batch of larger images fits into no memory, which shows only in training
)
_STEMS = ("imagenet", "cifar")
_EXTRA = (512, 256)  # widths of the two linear layers; FedPGVC does not tell its own


class TrunkNetwork(Model):
    """A torchvision network without its classifier, under torchvision's names, and linear layers on
    top.
    """

    head_name = "fc3"
    trunk: tuple[
        str, ...
    ]  # first parts of the names of what torchvision's weight files hold for it
    extra = True  # whether FedPGVC's two linear layers stand before the classifier
    pixels: int | None = None  # a side, to which images are resized

    def add_top(self, inputs: int, classes: int) -> None:
        """The two linear layers, each with ReLU, and the classifier of FedPGVC, section 6.4."""
        self.fc1, self.fc2 = nn.Linear(inputs, _EXTRA[0]), nn.Linear(*_EXTRA)
        self.fc3 = nn.Linear(_EXTRA[1], classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.pooled(channels_last(colour(resized(x, self.pixels))))
        return functional.relu(self.fc2(functional.relu(self.fc1(x)))) if self.extra else x

    def pooled(self, x: Tensor) -> Tensor:
        """What torchvision's classifier would get, [N, F]."""
        raise NotImplementedError


class ResNet18Network(TrunkNetwork):
    trunk = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")

    def __init__(self, classes: int, stem: str, extra: bool, pixels: int | None):
        super().__init__()
        whole = import_torchvision().models.resnet18(num_classes=classes)
        self.pixels = pixels
        for name in self.trunk:
            setattr(self, name, getattr(whole, name))
        self.pool = whole.maxpool
        if stem == "cifar":  # as in He et al. (2016), section 4.2
            self.pool = nn.Identity()
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        if extra:
            self.add_top(whole.fc.in_features, classes)
        else:
            self.extra, self.head_name, self.fc = False, "fc", whole.fc

    def pooled(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)


class VitB32Network(TrunkNetwork):
    trunk = ("class_token", "conv_proj", "encoder")

    def __init__(self, classes: int, pixels: int):
        super().__init__()
        whole = import_torchvision().models.vit_b_32(image_size=pixels)
        self.pixels = pixels
        for name in self.trunk:
            setattr(self, name, getattr(whole, name))
        self.add_top(whole.hidden_dim, classes)

    def pooled(self, x: Tensor) -> Tensor:
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        words = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        return self.encoder(words)[:, 0]

    def layers(self) -> Layers:
        """In a block the norm comes first, so it belongs to what precedes the block.

        What is added to the patches, class token and positions, belongs to the convolution that
        makes them.
        """
        blocks = weighted(self.encoder.layers, "encoder.layers.")
        rest = [
            (name, module)
            for name, module in weighted(self)
            if name not in ("conv_proj", "encoder")
        ]
        layers = grouped(
            [("conv_proj", self.conv_proj), *blocks, ("encoder.ln", self.encoder.ln), *rest]
        )
        layers[0][1].insert(1, nn.ParameterList([self.class_token, self.encoder.pos_embedding]))
        return layers


def resized(images: Tensor, size: int | None) -> Tensor:
    """Square images of `size` pixels a side, as torchvision's Resize makes them of tensors."""
    if size is None or images.shape[2:] == (size, size):
        return images
    return functional.interpolate(images, (size, size), mode="bilinear", antialias=True)


def colour(images: Tensor) -> Tensor:
    """Three channels: a grey one is repeated, so that a grey dataset has the same network and
    weight files.
    """
    return images.expand(-1, 3, -1, -1)


@dataclass
class TrunkSettings(ModelSettings):
    """A network whose trunk may start from torchvision's weights: from its cache, or from the file
    `weights`.
    """

    pretrained: bool = (
        False  # `weights` then is a file of torchvision's; else it holds the whole network
    )
    download: bool = False  # whether torchvision's file may be fetched when it is not in its cache
    architecture = ""  # torchvision's name

    def load_weights(self, model: Model) -> None:
        if not self.pretrained:
            return super().load_weights(model)
        if self.weights is not None:
            return load_trunk(
                model, Path(self.weights).expanduser(), f"model.weights={self.weights}"
            )
        return load_trunk(model, self._checkpoint(), "model.pretrained=true")

    def content_hash(self) -> str:
        if self.weights is not None:
            return super().content_hash()
        file = self._checkpoint()
        return f"{file.name} {sha256(file, 'model.pretrained=true')}"

    def _checkpoint(self) -> Path:
        return find_checkpoint(self.architecture, self.download)

    def _check_channels(self, name: str, shape: tuple[int, ...]) -> None:
        _, _, channels = image_size(name, shape, least=8)
        if channels not in (1, 3):
            raise bad_value(
                "model", name, f"needs images of 1 or 3 channels, this data's have {channels}"
            )


@dataclass
class ResNet18(TrunkSettings):
    """torchvision's ResNet-18.

    `extra` adds two linear layers of 512 and 256 units before the classifier, FedPGVC's network for
    CIFAR-100 and Tiny-ImageNet (section 6.4, "on top of the pre-trained models"). Without, it is
    torchvision's network as it is, which ECGR trains from random weights on LC25000.
    """

    stem: str = (
        "imagenet"  # 7x7 convolution of stride 2 and pooling; cifar: 3x3, for images of 32 pixels
    )
    extra: bool = True
    image_size: int | None = None  # resize images to this many pixels a side
    architecture = "resnet18"

    def build(self, shape: tuple[int, ...], classes: int) -> ResNet18Network:
        self._check_channels("resnet18", shape)
        require(self.stem in _STEMS, "model.stem", self.stem, f"choose from {', '.join(_STEMS)}")
        size, allowed = self.image_size, f"null or 8 to {_MOST_PIXELS} pixels are allowed"
        require(size is None or 8 <= size <= _MOST_PIXELS, "model.image_size", size, allowed)
        allowed = (
            "torchvision's weights are for a stem of 7x7, so imagenet is allowed with"
            " model.pretrained=true"
        )
        require(not self.pretrained or self.stem == "imagenet", "model.stem", self.stem, allowed)
        return ResNet18Network(classes, self.stem, self.extra, self.image_size)


@dataclass
class VitB32(TrunkSettings):
    """torchvision's ViT-B/32 with two linear layers of 512 and 256 units: FedPGVC's for CIFAR-100
    (section 6.4).
    """

    image_size: int = 224  # images are resized to this many pixels a side, a multiple of 32
    architecture = "vit_b_32"

    def build(self, shape: tuple[int, ...], classes: int) -> VitB32Network:
        self._check_channels("vit_b32", shape)
        size = self.image_size
        allowed = f"a multiple of 32, at most {_MOST_PIXELS}, is allowed"
        require(
            _PATCH <= size <= _MOST_PIXELS and size % _PATCH == 0, "model.image_size", size, allowed
        )
        allowed = (
            "torchvision's weights are for 224 pixels, so 224 is allowed with model.pretrained=true"
        )
        require(not self.pretrained or size == 224, "model.image_size", size, allowed)
        return VitB32Network(classes, size)

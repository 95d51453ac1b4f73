"""ResNet-18 and ViT-B/32 from torchvision, with or without the two linear layers that FedPGVC adds.

torchvision is imported when a network is built: it takes a second or more, and other models do not
need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.errors import bad_value, require
from fedbench.core.fields import choice, count
from fedbench.core.model import Layers, Model, grouped, weighted
from fedbench.core.torchvision_operators import import_torchvision
from fedbench.models.base import ModelSettings, image_size
from fedbench.models.cpu_kernels import channels_last
from fedbench.models.pretrained import find_checkpoint, load_trunk, sha256

_PATCH = 32  # pixels a side of ViT-B/32's patches
_MOST_PIXELS = 4096  # a side; batches of larger images do not fit into memory
_STEMS = ("imagenet", "cifar")
_EXTRA = (512, 256)  # widths of the two linear layers; FedPGVC does not say which it has


class TrunkNetwork(Model):
    """A torchvision network, under torchvision's names, with other linear layers on top."""

    head_name = "fc3"
    trunk: tuple[str, ...]  # torchvision's names of the modules that are kept
    extra = True  # whether FedPGVC's two linear layers come before the classifier
    pixels: int | None = None  # a side, to which images are resized
    frozen = False  # whether the trunk stays as it is

    def freeze(self) -> None:
        """Train the layers on top alone. The trunk's batch norm keeps its statistics, too."""
        self.frozen = True
        for name in self.trunk:
            getattr(self, name).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for name in self.trunk if self.frozen else ():
            part = getattr(self, name)
            if isinstance(part, nn.Module):
                part.eval()
        return self

    def add_top(self, inputs: int, classes: int) -> None:
        """Add the two linear layers and the classifier of FedPGVC, section 6.4."""
        self.fc1 = nn.Linear(inputs, _EXTRA[0])
        self.fc2 = nn.Linear(*_EXTRA)
        self.fc3 = nn.Linear(_EXTRA[1], classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.pooled(channels_last(colour(resized(x, self.pixels))))
        return functional.relu(self.fc2(functional.relu(self.fc1(x)))) if self.extra else x

    def pooled(self, x: Tensor) -> Tensor:
        """The input of torchvision's own classifier, [N, F]."""
        raise NotImplementedError


class ResNet18Network(TrunkNetwork):
    trunk = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")
    bn1: nn.Module
    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module
    layer4: nn.Module

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
            self.extra = False
            self.head_name = "fc"
            self.fc = whole.fc

    def pooled(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return functional.adaptive_avg_pool2d(x, 1).flatten(1)


class VitB32Network(TrunkNetwork):
    trunk = ("class_token", "conv_proj", "encoder")
    class_token: Tensor
    conv_proj: nn.Module
    encoder: Any  # torchvision's, with `layers`, `ln` and `pos_embedding`

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
        """A block begins with a norm, which so belongs to the layer before the block.

        The class token and the positions belong to the convolution that makes the patches.
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
    """Repeat a grey channel three times: grey images then have the network of coloured ones."""
    return images.expand(-1, 3, -1, -1)


@dataclass
class TrunkSettings(ModelSettings):
    """Settings of a network whose trunk may start from torchvision's weights.

    With `pretrained`, they come from the file `weights`, or else from torch hub's cache. Without,
    the file `weights` holds the whole network, as for other models.
    """

    pretrained: bool = False
    download: bool = False  # whether torchvision's file may be downloaded into the cache
    frozen: bool = False  # whether the trunk stays as it is, and the layers on top train alone
    architecture = ""  # torchvision's name

    def network(
        self,
        shape: tuple[int, ...],
        classes: int,
        projection: int | None = None,
        vocabulary: int | None = None,
    ) -> Model:
        given = self.pretrained or self.weights is not None
        rule = "must be false without model.pretrained=true or model.weights: its trunk is random"
        require(given or not self.frozen, "model.frozen", "true", rule)
        model = super().network(shape, classes, projection, vocabulary)
        assert isinstance(model, TrunkNetwork)
        if self.frozen:
            model.freeze()
        return model

    def load_weights(self, model: Model) -> None:
        if not self.pretrained:
            super().load_weights(model)
            return
        assert isinstance(model, TrunkNetwork)
        if self.weights is not None:
            file, subject = Path(self.weights).expanduser(), f"model.weights={self.weights}"
        else:
            file, subject = self._checkpoint(), "model.pretrained=true"
        load_trunk(model, model.trunk, file, subject)

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

    `stem=imagenet` begins with a 7x7 convolution of stride 2 and pooling, `cifar` with a 3x3
    convolution for images of 32 pixels.
    """

    stem: str = choice("imagenet", _STEMS)
    extra: bool = True
    # Resize images to this many pixels a side.
    image_size: int | None = count(None, at_least=8, at_most=_MOST_PIXELS)
    architecture = "resnet18"

    def build(self, shape: tuple[int, ...], classes: int) -> ResNet18Network:
        self._check_channels("resnet18", shape)
        fits = not self.pretrained or self.stem == "imagenet"
        rule = "must be imagenet with model.pretrained=true: torchvision's weights are for 7x7"
        require(fits, "model.stem", self.stem, rule)
        return ResNet18Network(classes, self.stem, self.extra, self.image_size)


@dataclass
class VitB32(TrunkSettings):
    """torchvision's ViT-B/32 and two linear layers of 512 and 256 units.

    FedPGVC has it for CIFAR-100 (section 6.4). Images are resized to `image_size` pixels a side.
    """

    image_size: int = count(224, at_least=_PATCH, at_most=_MOST_PIXELS)
    architecture = "vit_b_32"

    def build(self, shape: tuple[int, ...], classes: int) -> VitB32Network:
        self._check_channels("vit_b32", shape)
        size = self.image_size
        require(size % _PATCH == 0, "model.image_size", size, f"must be a multiple of {_PATCH}")
        rule = "must be 224 with model.pretrained=true: torchvision's weights are for 224 pixels"
        require(not self.pretrained or size == 224, "model.image_size", size, rule)
        return VitB32Network(classes, size)

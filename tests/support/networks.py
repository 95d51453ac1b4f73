"""Every network with the shape of an example, and what tests ask of one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.models import Cnn5, CnnBn, LeNet, Linear, Lstm, Mlp, Model, ModelSettings, ResNet18

GRAY, COLOUR, SENTENCES = (28, 28, 1), (32, 32, 3), (2, 1 + 12)
VOCABULARY = 50
TRUNK = 11_689_512 - 513_000  # torchvision's ResNet-18 for 1,000 classes, without its classifier
# Every model, the shape of an example, and its parameters counted by hand for 10 classes.
NETWORKS = [
    (Linear(), (64,), 64 * 10 + 10),
    (Linear(), GRAY, 784 * 10 + 10),
    (Mlp(), GRAY, 199_210),  # as McMahan et al. (2017) report for their 2NN
    (Mlp(hidden=[64, 32]), (64,), 65 * 64 + 65 * 32 + 33 * 10),
    (LeNet(), GRAY, 61_706),  # as the ECGR authors' code says
    (LeNet(), COLOUR, 76 * 6 + 151 * 16 + 401 * 120 + 121 * 84 + 85 * 10),
    (LeNet(batch_norm=True), GRAY, 61_706 + 2 * (6 + 16)),
    (LeNet(), (20, 30, 2), 51 * 6 + 151 * 16 + (16 * 3 * 5 + 1) * 120 + 121 * 84 + 85 * 10),
    (Cnn5(), COLOUR, 62_006),
    (Cnn5(), GRAY, 26 * 6 + 151 * 16 + 257 * 120 + 121 * 84 + 85 * 10),
    (
        CnnBn(),
        COLOUR,
        28 * 32 + 9 * (32 * 64 + 64 * 128 + 128**2 + 128 * 256 + 256**2) + 2 * 832 + 40_960,
    ),
    (
        CnnBn(),
        (9, 12, 1),
        10 * 32 + 9 * (32 * 64 + 64 * 128 + 128**2 + 128 * 256 + 256**2) + 2 * 832 + 2_560,
    ),
    (ResNet18(stem="cifar", extra=False), GRAY, TRUNK - 64 * 3 * (49 - 9) + 513 * 10),
    (
        Lstm(),
        SENTENCES,
        50 * 100 + 512 * (100 + 128 + 2) + 512 * (2 * 128 + 2) + 513 * 128 + 129 * 128 + 129 * 10,
    ),
]
IDS = [f"{type(settings).__name__}-{'x'.join(map(str, shape))}" for settings, shape, _ in NETWORKS]
every_network = pytest.mark.parametrize(("settings", "shape", "parameters"), NETWORKS, ids=IDS)


def batch(shape: tuple[int, ...], count: int = 5, dtype: torch.dtype = torch.float32) -> Tensor:
    """Images come as the engine gives them: NHWC memory. A third of the pixels is a flat
    background.
    """
    if len(shape) == 2:
        return sentences(count, shape[1] - 1)
    x = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    x[:, : shape[0] // 3] = -0.4
    x = x.to(dtype)
    return x.permute(0, 3, 1, 2) if len(shape) == 3 else x


def sentences(count: int, longest: int) -> Tensor:
    """Pairs of sentences of all lengths from one word on: the length, word numbers from 1 on,
    padding.
    """
    generator = torch.Generator().manual_seed(0)
    lengths = 1 + torch.arange(2 * count).view(count, 2, 1) % longest
    words = torch.randint(1, VOCABULARY, (count, 2, longest), generator=generator)
    return torch.cat([lengths, words * (torch.arange(longest) < lengths)], dim=2)


def build(settings: ModelSettings, shape: tuple[int, ...], classes: int = 10) -> Model:
    torch.manual_seed(1)
    return settings.network(
        shape, classes, vocabulary=VOCABULARY if isinstance(settings, Lstm) else None
    )


def outline(settings: ModelSettings, shape: tuple[int, ...], classes: int = 10) -> Model:
    """The network without values, for what only its shapes tell: large ones take no time."""
    with torch.device("meta"):
        return build(settings, shape, classes)


def example_shape(settings: ModelSettings) -> tuple[int, ...]:
    return SENTENCES if isinstance(settings, Lstm) else COLOUR


def gradients(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    functional.cross_entropy(model(x), torch.arange(len(x)) % 10).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def close(actual: Tensor, exact: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal up to float32 rounding, as a share of the largest entry."""
    return (actual.double() - exact).abs().max() <= tolerance * exact.abs().max()

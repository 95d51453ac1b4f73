"""What the engine needs of a network: features, a head, and its layers in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

import torch.nn.functional as functional
from torch import Tensor, nn

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)

Layers = list[tuple[str, list[nn.Module]]]


class Model(nn.Module):
    """A feature extractor and a head. Module names are an interface: weights files use them."""

    head_name: str  # the attribute that holds the classifier, e.g. "fc3"
    projected = False  # whether a projection lies between features and head

    def features(self, x: Tensor) -> Tensor:
        """The network's features of its input, [N, F]."""
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        """The input of the head: the features, or their projection."""
        features = self.features(x)
        if not self.projected:
            return features
        return self.projection2(functional.relu(self.projection1(features)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))

    def add_projection(self, size: int) -> None:
        """Put MOON's projection before the head: two linear layers with ReLU between them.

        Submodules keep the order of the computation, because `layers` reads it from there.
        """
        old = self._modules.pop(self.head_name)
        assert isinstance(old, nn.Linear)
        width = old.in_features
        self.projection1 = nn.Linear(width, width)
        self.projection2 = nn.Linear(width, size)
        new = nn.Linear(size, old.out_features, bias=old.bias is not None)
        setattr(self, self.head_name, new)
        self.projected = True

    @property
    def head(self) -> nn.Module:
        return getattr(self, self.head_name)

    def layers(self) -> Layers:
        """The layers in order, the head last. A norm belongs to the layer of the module before it.

        The order is that in which the constructor sets the submodules. A network that computes in
        another order, or has parameters of its own outside its submodules, overrides this method.
        """
        return grouped(weighted(self))


def weighted(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The named modules that have weights or buffers, in the order of the constructors."""
    for name, child in module.named_children():
        if any(True for _ in chain(child.parameters(recurse=False), child.buffers(recurse=False))):
            yield prefix + name, child  # with everything inside: an attention is one layer
        else:
            yield from weighted(child, f"{prefix}{name}.")


def grouped(modules: Iterable[tuple[str, nn.Module]]) -> Layers:
    """One layer for every module, together with the norms that follow it."""
    layers: Layers = []
    for name, module in modules:
        if isinstance(module, _NORMS) and layers:
            layers[-1][1].append(module)
        else:
            layers.append((name, [module]))
    return layers

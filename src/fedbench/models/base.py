"""What every network declares (its layers in order and its head), its settings, and weights from a
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch.nn.functional as functional
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.files import file_hash, require_file, unreadable

_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)
_NAMES_SHOWN, _MOST_NAMES_SHOWN = 3, 20  # an error stays one line that can be read

Layers = list[tuple[str, list[nn.Module]]]


class Model(nn.Module):
    """A feature extractor and a head. Module names are an interface: weights files use them."""

    head_name: str  # the attribute that holds the classifier, e.g. "fc3"
    projected = False  # whether a projection stands between features and head

    def features(self, x: Tensor) -> Tensor:
        """What the network itself makes of its input, [N, F]."""
        raise NotImplementedError

    def embed(self, x: Tensor) -> Tensor:
        """The input of the head: the features, or their projection."""
        features = self.features(x)
        return (
            self.projection2(functional.relu(self.projection1(features)))
            if self.projected
            else features
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x))

    def add_projection(self, size: int) -> None:
        """Two linear layers with ReLU between, and the classifier on top of them, as MOON's authors
        have it.

        Submodules keep the order of the computation, because `layers` reads it from there.
        """
        old = self._modules.pop(self.head_name)
        width, bias = old.in_features, old.bias is not None
        self.projection1, self.projection2 = nn.Linear(width, width), nn.Linear(width, size)
        setattr(self, self.head_name, nn.Linear(size, old.out_features, bias=bias))
        self.projected = True

    @property
    def head(self) -> nn.Module:
        return getattr(self, self.head_name)

    def layers(self) -> Layers:
        """The layers in order, the head last. A norm belongs to the layer of the module before it.

        This reads them from the order in which the constructors set the submodules. A network that
        runs in another order, or has parameters outside of its layers' modules, declares its layers
        itself.
        """
        return grouped(weighted(self))


def weighted(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules with weights or buffers of their own and their names, in the order of the
    constructors.
    """
    for name, child in module.named_children():
        if any(True for _ in chain(child.parameters(recurse=False), child.buffers(recurse=False))):
            yield prefix + name, child  # with all that is inside: an attention is one layer
        else:
            yield from weighted(child, f"{prefix}{name}.")


def grouped(modules: Iterable[tuple[str, nn.Module]]) -> Layers:
    """Every module is a layer with the norms that follow it."""
    layers: Layers = []
    for name, module in modules:
        if isinstance(module, _NORMS) and layers:
            layers[-1][1].append(module)
        else:
            layers.append((name, [module]))
    return layers


@dataclass
class ModelSettings:
    """The fields that all models share. A subclass is a model's configuration and builds its
    network.
    """

    weights: str | None = (
        None  # a safetensors file to start from, named as in the network's state dict
    )
    projection: int | None = None  # width of a projection before the head; MOON's is 256

    # whether an example is sentences of word numbers; `build` then gets the vocabulary's size
    reads_words = False

    def network(
        self,
        shape: tuple[int, ...],
        classes: int,
        projection: int | None = None,
        vocabulary: int | None = None,
    ) -> Model:
        """The network, with the projection that the model or the algorithm asks for."""
        size = self.projection if self.projection is not None else projection
        require(
            size is None or size >= 1,
            "model.projection",
            size,
            "an integer of at least 1 is allowed",
        )
        if vocabulary is not None and not self.reads_words:
            own = type(self).__name__.lower()
            raise bad_value(
                "model",
                own,
                "this data is sentences of word numbers, for which model=lstm is allowed",
            )
        model = (
            self.build(shape, classes, vocabulary)
            if self.reads_words
            else self.build(shape, classes)
        )
        if size is not None:
            model.add_projection(size)
        return model

    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """The network for examples of shape (H, W, C) or (F,), with random initial weights."""
        raise NotImplementedError

    def load_weights(self, model: Model) -> None:
        """Start from the file `weights`, if there is one."""
        if self.weights is not None:
            load_weights(model, self.weights)

    def content_hash(self) -> str:
        """Hash of the bytes of the file to start from: it enters a run's identity by its
        contents.
        """
        return file_hash(Path(self.weights).expanduser(), _subject(self.weights))


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy the tensors of a safetensors file into the model: exactly its state dict's names and
    shapes.
    """
    expected = model.state_dict()
    found = read_safetensors(path, _subject(path))
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    if missing or unexpected:
        differences = [("lacks", missing), ("has the unknown", unexpected)]
        wrong = " and ".join(f"{verb} {shorten(names)}" for verb, names in differences if names)
        raise BadInput(
            f"{_subject(path)}: {wrong}; the model's tensors are"
            f" {shorten([*expected], _MOST_NAMES_SHOWN)}"
        )
    for name, tensor in expected.items():
        if found[name].shape != tensor.shape:
            shapes = (
                f"{name} is {_sizes(found[name])}, the model needs {_sizes(tensor)} for this data"
            )
            raise BadInput(f"{_subject(path)}: {shapes}")
        if found[name].is_floating_point() != tensor.is_floating_point():
            kinds = f"{name} is {found[name].dtype}, the model needs {tensor.dtype}"
            raise BadInput(f"{_subject(path)}: {kinds}".replace("torch.", ""))
        if not found[name].isfinite().all():
            raise BadInput(
                f"{_subject(path)}: {name} has NaN or infinite values, needs finite numbers"
            )
    model.load_state_dict(found)  # copies in place, so views into a flat vector stay views


def read_safetensors(path: str | Path, subject: str) -> dict[str, Tensor]:
    """The tensors of a file. A bad file is a BadInput that starts with `subject`."""
    file = Path(path).expanduser()
    require_file(file, subject)
    try:
        file.open("rb").close()  # says what is wrong with a path; the reader itself does not
        return load_file(file)
    except OSError as error:
        raise unreadable(subject, error) from error
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        allowed = "needs one such as a run's model.safetensors"
        raise BadInput(f"{subject}: not a safetensors file ({reason}); {allowed}") from error


def _subject(path: str | Path) -> str:
    return f"model.weights={path}"


def shorten(names: list[str], shown: int = _NAMES_SHOWN) -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _sizes(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def image_size(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Height, width and channels of an example, which must be an image of at least `least` pixels a
    side.
    """
    needed = f"needs images of at least {least}x{least} pixels"
    got = "x".join(map(str, shape))
    if len(shape) != 3:
        got = f"an example of this data is {got} numbers"
        raise bad_value("model", model, f"{needed}, {got}; linear and mlp take any")
    height, width, channels = shape
    if min(height, width) < least:
        raise bad_value("model", model, f"{needed}, this data's are {got}; linear and mlp take any")
    return height, width, channels

"""The settings that every network shares, and initial weights from a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fedbench.core.errors import BadInput, bad_value
from fedbench.core.fields import count
from fedbench.core.files import file_hash, require_file, unreadable
from fedbench.core.model import Model

# How many names of tensors a message lists, so that it stays readable.
_NAMES_SHOWN = 3
_MOST_NAMES_SHOWN = 20


@dataclass
class ModelSettings:
    """The settings that all models share. A subclass has those of one model and builds it.

    `LeNet().network(shape=(28, 28, 1), classes=10)` is a `Model` with random weights.
    """

    weights: str | None = None  # a safetensors file to start from, with the state dict's names
    projection: int | None = count(None)  # width of a projection before the head; MOON's is 256

    def network(
        self,
        shape: tuple[int, ...],
        classes: int,
        projection: int | None = None,
        vocabulary: int | None = None,
    ) -> Model:
        """The network, with the projection that the model or else the algorithm asks for.

        `vocabulary` is the number of different words, for data that is sentences.
        """
        if vocabulary is None:
            model = self.build(shape, classes)
        else:
            model = self.build_for_words(shape, classes, vocabulary)
        size = self.projection if self.projection is not None else projection
        if size is not None:
            model.add_projection(size)
        return model

    def build(self, shape: tuple[int, ...], classes: int) -> Model:
        """The network for examples of shape (H, W, C) or (F,), with random initial weights."""
        raise NotImplementedError

    def build_for_words(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> Model:
        """The network for examples that are sentences of word numbers."""
        name = type(self).__name__.lower()
        raise bad_value("model", name, "must be lstm: this data is sentences of word numbers")

    def load_weights(self, model: Model) -> None:
        """Start from the file `weights`, if there is one."""
        if self.weights is not None:
            load_weights(model, self.weights)

    def content_hash(self) -> str:
        """The hash of the file `weights`, which enters a run's identity in place of its name."""
        assert self.weights is not None
        return file_hash(Path(self.weights).expanduser(), _subject(self.weights))


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy a safetensors file into the model. Names and shapes must be those of its state dict."""
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
                f"{_subject(path)}: {name} has NaN or infinite values; all must be finite"
            )
    model.load_state_dict(found)  # copies in place, so views into a flat vector stay views


def read_safetensors(path: str | Path, subject: str) -> dict[str, Tensor]:
    """The tensors of a file. A bad file is a BadInput that starts with `subject`."""
    file = Path(path).expanduser()
    require_file(file, subject)
    try:
        file.open("rb").close()  # reports what is wrong with a path; the reader does not
        return load_file(file)
    except OSError as error:
        raise unreadable(subject, error) from error
    except SafetensorError as error:
        reason = " ".join(str(error).split())
        raise BadInput(
            f"{subject}: must be a safetensors file, such as a run's model.safetensors ({reason})"
        ) from error


def _subject(path: str | Path) -> str:
    return f"model.weights={path}"


def shorten(names: list[str], shown: int = _NAMES_SHOWN) -> str:
    """The first names, and how many more there are."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def _sizes(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"


def image_size(model: str, shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Height, width and channels of the images, whose sides must have at least `least` pixels."""
    needed = f"needs images of at least {least}x{least} pixels"
    got = "x".join(map(str, shape))
    if len(shape) != 3:
        got = f"an example of this data is {got} numbers"
        raise bad_value("model", model, f"{needed}, {got}; linear and mlp take any")
    height, width, channels = shape
    if min(height, width) < least:
        raise bad_value("model", model, f"{needed}, this data's are {got}; linear and mlp take any")
    return height, width, channels

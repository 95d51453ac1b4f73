"""Bring your own data: one npz file with x_train, y_train, x_test and y_test."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedbench.core.errors import BadInput, bad_value
from fedbench.core.files import file_hash
from fedbench.data.arrays import read_npz
from fedbench.data.dataset import Dataset, DatasetSettings, assemble

_SHAPES = "[N, features], [N, H, W] or [N, H, W, C]"
_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


@dataclass(frozen=True)
class NpzDataset(DatasetSettings):
    """Settings of a file: x is [N, features], [N, H, W] or [N, H, W, C]; labels are integers from
    0.

    uint8 images are standardised by the training images' mean and deviation; every other x becomes
    float32 and is used as it is. `subset` takes a seeded, stratified part of the training set; the
    test set stays whole.
    """

    path: str | None = None
    name: str = "npz"

    def load(self, seed: int) -> Dataset:
        subject = self._subject()
        x_train, y_train, x_test, y_test = read_npz(self._file(), _ARRAYS, subject)
        try:
            for which, x, labels in (("train", x_train, y_train), ("test", x_test, y_test)):
                _check(which, x, labels)
            _check_pair(x_train, x_test)
            train_x, test_x = _as_examples(x_train, "x_train"), _as_examples(x_test, "x_test")
            classes = _count_classes(y_train, y_test)
        except ValueError as error:
            raise BadInput(f"{subject}: {error}") from error
        channels_first = _is_channels_first(x_train)
        return assemble(
            self.name,
            (train_x, y_train.astype(np.int64)),
            (test_x, y_test.astype(np.int64)),
            classes,
            subset=self.subset,
            seed=seed,
            notes=["images read as [N, C, H, W]" if channels_first else ""],
        )

    def content_hash(self) -> str:
        """Hash of the file's bytes."""
        return file_hash(self._file(), self._subject())

    def _subject(self) -> str:
        return f"data.path={self.path}"

    def _file(self) -> Path:
        if not self.path:
            raise bad_value(
                "data.path", self.path, f"must be a .npz file with {', '.join(_ARRAYS)}"
            )
        return Path(self.path).expanduser()


def _check(which: str, x: np.ndarray, labels: np.ndarray) -> None:
    if x.dtype.kind not in "fiub":
        raise ValueError(f"x_{which} is {x.dtype}, must be numbers")
    if x.ndim not in (2, 3, 4) or 0 in x.shape:
        raise ValueError(f"x_{which} has shape {list(x.shape)}, must be {_SHAPES}, none of them 0")
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise ValueError(
            f"y_{which} is {labels.dtype} {list(labels.shape)}, must be a list of integers from 0"
        )
    if len(x) != len(labels):
        raise ValueError(
            f"x_{which} has {len(x)} examples and y_{which} {len(labels)} labels, must be as many"
        )
    if labels.min() < 0:
        raise ValueError(f"y_{which} has the label {labels.min()}, must be integers from 0")


def _check_pair(x_train: np.ndarray, x_test: np.ndarray) -> None:
    if x_train.shape[1:] != x_test.shape[1:]:
        shapes = f"{list(x_train.shape[1:])} in x_train and {list(x_test.shape[1:])} in x_test"
        raise ValueError(f"examples have shape {shapes}, must be the same")
    # Standardising one set and not the other would go unnoticed.
    if (x_train.dtype == np.uint8) != (x_test.dtype == np.uint8):
        raise ValueError(
            f"x_train is {x_train.dtype} and x_test {x_test.dtype}, must both be uint8, or neither"
        )


def _as_examples(x: np.ndarray, which: str) -> np.ndarray:
    if x.dtype != np.uint8 or x.ndim == 2:
        # A float64 beyond float32 becomes infinite and is refused here.
        with np.errstate(over="ignore"):
            x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise ValueError(f"{which} has NaN or infinite values, must be finite float32 numbers")
    if x.ndim == 3:
        x = x[..., None]
    return np.ascontiguousarray(np.moveaxis(x, 1, 3)) if _is_channels_first(x) else x


def _is_channels_first(x: np.ndarray) -> bool:
    # PyTorch's own layout, [N, 3, 32, 32], is accepted where it cannot mean anything else: one or
    # three channels in front of a square, which as [N, H, W, C] would be an image one or three
    # pixels high with as many channels as columns.
    return x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] > 4


def _count_classes(y_train: np.ndarray, y_test: np.ndarray) -> int:
    largest = int(max(y_train.max(), y_test.max()))
    examples = len(y_train) + len(y_test)
    # An identifier, not a class: the model's last layer would have a row for each.
    if largest >= examples:
        raise ValueError(
            f"{examples} examples have the label {largest}, must be classes numbered from 0"
        )
    return max(largest + 1, 2)

"""What every dataset becomes: plain arrays in memory, with what a run needs to know beside them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedbench.core.errors import require
from fedbench.core.rounding import largest_remainder
from fedbench.core.seeding import numpy_generator

Examples = tuple[np.ndarray, np.ndarray]  # x and labels of one set, of equal length

_MAPPED_IMAGES = 128  # of a set on the disk, looked at in a fingerprint
_STATISTICS_CHUNK = 1 << 22  # values counted at a time, so that memory stays bounded


@dataclass(frozen=True)
class Dataset:
    """Examples as arrays. uint8 images are standardised by `mean` and `std`; other x is used as it
    is.

    Large images are memory maps (`np.memmap`), of which only the touched parts are read from the
    disk. Pairs of sentences are int32 [N, 2, 1 + length]: a sentence's length, then its words' ids
    (0 padding, 1 unknown).
    """

    name: str
    # Images [N, H, W, C] as uint8 or float32, vectors [N, F] as float32, or pairs.
    train_x: np.ndarray
    train_y: np.ndarray  # int64 [N]
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    source: str  # "real" or "synthetic"
    mean: tuple[float, ...] | None  # of x / 255, one for each channel; None for float data
    std: tuple[float, ...] | None
    note: str  # what a reader of a result must know, else ""
    # Number of word ids, with those for padding and unknown words; None for numbers.
    vocabulary: int | None = None
    # Hash of what decides the numbers beside the arrays, such as the vocabulary's words.
    content: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train_x.shape[1:]

    def fingerprint(self) -> str:
        """A short hash of every label and every example."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # Processors have instructions for sha256: 50,000 images of CIFAR take 0.1 s.
        digest = hashlib.sha256()
        for x, labels in ((self.train_x, self.train_y), (self.test_x, self.test_y)):
            if isinstance(x, np.memmap):  # of these, `content` has the checksums
                x = x[np.linspace(0, len(x) - 1, min(len(x), _MAPPED_IMAGES)).astype(np.int64)]
            digest.update(f"{len(labels)} {x.shape} {x.dtype.str}".encode())
            digest.update(np.ascontiguousarray(labels).data)
            digest.update(np.ascontiguousarray(x).data)
        digest.update(self.content.encode())
        return digest.hexdigest()[:16]


def assemble(
    name: str,
    train: Examples,
    test: Examples,
    classes: int,
    *,
    source: str = "real",
    subset: int | None = None,
    seed: int = 0,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    notes: Sequence[str] = (),
    vocabulary: int | None = None,
    content: str = "",
) -> Dataset:
    """The last step of every `load`: take the training subset, and determine mean and standard
    deviation.
    """
    notes = [note for note in notes if note]
    if subset is not None:
        chosen = stratified_subset(train[1], subset, numpy_generator(seed, "subset"))
        train = (train[0][chosen], train[1][chosen])
        notes.append(f"subset of {subset:,} training examples")
    used_mean, used_std = _standardisation(train[0], mean, std)
    note = "; ".join(notes)
    return Dataset(
        name, *train, *test, classes, source, used_mean, used_std, note, vocabulary, content
    )


def stratified_subset(labels: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Sorted indices of `size` random examples that keep the class shares (largest remainder)."""
    check_subset(size, len(labels))
    totals = np.bincount(labels)
    quota = largest_remainder(totals / totals.sum(), size)
    # Sorting a shuffled order by label, stably, puts every class in random order; the first `quota`
    # of each are taken.
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(totals) - totals, totals)
    return np.sort(order[rank < quota[labels[order]]])


def check_subset(size: int, available: int) -> None:
    rule = (
        f"must be from 1 to {available}, the number of training examples; data.subset=null takes"
        " all of them"
    )
    require(1 <= size <= available, "data.subset", size, rule)


def stand_in_sizes(
    classes: int, train_size: int, test_size: int, subset: int | None
) -> tuple[int, int]:
    """Training and test examples of a stand-in; `subset` shrinks both."""
    if subset is None:
        return train_size, test_size
    check_subset(subset, train_size)
    # Ten test examples a class keep an accuracy readable.
    return subset, min(test_size, max(test_size * subset // train_size, 10 * classes))


def size_note(which: str, found: int, expected: int, unit: str = "images") -> str:
    """Somebody's own selection under the right name is usable, but a reader of the numbers must
    know.
    """
    return "" if found == expected else f"{which} set of {found:,} {unit} instead of {expected:,}"


def check_statistics(
    mean: Sequence[float] | None, std: Sequence[float] | None, channels: int
) -> None:
    """Given mean and deviation must fit the images."""
    for key, values in (("data.mean", mean), ("data.std", std)):
        whole = values is None or (len(values) == channels and bool(np.isfinite(values).all()))
        rule = f"must be {channels} finite numbers, one for each channel, or null"
        require(whole, key, values, rule)
    require(std is None or min(std) > 0, "data.std", std, "must be above 0")


def _standardisation(
    x: np.ndarray, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    if x.dtype != np.uint8:
        for key, values in (("data.mean", mean), ("data.std", std)):
            require(values is None, key, values, "must be null: float values are used as they are")
        return None, None
    check_statistics(mean, std, x.shape[-1])
    if mean is None or std is None:
        own_mean, own_std = channel_statistics(x)
        mean = own_mean if mean is None else mean
        std = own_std if std is None else std
    return tuple(map(float, mean)), tuple(map(float, std))


def channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of x / 255 for each channel, from exact counts of the 256
    levels.
    """
    channels = images.shape[-1]
    counts = np.zeros((channels, 256), dtype=np.int64)
    step = max(1, _STATISTICS_CHUNK // math.prod(images.shape[1:]))
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        for channel in range(channels):
            counts[channel] += np.bincount(chunk[..., channel].ravel(), minlength=256)
    levels = np.arange(256) / 255
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt((shares * (levels - mean[:, None]) ** 2).sum(axis=1))
    # A channel that never changes carries nothing: dividing it by one keeps it at zero instead of
    # NaN.
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())

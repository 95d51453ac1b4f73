"""What every dataset becomes: plain arrays in memory, with what a run needs to know beside them."""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fedbench.core.errors import BadInput, require
from fedbench.core.fields import count, number
from fedbench.core.rounding import largest_remainder
from fedbench.core.seeding import LARGEST_SEED, numpy_generator
from fedbench.data.arrays import MappedRows

Examples = tuple[np.ndarray, np.ndarray]  # x and labels of one set, of equal length

# Files under a dataset's name that fedbench-data did not prepare, and so did not check.
UNVERIFIED = "real, unverified"
_KINDS = (np.uint8, np.float32, np.int32)  # of inputs
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
    train_x: np.ndarray | MappedRows
    train_y: np.ndarray  # int64 [N]
    test_x: np.ndarray
    test_y: np.ndarray
    classes: int
    source: str  # "real", UNVERIFIED or "synthetic"
    mean: tuple[float, ...] | None  # of x / 255, one for each channel; None for float data
    std: tuple[float, ...] | None
    note: str  # what a reader of a result must know, else ""
    # Number of word ids, with those for padding and unknown words; None for numbers.
    vocabulary: int | None = None
    # Hash of what decides the numbers beside the arrays, such as the vocabulary's words.
    content: str = ""
    # The validation set, taken from the training set (`data.validation`); None without one.
    val_x: np.ndarray | MappedRows | None = None
    val_y: np.ndarray | None = None
    pooled: bool = False  # whether the test set is some of the training examples

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return self.train_x.shape[1:]

    def split(self, name: str) -> tuple[np.ndarray | MappedRows, np.ndarray]:
        """The inputs and the labels of one set: train, val or test."""
        if name == "train":
            return self.train_x, self.train_y
        if name == "test":
            return self.test_x, self.test_y
        assert self.val_x is not None
        assert self.val_y is not None
        return self.val_x, self.val_y

    def fingerprint(self) -> str:
        """A short hash of every label and every example."""
        return self._fingerprints[0]

    def training_fingerprint(self) -> str:
        """A short hash of the training set alone, on which a partition is drawn."""
        return self._fingerprints[1]

    @cached_property
    def _fingerprints(self) -> tuple[str, str]:
        # Processors have instructions for sha256: 50,000 images of CIFAR take 0.1 s.
        digest = hashlib.sha256()
        _add_examples(digest, self.train_x, self.train_y)
        training = digest.copy()
        if isinstance(self.train_x, np.memmap | MappedRows):
            training.update(self.content.encode())
        if not self.pooled:
            _add_examples(digest, self.test_x, self.test_y)
        if self.val_x is not None and self.val_y is not None:
            _add_examples(digest, self.val_x, self.val_y)
        digest.update(self.content.encode())
        return digest.hexdigest()[:16], training.hexdigest()[:16]


def _add_examples(digest: hashlib._Hash, x: np.ndarray | MappedRows, labels: np.ndarray) -> None:
    if isinstance(x, np.memmap | MappedRows):  # of these, `content` has the checksums
        if isinstance(x, MappedRows):
            digest.update(np.ascontiguousarray(x.rows).data)
        x = x[np.linspace(0, len(x) - 1, min(len(x), _MAPPED_IMAGES)).astype(np.int64)]
    digest.update(f"{len(labels)} {x.shape} {x.dtype.str}".encode())
    digest.update(np.ascontiguousarray(labels).data)
    digest.update(np.ascontiguousarray(x).data)


@dataclass(frozen=True, kw_only=True)
class DatasetSettings(ABC):
    """The settings that every dataset has. A subclass has those of one kind, and reads it."""

    # N = a stratified random part of the training set. Each kind checks it against its size.
    subset: int | None = None
    # Decides which examples are in the subset and in the validation set; None = `seed`.
    subset_seed: int | None = count(None, at_least=0, at_most=LARGEST_SEED)
    # The share of the training set that no client trains on.
    validation: float = number(0.0, at_least=0, below=1)
    # Whether training and test examples are shared out together: clients' own tests are the test.
    pool: bool = False

    @abstractmethod
    def load(self, seed: int) -> Dataset:
        """The examples, after the subset was taken; see `assemble`. Nothing else is random."""

    def content_hash(self) -> str:
        """What enters a run's id in place of a file's name, for kinds with a `path`.

        Nothing by default: the fingerprint has every example.
        """
        return ""

    def for_run(self, seed: int) -> Dataset:
        """What a run with this seed uses: the examples, with a validation set if it has one."""
        own = seed if self.subset_seed is None else self.subset_seed
        data = self.load(own)
        problem = _contract_problem(data)
        if problem:
            raise BadInput(f"data: {type(self).__name__}.load gave {problem}")
        return with_validation(pooled(data) if self.pool else data, self.validation, own)


def _contract_problem(data: Dataset) -> str:
    """What a user's own `load` did wrong, which would else show much later, or never."""
    for which in ("train", "test"):
        x, labels = data.split(which)
        if x.dtype not in _KINDS or len(x.shape) not in (2, 3, 4):
            return f"{which}_x as {x.dtype} {list(x.shape)}, must be as `Dataset` says"
        if labels.dtype != np.int64 or labels.shape != (len(x),) or not len(x):
            found = f"{which}_y as {labels.dtype} {list(labels.shape)}"
            return f"{found}, must be int64 [{len(x)}], a label of each example"
        if labels.min() < 0 or labels.max() >= data.classes:
            found = f"labels from {labels.min()} to {labels.max()} in {which}_y"
            return f"{found}, must be 0 to {data.classes - 1}"
    if data.train_x.dtype == np.uint8 and (data.mean is None or data.std is None):
        return "uint8 images without mean and deviation, which `assemble` determines"
    return ""


def pooled(data: Dataset) -> Dataset:
    """The dataset with its test examples, after the others, among the training examples.

    `tested_on` replaces its test set once clients have put their own tests aside.
    """
    note = "; ".join(filter(None, [data.note, "training and test examples pooled"]))
    return replace(
        data,
        train_x=np.concatenate([np.asarray(data.train_x), data.test_x]),
        train_y=np.concatenate([data.train_y, data.test_y]),
        note=note,
        pooled=True,
    )


def tested_on(data: Dataset, chosen: np.ndarray) -> Dataset:
    """The dataset with some of its training examples, which nobody trains on, as the test set."""
    return replace(data, test_x=data.train_x[chosen], test_y=data.train_y[chosen])


def with_validation(data: Dataset, share: float, seed: int) -> Dataset:
    """The dataset with a stratified random share of its training examples as validation set.

    The classes have the same shares in both parts, and all other examples keep their order.
    """
    if share == 0:
        return data
    examples = len(data.train_y)
    size = round(share * examples)
    rule = f"must leave at least one of {examples:,} training examples on either side"
    require(0 < size < examples, "data.validation", share, rule)
    chosen = stratified_subset(data.train_y, size, numpy_generator(seed, "validation"))
    rest = np.delete(np.arange(examples), chosen)
    x, labels = data.train_x, data.train_y
    return replace(
        data,
        train_x=_rows(x, rest),
        train_y=labels[rest],
        val_x=_rows(x, chosen),
        val_y=labels[chosen],
    )


def _rows(x: np.ndarray | MappedRows, rows: np.ndarray) -> np.ndarray | MappedRows:
    """Some examples; those of a memory map stay on the disk."""
    return MappedRows(x, rows) if isinstance(x, np.memmap) else x[rows]


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

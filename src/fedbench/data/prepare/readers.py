"""Readers of datasets that come as a few files of arrays: idx (MNIST and its kin) and MATLAB's mat
(SVHN).
"""

from __future__ import annotations

import gzip
import io
import math
import zlib

import numpy as np

from fedbench.core.errors import BadInput
from fedbench.data.dataset import Examples
from fedbench.data.files import one_line
from fedbench.data.info import PARTS
from fedbench.data.prepare.archives import Original
from fedbench.data.prepare.store import Workshop

_UNSIGNED_BYTE = 8  # idx's code for the type of its values


def prepare_mnist(original: Original, shop: Workshop) -> str:
    """MNIST and Fashion-MNIST: {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz."""
    for part, prefix in (("train", "train"), ("test", "t10k")):
        shop.arrays(part, lambda prefix=prefix: _idx_pair(original, prefix))
    return ""


def prepare_emnist(original: Original, shop: Workshop) -> str:
    """EMNIST by class: emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte.gz. Its images
    are transposed.
    """

    def read(part: str) -> Examples:
        images, labels = _idx_pair(original, f"emnist-byclass-{part}")
        return images.transpose(0, 2, 1, 3), labels

    for part in PARTS:
        shop.arrays(part, lambda part=part: read(part))
    return ""


def prepare_svhn(original: Original, shop: Workshop) -> str:
    """SVHN's cropped digits: {train,test}_32x32.mat with X [32, 32, 3, N] and y [N, 1], where 10
    means digit 0.
    """
    for part in PARTS:
        shop.arrays(
            part, lambda part=part: _svhn_part(original, original.file(f"{part}_32x32.mat"))
        )
    return ""


def _idx_pair(original: Original, prefix: str) -> Examples:
    images = _read_idx(original, f"{prefix}-images-idx3-ubyte", 3)
    labels = _read_idx(original, f"{prefix}-labels-idx1-ubyte", 1)
    if len(images) != len(labels):
        raise BadInput(
            f"{original.path}: {prefix} has {len(images):,} images and {len(labels):,} labels, need"
            " as many"
        )
    return images[..., None], labels.astype(np.int64)


def _read_idx(original: Original, name: str, dimensions: int) -> np.ndarray:
    """An array of bytes: two zeros, the type, the number of dimensions, the big-endian sizes, the
    values.
    """
    file = original.file(f"{name}.gz", name)
    content = original.read(file)
    if file.endswith(".gz"):
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(
                f"{original.path}: {file} is not a whole gzip file ({one_line(error)})"
            ) from error
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if content[:4] != expected:
        raise BadInput(
            f"{original.path}: {file} starts with {content[:4].hex()}, an idx file with"
            f" {expected.hex()}"
        )
    header = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[start : start + 4], "big") for start in range(4, header, 4)]
    if len(content) != header + math.prod(sizes):
        promised = " x ".join(f"{size:,}" for size in sizes)
        raise BadInput(
            f"{original.path}: {file} promises {promised} bytes and holds {len(content) - header:,}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def _svhn_part(original: Original, file: str) -> Examples:
    from scipy.io import loadmat

    subject = f"{original.path}: {file}"
    content = original.read(file)
    try:
        arrays = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    except Exception as error:  # scipy raises whatever its parser stumbles over
        raise BadInput(f"{subject} is not a readable MATLAB file ({one_line(error)})") from error
    missing = [name for name in ("X", "y") if name not in arrays]
    if missing:
        raise BadInput(f"{subject} lacks {', '.join(missing)}; needs X (images) and y (labels)")
    images, labels = np.asarray(arrays["X"]), np.asarray(arrays["y"]).ravel()
    if images.ndim != 4 or images.shape[3] != len(labels) or labels.dtype.kind not in "iuf":
        raise BadInput(
            f"{subject}: X is {list(images.shape)} and y has {len(labels)} labels, need [32, 32, 3,"
            " N] and N"
        )
    if len(labels) and not (labels.min() >= 1 and labels.max() <= 10):
        raise BadInput(f"{subject}: labels run from {labels.min()} to {labels.max()}, need 1 to 10")
    return images.transpose(3, 0, 1, 2), labels.astype(np.int64) % 10

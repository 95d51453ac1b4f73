"""A learnable stand-in for a dataset that is not at hand: same shape, same classes, its own made-up
images.

Every class has a smooth random pattern. An image is its class's pattern, shifted and with its own
contrast, under the shifted pattern of another class and noise. So a linear model finds most of it,
a convolution more, and an image whose own pattern is faint and the other's strong stays ambiguous:
nothing reaches 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedbench.core.seeding import numpy_generator
from fedbench.data.dataset import Examples

# shift and contrast of a pattern, prepared once: an image is then two copies and a noise draw
_VARIANTS = 64
_GRID = 4  # random values along a side of a pattern, before it is smoothed to full size
# The parts of a grey level add up to 255 at most, so that uint8 additions never wrap around.
_OWN_LEVELS, _OTHER_LEVELS, _NOISE_LEVELS = 96, 96, 64
_CHUNK = 256  # images at a time: their temporary copies stay in the processor's cache


def stand_in(
    name: str, shape: Sequence[int], classes: int, train_size: int, test_size: int
) -> tuple[Examples, Examples]:
    """Training and test examples, fixed by the name: runs with different seeds compare on the same
    images.
    """
    rng = numpy_generator(0, f"synthetic {name}")
    patterns = _patterns(rng, shape, classes)
    own = _variants(rng, patterns, _OWN_LEVELS, contrast=(0.5, 1.0))
    other = _variants(rng, patterns, _OTHER_LEVELS, contrast=(0.0, 0.75))
    train, test = (_draw(rng, own, other, size) for size in (train_size, test_size))
    return train, test


def _patterns(rng: np.random.Generator, shape: Sequence[int], classes: int) -> np.ndarray:
    """[classes, H, W, C] from 0 to 1: smoothed random grids; they wrap, so shifting leaves no
    edge.
    """
    height, width, channels = shape
    smooth = rng.random((classes, _GRID, _GRID, channels))
    for axis, size in ((1, height), (2, width)):
        position = np.arange(size) * _GRID / size
        left = position.astype(np.int64)
        weight = (position - left).reshape(
            [-1 if dimension == axis else 1 for dimension in range(4)]
        )
        after = (left + 1) % _GRID
        smooth = smooth.take(left, axis) * (1 - weight) + smooth.take(after, axis) * weight
    low, high = smooth.min(axis=(1, 2, 3), keepdims=True), smooth.max(axis=(1, 2, 3), keepdims=True)
    return (smooth - low) / (high - low)


def _variants(
    rng: np.random.Generator, patterns: np.ndarray, levels: int, contrast: tuple[float, float]
) -> np.ndarray:
    """[classes, variants, H, W, C] uint8: patterns shifted by up to an eighth, at random
    contrast.
    """
    height, width = patterns.shape[1:3]
    reach = np.array([height // 8, width // 8])
    shifts = rng.integers(-reach, reach + 1, (_VARIANTS, 2))
    scales = levels * rng.uniform(*contrast, _VARIANTS)
    shifted = [
        (np.roll(patterns, shift, axis=(1, 2)) * scale).astype(np.uint8)
        for shift, scale in zip(shifts, scales, strict=True)
    ]
    return np.stack(shifted, axis=1)


def _draw(rng: np.random.Generator, own: np.ndarray, other: np.ndarray, size: int) -> Examples:
    classes = len(own)
    labels = rng.permutation(np.arange(size, dtype=np.int64) % classes)
    distractors = (labels + rng.integers(1, classes, size)) % classes
    variants = rng.integers(0, _VARIANTS, (2, size))
    images = np.empty((size, *own.shape[2:]), dtype=np.uint8)
    for start in range(0, size, _CHUNK):
        part = slice(start, start + _CHUNK)
        chunk = images[part]
        chunk[...] = own[labels[part], variants[0, part]]
        chunk += other[distractors[part], variants[1, part]]
        noise = np.frombuffer(rng.bytes(chunk.size), dtype=np.uint8).reshape(chunk.shape)
        chunk += noise & np.uint8(_NOISE_LEVELS - 1)
    return images, labels

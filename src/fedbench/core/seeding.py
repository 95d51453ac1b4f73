"""Randomness by name, never by sequence.

Every random draw has its own generator, derived from (seed, purpose, round, client). No draw
depends on how many came before it, so cohorts, batches and initial weights are the same for every
method, for any number of workers and after a resume.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch

LARGEST_SEED = 2**63 - 1


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """A 63-bit seed for one purpose, e.g. `derive(0, "batches", round, client)`."""
    name = ":".join([str(seed), purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") >> 1


def torch_generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator: index draws stay on the CPU, so they do not depend on the device that
    trains.
    """
    return torch.Generator().manual_seed(derive(seed, purpose, *numbers))


def numpy_generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *numbers)))

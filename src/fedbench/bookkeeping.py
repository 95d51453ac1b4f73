"""What a round leaves for the books: losses, communication, work, and whether training has broken down."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.algorithms.base import Round
from fedbench.algorithms.build import Algorithm
from fedbench.evaluation import Score

DIVERGED_FACTOR = 1000.0  # a training loss this many times that of guessing at random has exploded


@dataclass
class Record:
    """One round, for the metrics."""

    round: int  # counted from 1
    numbers: dict[str, float]
    score: Score | None = None  # None when this round is not evaluated
    diverged: str = ""  # the cause, when training broke down


@dataclass
class Totals:
    """Sums over the run so far, as every row of the metrics shows them."""

    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0  # per-example gradient evaluations
    seconds: float = 0.0

    def count(self, facts: Round, algorithm: Algorithm, examples: int, bytes_a_float: int) -> None:
        """Add a round. Communication is that of the trainable parameters (buffers are not counted) and extras."""
        down = up = algorithm.shared.size
        for piece in algorithm.modifiers.values():
            more_down, more_up = piece.extra_floats()
            down, up = down + more_down, up + more_up
        up += algorithm.aggregate.extra_scalars
        self.bytes_down += down * len(facts.cohort) * bytes_a_float
        self.bytes_up += up * len(facts.cohort) * bytes_a_float
        self.gradients += examples


def loss_limit(classes: int) -> float:
    return DIVERGED_FACTOR * math.log(max(classes, 2))


def why_test_diverged(loss: float, classes: int) -> str:
    """A step can break a model whose training loss, taken before it, still looked well."""
    return "" if math.isfinite(loss) and loss <= loss_limit(classes) else f"test loss {loss:.4g}"


def why_diverged(facts: Round, losses: Tensor, server: list[Tensor], classes: int) -> str:
    """The cause in words, or nothing when all is well."""
    bad = (~torch.isfinite(losses)) | (losses > loss_limit(classes))
    if bad.any():
        position = int(bad.nonzero()[0])
        return f"training loss {losses[position]:.4g} on client {facts.cohort[position]}"
    if not all(torch.isfinite(vector).all() for vector in server):
        return "non-finite weights or statistics after the server step"
    return ""

"""Conformal prediction: sets of classes that hold the true one with a chosen probability, from
stored softmax outputs.

Split calibration: a score a test example, a quantile of the scores on one half of the test set,
sets on the other half; repeated over random halves. `threshold`: Sadinle, Lei and Wasserman 2019.
`aps` and `raps`: adaptive sets of Romano, Sesia and Candes 2020 and their regularised form of
Angelopoulos et al. 2021, which FedPMVR cites.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedbench.core.seeding import numpy_generator

LEVELS = (0.70, 0.75, 0.80, 0.85, 0.90, 0.95, 0.99)
REPEATS = 20
FREE_CLASSES, PENALTY = (
    5,
    0.01,
)  # of raps: ranks up to the former cost nothing, each one more the latter

Scores = Callable[
    [np.ndarray, np.ndarray], np.ndarray
]  # (probabilities [N, C], noise [N]) -> scores [N, C]


def threshold(probabilities: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """1 - p_c."""
    return 1.0 - probabilities


def aps(probabilities: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The mass of all likelier classes and a random share of the class's own."""
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    mass = ranked.cumsum(axis=1) - noise[:, None] * ranked
    scores = np.empty_like(mass)
    np.put_along_axis(scores, order, mass, axis=1)
    return scores


def raps(probabilities: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The same, plus a penalty for classes that rank low: smaller sets where many classes share
    little mass.
    """
    ranks = np.argsort(np.argsort(-probabilities, axis=1, kind="stable"), axis=1) + 1
    return aps(probabilities, noise) + PENALTY * np.maximum(ranks - FREE_CLASSES, 0)


METHODS: dict[str, Scores] = {"threshold": threshold, "aps": aps, "raps": raps}


def quantile(scores: np.ndarray, level: float) -> float:
    """The smallest threshold that covers a new example with probability `level`: rank ceil((n + 1)
    level) of n.
    """
    rank = int(np.ceil((len(scores) + 1) * level))
    return float(np.sort(scores)[rank - 1]) if rank <= len(scores) else np.inf


def coverage_table(
    probabilities: np.ndarray, labels: np.ndarray, seed: int
) -> list[dict[str, object]]:
    """Mean coverage and set size of every method and level, with their standard deviations."""
    rows: list[dict[str, object]] = []
    count = len(labels)
    for name, method in METHODS.items():
        results = np.empty((REPEATS, len(LEVELS), 2))
        for repeat in range(REPEATS):
            rng = numpy_generator(seed, "conformal", repeat)
            order, scores = (
                rng.permutation(count),
                method(probabilities.astype(np.float64), rng.random(count)),
            )
            calibration, test = order[: count // 2], order[count // 2 :]
            own = scores[calibration, labels[calibration]]
            for position, level in enumerate(LEVELS):
                sets = scores[test] <= quantile(own, level)
                results[repeat, position] = (
                    sets[np.arange(len(test)), labels[test]].mean(),
                    sets.sum(axis=1).mean(),
                )
        means, spreads = results.mean(axis=0), results.std(axis=0)
        for level, (coverage, size), (coverage_std, size_std) in zip(
            LEVELS, means, spreads, strict=True
        ):
            rows.append(
                {
                    "method": name,
                    "level": level,
                    "coverage": float(coverage),
                    "coverage_std": float(coverage_std),
                    "size": float(size),
                    "size_std": float(size_std),
                }
            )
    return rows

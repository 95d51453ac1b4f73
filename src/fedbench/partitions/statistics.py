"""Numbers that identify a split and describe how heterogeneous it is."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def partition_hash(client_indices: Sequence[np.ndarray]) -> str:
    """16 hex digits that change with any index of any client, the same on every machine."""
    digest = hashlib.blake2b(digest_size=8)
    for own in client_indices:
        digest.update(len(own).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(own, dtype="<i8").tobytes())
    return digest.hexdigest()


def class_counts(
    labels: np.ndarray, classes: int, client_indices: Sequence[np.ndarray]
) -> np.ndarray:
    """Samples of each class that each client has, [clients, classes]."""
    return np.stack([np.bincount(labels[own], minlength=classes) for own in client_indices])


def heterogeneity(
    labels: np.ndarray, classes: int, client_indices: Sequence[np.ndarray]
) -> dict[str, float]:
    """Measures of how different the clients of a split are.

    - `label_divergence`: Jensen-Shannon divergence, base 2, of a client's label distribution from
      that of all clients together; the mean over clients, weighted by their samples. 0 = all are
      alike, towards 1 = each has its own classes.
    - `classes_per_client_{mean,min,max}`: classes of which a client has at least one sample.
    - `size_{min,max,mean}`: samples a client; `size_gini`: 0 = all equal, near 1 = one has all.
    - `unused`: training indices that no client has.
    """
    counts = class_counts(labels, classes, client_indices)
    sizes, held = counts.sum(axis=1), (counts > 0).sum(axis=1)
    return {
        "label_divergence": _label_divergence(counts),
        "classes_per_client_mean": float(held.mean()),
        "classes_per_client_min": int(held.min()),
        "classes_per_client_max": int(held.max()),
        "size_gini": _gini(sizes),
        "size_min": int(sizes.min()),
        "size_max": int(sizes.max()),
        "size_mean": float(sizes.mean()),
        "unused": len(labels) - int(sizes.sum()),
    }


def _label_divergence(counts: np.ndarray) -> float:
    counts = counts[counts.sum(axis=1) > 0]  # a client without samples has no distribution
    sizes = counts.sum(axis=1)
    own = counts / sizes[:, None]
    everyone = counts.sum(axis=0) / counts.sum()
    middle = (own + everyone) / 2
    divergence = (_relative_entropy(own, middle) + _relative_entropy(everyone, middle)) / 2
    return float(np.average(divergence, weights=sizes).clip(0, 1))


def _relative_entropy(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    p, q = np.broadcast_arrays(p, q)
    terms = np.zeros(p.shape)
    seen = p > 0  # 0 * log 0 is 0
    terms[seen] = p[seen] * np.log2(p[seen] / q[seen])
    return terms.sum(axis=1)


def _gini(sizes: np.ndarray) -> float:
    ascending = np.sort(sizes)
    clients = len(sizes)
    weights = 2 * np.arange(1, clients + 1) - clients - 1
    return float((weights * ascending).sum() / (clients * ascending.sum()))

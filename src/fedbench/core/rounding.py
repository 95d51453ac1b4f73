"""Whole numbers from shares."""

from __future__ import annotations

import numpy as np


def largest_remainder(shares: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers that add up to `total` and follow `shares` (which add up to one) most
    closely.
    """
    exact = shares * total
    whole = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:missing]] += 1
    return whole

"""Datasets in memory. `instantiate(cfg.data)` gives a settings object; its `load(seed)` gives a `Dataset`."""

from fedbench.data.base import Dataset, stratified_subset
from fedbench.data.digits import Digits
from fedbench.data.named import NamedDataset
from fedbench.data.npz import NpzDataset

__all__ = ["Dataset", "Digits", "NamedDataset", "NpzDataset", "stratified_subset"]

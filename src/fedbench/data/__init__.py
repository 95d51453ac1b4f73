"""Datasets in memory. `instantiate(cfg.data)` gives a settings object; its `load(seed)` gives a
`Dataset`.
"""

from fedbench.data.dataset import Dataset, DatasetSettings, assemble, stratified_subset
from fedbench.data.digits import Digits
from fedbench.data.images import MappedDataset, NamedDataset
from fedbench.data.npz import NpzDataset
from fedbench.data.qqp import PairDataset

__all__ = [
    "Dataset",
    "DatasetSettings",
    "Digits",
    "MappedDataset",
    "NamedDataset",
    "NpzDataset",
    "PairDataset",
    "assemble",
    "stratified_subset",
]

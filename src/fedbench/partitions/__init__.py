"""How the training set is split among clients: `Dirichlet().draw(labels, classes, seed)`."""

from fedbench.partitions.base import Draw, Partition, PartitionSettings, Split
from fedbench.partitions.dirichlet import Dirichlet
from fedbench.partitions.ecgr_program import EcgrProgram
from fedbench.partitions.from_file import FilePartition
from fedbench.partitions.iid import Iid
from fedbench.partitions.label_sets import Labels, NonBalance, Pareto
from fedbench.partitions.picture import save_picture
from fedbench.partitions.statistics import heterogeneity, partition_hash

__all__ = [
    "Dirichlet",
    "Draw",
    "EcgrProgram",
    "FilePartition",
    "Iid",
    "Labels",
    "NonBalance",
    "Pareto",
    "Partition",
    "PartitionSettings",
    "Split",
    "heterogeneity",
    "partition_hash",
    "save_picture",
]

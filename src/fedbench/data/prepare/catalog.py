"""What is known of every dataset that can be prepared: who publishes it, on what terms, and which
reader reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedbench.data.prepare.archives import Original
from fedbench.data.prepare.image_folders import (
    prepare_cinic10,
    prepare_lc25000,
    prepare_tinyimagenet,
)
from fedbench.data.prepare.questions import prepare_pairs
from fedbench.data.prepare.readers import prepare_emnist, prepare_mnist, prepare_svhn
from fedbench.data.prepare.store import Workshop


@dataclass(frozen=True)
class Published:
    """A file at its publisher's address, with the checksum that is known of it."""

    file: str
    url: str
    checksum: str  # "md5:..." or "sha256:..."


@dataclass(frozen=True)
class Entry:
    original: str  # the files that the reader expects
    obtain: str  # where a person gets them, and on what terms
    prepare: Callable[[Original, Workshop], str] | None = (
        None  # reads them; returns a note for readers of results
    )
    published: tuple[Published, ...] = ()  # what can be downloaded without asking anybody
    torchvision: str = ""  # the class of torchvision.datasets that downloads it
    resized: bool = False  # whether the stored size of the images can be chosen

    @property
    def downloads(self) -> bool:
        return bool(self.published or self.torchvision)


_GLUE = "https://dl.fbaipublicfiles.com/glue/data"
_SVHN = "http://ufldl.stanford.edu/housenumbers"

ENTRIES = {
    "mnist": Entry(
        "folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz",
        "http://yann.lecun.com/exdb/mnist",
        prepare_mnist,
        torchvision="MNIST",
    ),
    "fmnist": Entry(
        "folder with {train,t10k}-{images-idx3,labels-idx1}-ubyte.gz",
        "https://github.com/zalandoresearch/fashion-mnist (MIT)",
        prepare_mnist,
        torchvision="FashionMNIST",
    ),
    "cifar10": Entry(
        "cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        torchvision="CIFAR10",
    ),
    "cifar100": Entry(
        "cifar-100-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        torchvision="CIFAR100",
    ),
    "emnist": Entry(
        "gzip.zip or a folder with emnist-byclass-{train,test}-{images-idx3,labels-idx1}-ubyte.gz",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset (NIST, free)",
        prepare_emnist,
        # Address and checksum as in torchvision, whose own class would unpack all six splits, 3 GB,
        # for this one.
        (
            Published(
                "gzip.zip",
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
            ),
        ),
    ),
    "svhn": Entry(
        "folder with train_32x32.mat and test_32x32.mat",
        f"{_SVHN} (non-commercial use)",
        prepare_svhn,
        (
            Published(
                "train_32x32.mat",
                f"{_SVHN}/train_32x32.mat",
                "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
            ),
            Published(
                "test_32x32.mat", f"{_SVHN}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"
            ),
        ),
    ),
    "cinic10": Entry(
        "CINIC-10.tar.gz or its folder with {train,valid,test}/<class>/*.png",
        "CINIC-10.tar.gz from https://datashare.ed.ac.uk/handle/10283/3192, on ImageNet's terms",
        prepare_cinic10,
    ),
    "tinyimagenet": Entry(
        "tiny-imagenet-200.zip or its folder with train, val and wnids.txt",
        "http://cs231n.stanford.edu, on ImageNet's terms (non-commercial research and education)",
        prepare_tinyimagenet,
        (
            Published(
                "tiny-imagenet-200.zip",
                "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                "md5:90528d7ca1a48142e341f4ef8d21d0de",
            ),
        ),
    ),
    "lc25000": Entry(
        "LC25000.zip or its folder lung_colon_image_set with"
        " {colon,lung}_image_sets/<class>/*.jpeg",
        "the archive from https://github.com/tampapath/lung_colon_image_set, which leads to its"
        " download page",
        prepare_lc25000,
        resized=True,
    ),
    "qqp": Entry(
        "QQP-clean.zip or its folder with train.tsv and dev.tsv",
        "https://gluebenchmark.com/tasks, on Quora's terms (non-commercial use)",
        prepare_pairs,
        (
            Published(
                "QQP-clean.zip",
                f"{_GLUE}/QQP-clean.zip",
                "sha256:40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0",
            ),
        ),
    ),
}


def command_for(name: str, root: str | None, again: bool = False) -> str:
    """The command line that prepares a dataset."""
    words = ["fedbench-data", name, *(["--root", str(root)] if root else [])]
    words.append("--download" if ENTRIES[name].downloads else "--from FILE_OR_FOLDER")
    return " ".join(words + (["--force"] if again else []))

"""Networks. A file of `conf/model` names a settings class, whose `network` makes a `Model`."""

from fedbench.core.model import Model
from fedbench.models.base import ModelSettings, load_weights
from fedbench.models.cnn import Cnn5, CnnBn, LeNet
from fedbench.models.dense import Linear, Mlp
from fedbench.models.lstm import Lstm
from fedbench.models.torchvision import ResNet18, VitB32
from fedbench.models.vgg import Vgg16, Vgg19

__all__ = [
    "Cnn5",
    "CnnBn",
    "LeNet",
    "Linear",
    "Lstm",
    "Mlp",
    "Model",
    "ModelSettings",
    "ResNet18",
    "Vgg16",
    "Vgg19",
    "VitB32",
    "load_weights",
]

"""Networks. A file of `conf/model` names a settings class, whose `build(shape, classes)` gives a `Model`."""

from fedbench.models.base import Model, ModelSettings, load_weights
from fedbench.models.cnn import Cnn5, CnnBn, LeNet
from fedbench.models.dense import Linear, Mlp

__all__ = ["Cnn5", "CnnBn", "LeNet", "Linear", "Mlp", "Model", "ModelSettings", "load_weights"]

"""Import torchvision where its native operators cannot load.

A CPU-only torch and the registry's torchvision wheel do not share a binary interface, and `import torchvision` then
fails because it registers fake kernels for operators that were never defined. Declaring the two missing schemas is
enough for datasets, models and transforms, which use none of them. Where the operators exist nothing is done.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
from functools import cache
from types import ModuleType

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

"""Import torchvision where its native operators cannot load.

On a CPU-only torch the registry's torchvision wheel cannot load its native library, and `import
torchvision` then fails while registering fake kernels for operators that nobody defined. Declaring
the missing schemas is enough: datasets, models and transforms use none of them. Where the operators
exist nothing is declared.
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType

import torch

_MISSING = ("nms", "qnms")
_SCHEMA = "{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@cache
def import_torchvision() -> ModuleType:
    """torchvision, with the operators that its wheel failed to bring declared first."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]  # left half-imported by the failed attempt
    # The library object must live as long as the process, or its declarations vanish: hence the
    # module attribute.
    global _library
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in _MISSING:
        _library.define(_SCHEMA.format(name=name))
    return importlib.import_module("torchvision")


_library: torch.library.Library | None = None

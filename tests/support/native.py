"""Networks with native kernels, for tests; skipped where the machine cannot have them."""

from __future__ import annotations

import pytest
from torch import nn

from fedbench.models.cpu_kernels import choose_kernels, library


def _missing() -> str:
    try:
        library.load()
    except library.Unavailable as error:
        return str(error)
    return ""


MISSING = _missing()  # why there are none; "" where there are
needs_kernels = pytest.mark.skipif(bool(MISSING), reason=MISSING or "there are kernels")


def with_kernels(model: nn.Module, kernels: str) -> nn.Module:
    """The model, set to these kernels."""
    assert choose_kernels(kernels, model, "cpu", threads=1).name == kernels
    return model

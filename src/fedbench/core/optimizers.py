"""Optimizers without what a small model's step would spend half of its time on."""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)


def eager(optimizer: type[Kind]) -> type[Kind]:
    """The same optimizer without its hooks for torch.compile and the profiler.

    The first use of the former imports the compiler, 3.6 s in every process; the latter takes half
    of the time of a small model's step.
    """
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    step.hooked = True  # type: ignore[attr-defined]  # the constructor then has nothing to wrap
    methods = {
        "add_param_group": inspect.unwrap(torch.optim.Optimizer.add_param_group),
        "step": step,
    }
    return type(optimizer.__name__, (optimizer,), methods)


Sgd = eager(torch.optim.SGD)
Adam = eager(torch.optim.Adam)

"""Optimizers without what a small model's step would spend half of its time on."""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch
from torch import Tensor

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


class Sgd:
    """torch.optim.SGD over one parameter: the same operations, so the same bits, in a tenth of the
    time that the original takes to find out what it has to do.
    """

    def __init__(
        self,
        parameter: Tensor,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        self.parameter = parameter
        self.weights = parameter.data
        self.lr = lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.velocity: Tensor | None = None

    def step(self) -> None:
        weights, gradient = self.weights, self.parameter.grad
        assert gradient is not None
        if self.weight_decay != 0:
            gradient = gradient.add(weights, alpha=self.weight_decay)
        if self.momentum != 0:
            if self.velocity is None:
                self.velocity = gradient.clone()
            else:
                self.velocity.mul_(self.momentum).add_(gradient)
            if self.nesterov:
                gradient = gradient.add(self.velocity, alpha=self.momentum)
            else:
                gradient = self.velocity
        weights.add_(gradient, alpha=-self.lr)


Adam = eager(torch.optim.Adam)
FusedSgd = eager(torch.optim.SGD)


def fused_sgd(
    parameter: torch.nn.Parameter, momentum: float, nesterov: bool, weight_decay: float
) -> torch.optim.Optimizer:
    """SGD for a GPU: one kernel a step, and a recorded step can be replayed; see `restart`.

    The momentum buffer is there, and zero, before the first step. PyTorch's own starts with the
    first gradient, which is the same number: 0 * momentum + g.
    """
    optimizer = FusedSgd(
        [parameter],
        lr=1.0,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        fused=True,
    )
    state = {"momentum_buffer": torch.zeros_like(parameter)} if momentum else {}
    return _with_state(optimizer, parameter, state)


def fused_adam(parameter: torch.nn.Parameter, weight_decay: float) -> torch.optim.Optimizer:
    """Adam for a GPU, alike. It counts its steps on the device."""
    optimizer = Adam([parameter], lr=1.0, weight_decay=weight_decay, fused=True, capturable=True)
    # It takes ordinary steps, too, and PyTorch would warn that it was not made for them.
    optimizer._warned_capturable_if_run_uncaptured = True
    state = {
        "step": torch.zeros((), device=parameter.device),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
    return _with_state(optimizer, parameter, state)


def _with_state(
    optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, state: dict[str, torch.Tensor]
) -> torch.optim.Optimizer:
    """Rate and state in tensors that stay. The constructor would read a rate on the device."""
    optimizer.state[parameter] = {name: value.detach() for name, value in state.items()}
    optimizer.param_groups[0]["lr"] = torch.ones((), device=parameter.device)
    return optimizer


def restart(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Make a fused optimizer fresh, with this rate, in the tensors that it has."""
    for group in optimizer.param_groups:
        group["lr"].fill_(lr)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()

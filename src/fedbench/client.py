"""Local training: the only forward, backward and optimizer step in the code base."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.base import Finished, Local, Memory, Modifier, Round, chain
from fedbench.batches import Examples, Sampler
from fedbench.flat import FlatModel
from fedbench.seeding import derive
from fedbench.settings import ClientSettings

Loss = Callable[..., Tensor]  # loss(outputs, targets, reduction="mean" | "none")


@dataclass
class Trained:
    """What one client's local training leaves: the update, the new memories, and numbers for the record."""

    local: Local
    finished: dict[str, Finished]
    loss: Tensor  # mean of the data loss over the examples seen, a scalar on the device


class Trainer:
    """Runs a client's local steps on the one flat model of this process."""

    def __init__(
        self,
        model: FlatModel,
        train: Examples,
        sampler: Sampler,
        settings: ClientSettings,
        modifiers: dict[str, Modifier],
        seed: int,
        loss: Loss = functional.cross_entropy,
    ):
        self.model, self.train, self.sampler, self.settings, self.seed = model, train, sampler, settings, seed
        self.modifiers, self.loss = modifiers, loss
        self.hooks = {hook: chain(modifiers, hook) for hook in ("begin", "grad", "update")}

    def __call__(
        self, facts: Round, position: int, own: Tensor, before: Tensor, memories: dict[str, Memory]
    ) -> Trained:
        """Train one member of the cohort on its `own` examples; the model holds what it starts from, `before`."""
        model, client = self.model, facts.cohort[position]
        local = Local(
            client=client,
            samples=facts.samples[position],
            steps=facts.steps[position],
            norm=facts.norms[position],
            lr=facts.lr,
            model=model,
            before=before,
        )
        seed_device(model.device, derive(self.seed, "training", facts.index, client))  # for dropout
        for name, begin in self.hooks["begin"]:
            begin(local, memories[name])
        loss = self._steps(facts, local, own, memories)
        local.path = model.w - local.before
        local.update = local.path
        if self.hooks["update"]:
            local.update = local.path.clone()  # control variates still need the path itself
            for name, update in self.hooks["update"]:
                update(local, memories[name])
        finished = {name: piece.finish(local, memories[name]) for name, piece in self.modifiers.items()}
        return Trained(local, finished, loss)

    def _steps(self, facts: Round, local: Local, own: Tensor, memories: dict[str, Memory]) -> Tensor:
        model, module, train = self.model, self.model.module, self.train
        optimizer = make_optimizer(model, self.settings, facts.lr)
        grad_hooks = [(hook, memories[name]) for name, hook in self.hooks["grad"]]
        total, seen = model.w.new_zeros(()), 0
        if not module.training:  # it walks through all modules, which a client of two steps notices
            module.train()
        for step, index in enumerate(self.sampler.indices(facts.index, local.client, own, local.steps)):
            local.step = step
            x, y = train.batch(index)
            model.g.zero_()
            loss = self.loss(module(x), y)
            loss.backward()
            for hook, memory in grad_hooks:
                hook(local, memory)
            optimizer.step()
            total += loss.detach() * len(y)
            seen += len(y)
        return total / max(seen, 1)


def seed_device(device: torch.device, seed: int) -> None:
    """torch.manual_seed for one device: that function also queues calls, with their stack traces, for all others."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def eager(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer without its hooks for torch.compile and the profiler.

    The first use of the former imports the compiler, 3.6 s in every process; the latter takes half of the time of a
    small model's step.
    """
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    step.hooked = True  # tells the constructor that there is nothing to wrap
    methods = {"add_param_group": inspect.unwrap(torch.optim.Optimizer.add_param_group), "step": step}
    return type(optimizer.__name__, (optimizer,), methods)


Sgd, Adam = eager(torch.optim.SGD), eager(torch.optim.Adam)


def make_optimizer(model: FlatModel, settings: ClientSettings, lr: float) -> torch.optim.Optimizer:
    """A fresh optimizer over the flat parameter: nothing of it survives the round, for any method."""
    if settings.optimizer == "adam":
        return Adam([model.parameter], lr=lr, weight_decay=settings.weight_decay)
    return Sgd(
        [model.parameter],
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )

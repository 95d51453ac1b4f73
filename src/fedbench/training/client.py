"""Local training: the only forward, backward and optimizer step in the code base."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import Batch, Finished, Local, Memory, Round, chain
from fedbench.config.schema import ClientSettings
from fedbench.core.flat_model import FlatModel
from fedbench.core.seeding import derive
from fedbench.data.batches import Examples, Sampler

Loss = Callable[..., Tensor]  # loss(outputs, targets, reduction="mean" | "none")


GRADIENT_BATCH = 500  # examples at a time of a gradient over a client's whole data


@dataclass
class Trained:
    """What one client's local training leaves: the update, the new memories, and numbers for the
    record.
    """

    local: Local
    finished: dict[str, Finished]
    loss: Tensor  # mean of the data loss over the examples seen, a scalar on the device
    gradient_norms: Tensor | None  # of every layer, mean over the steps, when they were asked for


class Trainer:
    """Runs a client's local steps on the one flat model of this process."""

    def __init__(
        self,
        model: FlatModel,
        train: Examples,
        sampler: Sampler,
        settings: ClientSettings,
        algorithm: Algorithm,
        seed: int,
        loss: Loss = functional.cross_entropy,
        gradient_norms: bool = False,
    ):
        self.model, self.train, self.sampler, self.settings, self.seed = (
            model,
            train,
            sampler,
            settings,
            seed,
        )
        self.modifiers, self.local_train, self.loss = (
            algorithm.modifiers,
            algorithm.local_train,
            loss,
        )
        self.gradient_norms = gradient_norms
        hooks = ("begin", "loss", "probe", "grad", "stepped", "update")
        self.hooks = {hook: chain(self.modifiers, hook) for hook in hooks}
        self.needs_embedding = any(piece.needs_embedding for piece in self.modifiers.values())

    def __call__(
        self, facts: Round, position: int, own: Tensor, before: Tensor, memories: dict[str, Memory]
    ) -> Trained:
        """Train one member of the cohort on its `own` examples; the model holds what it starts
        from, `before`.
        """
        model, client = self.model, facts.cohort[position]
        local = Local(
            client=client,
            samples=facts.samples[position],
            steps=facts.steps[position],
            norm=facts.norms[position],
            lr=facts.lr,
            model=model,
            before=before,
            own=own,
            trainer=self,
            round=facts.index,
            shared_steps=self.shared_steps(facts.samples[position], facts.steps[position]),
            notes={name: values[facts.asked.index(client)] for name, values in facts.notes.items()},
        )
        seed_device(model.device, derive(self.seed, "training", facts.index, client))  # for dropout
        for name, begin in self.hooks["begin"]:
            begin(local, memories[name])
        loss, norms = self._steps(facts, local, memories)
        local.path = model.w - local.before
        local.update = local.path
        if self.hooks["update"]:
            local.update = local.path.clone()  # control variates still need the path itself
            for name, update in self.hooks["update"]:
                update(local, memories[name])
        finished = {
            name: piece.finish(local, memories[name]) for name, piece in self.modifiers.items()
        }
        return Trained(local, finished, loss, norms)

    def shared_steps(self, samples: int, steps: int) -> int:
        return self.local_train.shared_steps(steps, self.sampler.batches_per_epoch(samples))

    def _steps(
        self, facts: Round, local: Local, memories: dict[str, Memory]
    ) -> tuple[Tensor, Tensor | None]:
        """All local steps, phase by phase: most methods have one. Returns the mean loss and
        gradient norms.
        """
        model, train = self.model, self.train
        hooks = {
            hook: [(call, memories[name]) for name, call in chained]
            for hook, chained in self.hooks.items()
        }
        total, seen = model.w.new_zeros(()), 0
        norms = model.w.new_zeros(len(model.layers)) if self.gradient_norms else None
        batches = self.sampler.indices(facts.index, local.client, local.own, local.steps)
        for phase in self.local_train.phases(
            model, local.steps, self.sampler.batches_per_epoch(local.samples)
        ):
            local.shared_frozen = phase.trained is not None and phase.trained.start > 0
            optimizer = make_optimizer(phase.enter(model), self.settings, facts.lr)
            for index in islice(batches, phase.steps):
                x, y = train.batch(index, training=True)
                model.g.zero_()
                loss = self._forward_backward(local, x, y, hooks)
                if norms is not None:
                    norms += torch.stack(
                        [model.g[layer.start : layer.stop].norm() for layer in model.layers]
                    )
                for hook, memory in hooks["grad"]:
                    hook(local, memory)
                optimizer.step()
                for hook, memory in hooks["stepped"]:
                    hook(local, memory)
                total += loss * len(y)
                seen += len(y)
                local.step += 1
            phase.leave(model)
        return total / max(seen, 1), None if norms is None else norms / max(local.steps, 1)

    def _forward_backward(
        self, local: Local, x: Tensor, y: Tensor, hooks: dict[str, list]
    ) -> Tensor:
        """Gradients into `model.g`; returns the data loss, which modifiers may have changed before
        backward.
        """
        module = self.model.module
        embedding = module.embed(x) if self.needs_embedding else None
        logits = module(x) if embedding is None else module.head(embedding)
        if hooks["loss"] or hooks["probe"]:
            each = self.loss(logits, y, reduction="none")
            loss = objective = each.mean()
            local.batch = Batch(x, y, logits, each, embedding)
            for hook, memory in hooks["loss"]:
                objective = hook(local, memory, objective)
            for hook, memory in hooks["probe"]:
                hook(local, memory)
        else:
            loss = objective = self.loss(logits, y)
        objective.backward()
        local.batch = None
        return loss.detach()

    def gradient(self, own: Tensor, only: list[nn.Parameter] | None = None) -> Tensor:
        """The mean gradient over these examples at the model's parameters, in evaluation mode.

        With `only`, the entries of the other parameters are zero: the backward pass goes no further
        than it must.
        """
        model = self.model
        model.module.eval()
        model.g.zero_()
        for parameter, _, _ in model.places:
            parameter.requires_grad_(only is None or any(parameter is wanted for wanted in only))
        for index in own.split(GRADIENT_BATCH):
            x, y = self.train.batch(index)
            (self.loss(model.module(x), y, reduction="none").sum() / len(own)).backward()
        for parameter, _, _ in model.places:
            parameter.requires_grad_(True)
        return model.g.clone()

    def gradient_moments(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the gradients of single examples, in evaluation mode.

        Batch norm in training mode has no gradient of a single example. One example at a time:
        memory stays that of one gradient, and any network will do.
        """
        model = self.model
        model.module.eval()
        mean, squares = torch.zeros_like(model.g), torch.zeros_like(model.g)
        for count, one in enumerate(index.split(1), start=1):
            x, y = self.train.batch(one)
            model.g.zero_()
            self.loss(model.module(x), y).backward()
            difference = (
                model.g - mean
            )  # Welford's recursion: a difference of squares would lose small variances
            mean.add_(difference, alpha=1.0 / count)
            squares.addcmul_(difference, model.g - mean)
        return mean, squares / max(len(index), 1)


def seed_device(device: torch.device, seed: int) -> None:
    """torch.manual_seed for one device: that function also queues calls, with their stack traces,
    for all others.
    """
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def eager(optimizer: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimizer without its hooks for torch.compile and the profiler.

    The first use of the former imports the compiler, 3.6 s in every process; the latter takes half
    of the time of a small model's step.
    """
    step = torch.no_grad()(inspect.unwrap(optimizer.step))
    step.hooked = True  # tells the constructor that there is nothing to wrap
    methods = {
        "add_param_group": inspect.unwrap(torch.optim.Optimizer.add_param_group),
        "step": step,
    }
    return type(optimizer.__name__, (optimizer,), methods)


Sgd, Adam = eager(torch.optim.SGD), eager(torch.optim.Adam)


def make_optimizer(
    parameter: nn.Parameter, settings: ClientSettings, lr: float
) -> torch.optim.Optimizer:
    """A fresh optimizer over the flat parameter: nothing of it survives the round, for any
    method.
    """
    if settings.optimizer == "adam":
        return Adam([parameter], lr=lr, weight_decay=settings.weight_decay)
    return Sgd(
        [parameter],
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )

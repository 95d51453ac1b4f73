"""Local training: the only forward, backward and optimizer step of clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import Batch, ClientResult, LocalRun, Memory, RoundPlan
from fedbench.algorithms.modifier import chain
from fedbench.config.schema import ClientSettings
from fedbench.core.flat_model import FlatModel
from fedbench.core.optimizers import Adam, Sgd
from fedbench.core.seeding import derive
from fedbench.data.batches import Examples, Sampler

Loss = Callable[..., Tensor]  # loss(outputs, targets, reduction="mean" | "none")
GRADIENT_BATCH = 500  # examples at a time of a gradient over a client's whole data


@dataclass
class Trained:
    """What one client's local training leaves."""

    local: LocalRun
    results: dict[str, ClientResult]  # by modifier
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
        self.model = model
        self.train = train
        self.sampler = sampler
        self.settings = settings
        self.seed = seed
        self.modifiers = algorithm.modifiers
        self.local_train = algorithm.local_train
        self.loss = loss
        self.gradient_norms = gradient_norms
        hooks = ("begin", "loss", "probe", "grad", "stepped", "update")
        self.hooks = {hook: chain(self.modifiers, hook) for hook in hooks}
        self.needs_embedding = any(one.needs.embedding for one in self.modifiers.values())

    def __call__(
        self,
        plan: RoundPlan,
        position: int,
        own: Tensor,
        before: Tensor,
        memories: dict[str, Memory],
    ) -> Trained:
        """Train one member of the cohort on its `own` examples.

        The model holds what the client starts from, `before`.
        """
        model, client = self.model, plan.cohort[position]
        local = LocalRun(
            client=client,
            samples=plan.samples[position],
            steps=plan.steps[position],
            norm=plan.norms[position],
            lr=plan.lr,
            model=model,
            before=before,
            own=ClientExamples(self, own),
            round=plan.index,
            shared_steps=self.shared_steps(plan.samples[position], plan.steps[position]),
            notes={name: values[plan.invited.index(client)] for name, values in plan.notes.items()},
        )
        seed_device(model.device, derive(self.seed, "training", plan.index, client))  # for dropout
        for name, begin in self.hooks["begin"]:
            begin(local, memories[name])
        loss, norms = self._steps(plan, local, memories)
        local.raw_update = model.w - local.before
        local.update = local.raw_update
        if self.hooks["update"]:
            local.update = local.raw_update.clone()  # control variates need both
            for name, update in self.hooks["update"]:
                update(local, memories[name])
        results = {
            name: modifier.finish(local, memories[name])
            for name, modifier in self.modifiers.items()
        }
        return Trained(local, results, loss, norms)

    def shared_steps(self, samples: int, steps: int) -> int:
        return self.local_train.shared_steps(steps, self.sampler.batches_per_epoch(samples))

    def _steps(
        self, plan: RoundPlan, local: LocalRun, memories: dict[str, Memory]
    ) -> tuple[Tensor, Tensor | None]:
        """All local steps, phase by phase: most methods have one.

        Returns the mean loss and the gradient norms.
        """
        model, train = self.model, self.train
        hooks = {
            hook: [(call, memories[name]) for name, call in chained]
            for hook, chained in self.hooks.items()
        }
        total, seen = model.w.new_zeros(()), 0
        norms = model.w.new_zeros(len(model.layers)) if self.gradient_norms else None
        batches = self.sampler.indices(plan.index, local.client, local.own.index, local.steps)
        for phase in self.local_train.phases(
            model, local.steps, self.sampler.batches_per_epoch(local.samples)
        ):
            local.shared_frozen = phase.trained is not None and phase.trained.start > 0
            optimizer = make_optimizer(phase.enter(model), self.settings, plan.lr)
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
        self, local: LocalRun, x: Tensor, y: Tensor, hooks: dict[str, list]
    ) -> Tensor:
        """Gradients into `model.g`. Returns the data loss; modifiers may minimise another one."""
        module = self.model.module
        embedding = module.embed(x) if self.needs_embedding else None
        logits = module(x) if embedding is None else module.head(embedding)
        if hooks["loss"] or hooks["probe"]:
            each = self.loss(logits, y, reduction="none")
            loss = objective = each.mean()
            local.batch = Batch(x, y, logits, each)
            if embedding is not None:
                local.batch.embedding = embedding
            for hook, memory in hooks["loss"]:
                objective = hook(local, memory, objective)
            for hook, memory in hooks["probe"]:
                hook(local, memory)
        else:
            loss = objective = self.loss(logits, y)
        objective.backward()
        local.batch = None  # type: ignore[assignment]
        return loss.detach()

    def gradient(self, own: Tensor, only: Sequence[nn.Parameter] | None = None) -> Tensor:
        """The mean gradient over these examples at the model's parameters, in evaluation mode.

        With `only`, the entries of the other parameters are zero: the backward pass goes no further
        than it must.
        """
        model = self.model
        model.module.eval()
        model.g.zero_()
        for parameter, _, _ in model.parameter_slices:
            parameter.requires_grad_(only is None or any(parameter is wanted for wanted in only))
        for index in own.split(GRADIENT_BATCH):
            x, y = self.train.batch(index)
            (self.loss(model.module(x), y, reduction="none").sum() / len(own)).backward()
        for parameter, _, _ in model.parameter_slices:
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
            # Welford's recursion: a difference of squares would lose small variances.
            difference = model.g - mean
            mean.add_(difference, alpha=1.0 / count)
            squares.addcmul_(difference, model.g - mean)
        return mean, squares / max(len(index), 1)


class ClientExamples:
    """A client's own training examples, for work of modifiers outside the local steps."""

    def __init__(self, trainer: Trainer, index: Tensor):
        self.trainer = trainer
        self.index = index

    @property
    def labels(self) -> Tensor:
        return self.trainer.train.y[self.index]

    @property
    def steps_an_epoch(self) -> int:
        return self.trainer.sampler.batches_per_epoch(len(self.index))

    def gradient(self, only: Sequence[nn.Parameter] | None = None) -> Tensor:
        return self.trainer.gradient(self.index, only)

    def loss_of(self, number: int) -> Tensor:
        x, y = self.trainer.train.batch(self.index[number : number + 1])
        with torch.no_grad():
            return self.trainer.loss(self.trainer.model.module(x), y)


def seed_device(device: torch.device, seed: int) -> None:
    """torch.manual_seed for one device: that function queues calls for all others, too."""
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def make_optimizer(
    parameter: nn.Parameter, settings: ClientSettings, lr: float
) -> torch.optim.Optimizer:
    """A fresh optimizer over the flat parameter: nothing of it survives the round."""
    if settings.optimizer == "adam":
        return Adam([parameter], lr=lr, weight_decay=settings.weight_decay)
    return Sgd(
        [parameter],
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )

"""Local training: the only forward, backward and optimizer step of clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import c_float
from dataclasses import dataclass
from itertools import islice

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import Batch, ClientResult, LocalRun, Memory, RoundPlan
from fedbench.algorithms.modifier import chain
from fedbench.config.schema import ClientSettings, Scalars
from fedbench.core.flat_model import FlatModel
from fedbench.core.optimizers import Adam, Sgd, fused_adam, fused_sgd, restart
from fedbench.core.precision import autocast
from fedbench.core.seeding import derive
from fedbench.data.batches import Examples, Sampler
from fedbench.training.example_gradients import Loss, set_evaluation_mode
from fedbench.training.graph_steps import GraphSteps, Recorder, Sums, can_be_recorded

Hooks = dict[str, list[tuple[Callable, Memory]]]
Optimizer = torch.optim.Optimizer | Sgd
GRADIENT_BATCH = 500  # examples at a time of a gradient over a client's whole data


@dataclass
class Trained:
    """What one client's local training leaves."""

    local: LocalRun
    results: dict[str, ClientResult]  # by modifier
    loss: Tensor  # mean of the data loss over the examples seen, a scalar on the device
    # Of every layer, means over the steps, when they were asked for: [2, layers], of the data
    # loss's gradient and of what the method made of it for the optimizer.
    gradient_norms: Tensor | None
    started: float = 0.0  # when the local training did, by time.perf_counter


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
        recorder: Recorder | None = None,
        precision: str = "float32",
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
        self.precision = precision
        hooks = ("begin", "loss", "probe", "grad", "stepped", "update")
        self.hooks = {hook: chain(self.modifiers, hook) for hook in hooks}
        self.needs_embedding = any(one.needs.embedding for one in self.modifiers.values())
        # One kernel instead of several; on a CPU, PyTorch's ordinary optimizers are as fast.
        self.fused_optimizer = None
        if model.device.type == "cuda":
            self.fused_optimizer = make_fused_optimizer(model.parameter, settings)
        self.graph: GraphSteps | None = None
        here = train.x.device == model.device  # memory-mapped inputs come from elsewhere
        if recorder is not None and here and can_be_recorded(self.modifiers.values()):
            self.record_steps(recorder)

    def __call__(
        self,
        plan: RoundPlan,
        position: int,
        own: Tensor,
        before: Tensor,
        memories: dict[str, Memory],
        place: Tensor | None = None,
    ) -> Trained:
        """Train one member of the cohort on its `own` examples.

        The model holds what the client starts from, `before`. The update is written to `place`, if
        there is one.
        """
        started = time.perf_counter()
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
        local.raw_update = torch.sub(model.w, local.before, out=place)
        local.update = local.raw_update
        if self.hooks["update"]:
            local.update = local.raw_update.clone()  # control variates need both
            for name, update in self.hooks["update"]:
                update(local, memories[name])
        results = {
            name: modifier.finish(local, memories[name])
            for name, modifier in self.modifiers.items()
        }
        return Trained(local, results, loss, norms, started)

    def record_steps(self, recorder: Recorder) -> None:
        """Have the steps recorded and replayed, where they train all parameters."""
        if self.fused_optimizer is None:
            self.fused_optimizer = make_fused_optimizer(self.model.parameter, self.settings)
        self.graph = GraphSteps(
            recorder=recorder,
            take_step=self._take_recordable_step,
            sums=Sums(self.model.w.new_zeros(()), self._new_norms()),
            counter=torch.zeros(1, dtype=torch.int64, device=self.model.device),
            batch_size=self.settings.batch_size,
        )

    def shared_steps(self, samples: int, steps: int) -> int:
        return self.local_train.shared_steps(steps, self.sampler.batches_per_epoch(samples))

    def _steps(
        self, plan: RoundPlan, local: LocalRun, memories: dict[str, Memory]
    ) -> tuple[Tensor, Tensor | None]:
        """All local steps, phase by phase: most methods have one.

        Returns the mean loss and the gradient norms.
        """
        model, graph = self.model, self.graph
        hooks = self._hooks_of(memories)
        norms, loss = self._new_norms(), None
        batches = self.sampler.indices(plan.index, local.client, local.own.index, local.steps)
        for phase in self.local_train.phases(
            model, local.steps, self.sampler.batches_per_epoch(local.samples)
        ):
            local.shared_frozen = phase.trained is not None and phase.trained.start > 0
            optimizer = self._optimizer(phase.enter(model), plan.lr)
            taken = islice(batches, phase.steps)
            if graph is not None and phase.trained is None:
                seen = graph.run(local, memories, list(taken))
                loss, norms = graph.sums.loss / max(seen, 1), graph.sums.gradient_norms
            else:
                for index in taken:
                    local.losses.append(self._step(local, index, hooks, optimizer, norms))
                    local.batch_sizes.append(len(index))
                    local.step += 1
            phase.leave(model)
        if loss is None:
            loss = mean_loss(local.losses, local.batch_sizes)
        return loss, None if norms is None else norms / max(local.steps, 1)

    def _hooks_of(self, memories: dict[str, Memory]) -> Hooks:
        return {
            hook: [(call, memories[name]) for name, call in chained]
            for hook, chained in self.hooks.items()
        }

    def _new_norms(self) -> Tensor | None:
        return self.model.w.new_zeros(2, len(self.model.layers)) if self.gradient_norms else None

    def _optimizer(self, parameter: nn.Parameter, lr: float) -> Optimizer:
        """A fresh one: nothing of it survives a phase of a client's round."""
        fused = self.fused_optimizer
        if fused is None:
            return make_optimizer(parameter, self.settings, lr)
        if parameter is not self.model.parameter:
            fused = make_fused_optimizer(parameter, self.settings)
        restart(fused, lr)
        return fused

    def _take_recordable_step(
        self, local: LocalRun, index: Tensor, memories: dict[str, Memory], sums: Sums
    ) -> Tensor:
        optimizer, hooks = self.fused_optimizer, self._hooks_of(memories)
        assert optimizer is not None
        loss = self._step(local, index, hooks, optimizer, sums.gradient_norms)
        sums.loss += loss * len(index)
        return loss

    def _step(
        self,
        local: LocalRun,
        index: Tensor,
        hooks: Hooks,
        optimizer: Optimizer,
        norms: Tensor | None,
    ) -> Tensor:
        """One local step, on the examples of one batch. Returns the data loss before it.

        The gradient's norms are added to `norms`.
        """
        model = self.model
        x, y = self.train.batch(index, training=True)
        local.share = self.sampler.share(len(index))
        model.g.zero_()
        loss = self._forward_backward(local, x, y, hooks)
        if norms is not None:
            norms[0] += layer_norms(model, model.g)
        for hook, memory in hooks["grad"]:
            hook(local, memory)
        if norms is not None:
            norms[1] += layer_norms(model, model.g)
        if local.share != 1.0:
            model.g.mul_(local.share)
        optimizer.step()
        for hook, memory in hooks["stepped"]:
            hook(local, memory)
        return loss

    def _forward_backward(self, local: LocalRun, x: Tensor, y: Tensor, hooks: Hooks) -> Tensor:
        """Gradients into `model.g`. Returns the data loss; modifiers may minimise another one."""
        embedding, logits = self._forward(x)
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

    def _forward(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """The head's input, where methods need it, and the logits; both in float32."""
        if self.precision != "bf16":
            return self._outputs(x)
        with autocast(self.model.device, self.precision):
            embedding, logits = self._outputs(x)
        return None if embedding is None else embedding.float(), logits.float()

    def _outputs(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        module = self.model.module
        if not self.needs_embedding:
            return None, module(x)
        embedding = module.embed(x)
        return embedding, module.head(embedding)

    def gradient(self, own: Tensor, only: Sequence[nn.Parameter] | None = None) -> Tensor:
        """The mean gradient over these examples at the model's parameters, in evaluation mode.

        With `only`, the entries of the other parameters are zero: the backward pass goes no further
        than it must.
        """
        model = self.model
        set_evaluation_mode(model.module, model.device)
        model.g.zero_()
        for parameter, _, _ in model.parameter_slices:
            parameter.requires_grad_(only is None or any(parameter is wanted for wanted in only))
        for index in own.split(GRADIENT_BATCH):
            x, y = self.train.batch(index)
            (self.loss(model.module(x), y, reduction="none").sum() / len(own)).backward()
        for parameter, _, _ in model.parameter_slices:
            parameter.requires_grad_(True)
        return model.g.clone()


class ClientExamples:
    """A client's own training examples, for work of modifiers outside the local steps."""

    def __init__(self, trainer: Trainer, index: Tensor):
        self.trainer = trainer
        self.index = index

    @property
    def labels(self) -> Tensor:
        return self.trainer.train.labels(self.index)

    @property
    def steps_an_epoch(self) -> int:
        return self.trainer.sampler.batches_per_epoch(len(self.index))

    def gradient(self, only: Sequence[nn.Parameter] | None = None) -> Tensor:
        return self.trainer.gradient(self.index, only)

    def loss_of(self, number: int) -> Tensor:
        x, y = self.trainer.train.batch(self.index[number : number + 1])
        with torch.no_grad():
            return self.trainer.loss(self.trainer.model.module(x), y)


def mean_loss(losses: list[Tensor], sizes: list[int]) -> Tensor:
    """The mean loss over all examples of some steps, from the losses and sizes of their batches.

    It is summed step by step, in the losses' own type. On a CPU that is done without PyTorch,
    which takes as long for two numbers as for a layer: Python computes with so many digits that
    float32's bits are right where every result is rounded to it.
    """
    examples = max(sum(sizes), 1)
    pairs = zip(losses, sizes, strict=True)
    if not losses or not losses[0].is_cpu or losses[0].dtype != torch.float32:
        return torch.as_tensor(sum(loss * size for loss, size in pairs) / examples)
    total = 0.0
    for loss, size in pairs:
        total = c_float(total + c_float(loss.item() * size).value).value
    return torch.tensor(total / examples, dtype=torch.float32)


def layer_norms(model: FlatModel, vector: Tensor) -> Tensor:
    """The norm of every layer's part of a vector like the parameters."""
    return torch.stack([vector[layer.start : layer.stop].norm() for layer in model.layers])


def make_sampler(settings: Scalars, batch_norm: bool) -> Sampler:
    """Which batches clients see, by an experiment's settings."""
    client = settings.client
    return Sampler(
        settings.seed,
        client.batch_size,
        client.epochs,
        client.steps,
        drop_single=batch_norm,
        last_batch=client.last_batch,
    )


def seed_device(device: torch.device, seed: int) -> None:
    """torch.manual_seed for one device: that function queues calls for all others, too."""
    if device.type == "cuda":  # the rank's own one, whichever is the current device
        torch.cuda.default_generators[device.index].manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def make_optimizer(parameter: nn.Parameter, settings: ClientSettings, lr: float) -> Optimizer:
    """A fresh optimizer over the flat parameter: nothing of it survives the round."""
    if settings.optimizer == "adam":
        return Adam([parameter], lr=lr, weight_decay=settings.weight_decay)
    return Sgd(
        parameter,
        lr=lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )


def make_fused_optimizer(
    parameter: nn.Parameter, settings: ClientSettings
) -> torch.optim.Optimizer:
    """The same for a GPU; `restart` makes it fresh and sets its rate."""
    if settings.optimizer == "adam":
        return fused_adam(parameter, settings.weight_decay)
    return fused_sgd(parameter, settings.momentum, settings.nesterov, settings.weight_decay)

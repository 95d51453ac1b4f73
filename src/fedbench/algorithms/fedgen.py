"""FedGen: a generator of features, trained on the server, helps local training.

Zhu, Hong and Zhou, "Data-free knowledge distillation for heterogeneous federated learning", 2021;
defaults from the authors' program for MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self, cast

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.context import (
    BindContext,
    ClientResult,
    LocalRun,
    Memory,
    RoundPlan,
    State,
    label_counts,
)
from fedbench.algorithms.modifier import Modifier, Needs
from fedbench.core.errors import BadInput
from fedbench.core.fields import count, number
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.core.optimizers import Adam
from fedbench.core.seeding import derive, torch_generator
from fedbench.core.transfer import upload

MOST = 10**6  # of any of its sizes and counts


class Network(Model):
    """Noise, uniform on [0, 1), and a label in; an input of the classifier out."""

    def __init__(self, noise: int, classes: int, hidden: int, latent: int):
        super().__init__()
        self.classes = classes
        self.fc1 = nn.Linear(noise + classes, hidden)
        self.bn = nn.BatchNorm1d(hidden)
        self.fc2 = nn.Linear(hidden, latent)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        given = noise.new_zeros(len(labels), self.classes).scatter_(1, labels[:, None], 1.0)
        return self.fc2(functional.relu(self.bn(self.fc1(torch.cat([noise, given], dim=1)))))


@dataclass
class Generator(Modifier):
    """From the second round on, with G frozen and in evaluation mode, a client minimises

    CE(x, y) + B_g/B alpha_t CE(head(G(y')), y') + beta_t KL( softmax(head(G(y))), no gradient ||
    p(.|x) )

    y' uniform over the labels present anywhere, alpha_t = max(1e-4, alpha * decay^t), beta_t alike.
    The server then trains G by `generator_steps` steps of Adam on sum_k mean_b u_{k,y_b}
    CE(head_k(G(y_b)), y_b) + diversity, with u_{k,c} = (n_kc + 1) / sum_k (n_kc + 1) from the
    labels seen in the round. Adam's moments live on; its rate decays.
    """

    order = 3
    needs = Needs(embedding=True)
    collects = True
    alpha: float = number(10.0, at_least=0, at_most=1e30)
    beta: float = number(10.0, at_least=0, at_most=1e30)
    decay: float = number(0.98, above=0, at_most=1)
    generator_steps: int = count(50, at_most=MOST)
    generator_lr: float = number(3e-4, above=0, at_most=1e30)
    generator_decay: float = number(1e-2, at_least=0, at_most=1e30)
    batch: int = count(32, at_least=2, at_most=MOST)
    noise: int = count(32, at_most=MOST)
    hidden: int = count(256, at_most=MOST)
    early_stop: int = count(20, at_most=MOST)

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        if not isinstance(bound.head, nn.Linear):
            name = key.replace("modifiers.", "")
            raise BadInput(f"{name}: the model's head must be one linear layer")
        return bound

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.context.model.module.head)

    @property
    def classes(self) -> int:
        return self.context.classes

    @cached_property
    def generator(self) -> FlatModel:
        model, seed = self.context.model, derive(self.context.seed, "generator")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = Network(self.noise, self.classes, self.hidden, self.head.in_features)
        return FlatModel(network.to(model.w.dtype), model.device)

    @property
    def upload_size(self) -> int:
        """The classifier, which is part of the client's update and not sent twice, and label
        counts.
        """
        return sum(parameter.numel() for parameter in self.head.parameters()) + self.classes

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        return self.generator.size * len(plan.invited), self.classes * len(plan.cohort)

    def init_server(self, model: FlatModel) -> State:
        """The labels and Adam's counter are on the CPU, where they are read without waiting."""
        w, b = self.generator.w, self.generator.b
        return {
            "w": w.clone(),
            "b": b.clone(),
            "labels": torch.zeros(self.classes, dtype=w.dtype),
            "m": torch.zeros_like(w),
            "v": torch.zeros_like(w),
            "t": torch.zeros((), dtype=w.dtype),
        }

    def begin(self, local: LocalRun, memory: Memory) -> None:
        memory.scratch["seen"] = local.model.w.new_zeros(self.classes)
        present = memory.server["labels"].nonzero().flatten()
        memory.scratch["present"] = upload(present, local.model.device)
        self.generator.load(memory.server["w"], memory.server["b"])
        self.generator.module.eval()

    def loss(self, local: LocalRun, memory: Memory, loss: Tensor) -> Tensor:
        y = local.batch.y
        memory.scratch["seen"] += label_counts(y, self.classes).to(loss.dtype)
        present = memory.scratch["present"]
        if local.round == 0 or local.epoch >= self.early_stop or not len(present):
            return loss
        fading = self.decay**local.round
        drawn = present[torch.randint(len(present), (self.batch,), device=y.device)]
        helped = functional.cross_entropy(self.head(self._features(drawn, loss)), drawn)
        with torch.no_grad():
            target = functional.softmax(self.head(self._features(y, loss)), dim=1)
        own = functional.log_softmax(local.batch.logits, dim=1)
        imitation = functional.kl_div(own, target, reduction="batchmean")
        weights = max(1e-4, self.alpha * fading), max(1e-4, self.beta * fading)
        return loss + self.batch / len(y) * weights[0] * helped + weights[1] * imitation

    def _features(self, labels: Tensor, like: Tensor) -> Tensor:
        noise = torch.rand(len(labels), self.noise, device=labels.device, dtype=like.dtype)
        with torch.no_grad():
            return self.generator.module(noise, labels)

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        w = local.before + local.update  # as the server gets it
        head = [w[local.model.place(parameter)] for parameter in self.head.parameters()]
        return ClientResult(upload=torch.cat([*head, memory.scratch["seen"]]))

    def server(self, plan: RoundPlan, state: State, uploaded: Tensor) -> State:
        """Train the generator against every client's classifier; all ranks do the same."""
        counts, heads = uploaded[:, -self.classes :], uploaded[:, : -self.classes]
        weights = label_weights(counts)
        present = (counts.sum(dim=0) > 0).to(state["labels"])
        choices = present.nonzero().flatten()
        flat = self.generator
        flat.load(state["w"], state["b"])
        flat.module.train()
        optimizer = Adam(
            [flat.parameter],
            lr=self.generator_lr * self.decay**plan.index,
            weight_decay=self.generator_decay,
        )
        optimizer.state[flat.parameter] = {
            "step": state["t"].clone(),
            "exp_avg": state["m"].clone(),
            "exp_avg_sq": state["v"].clone(),
        }
        draw = torch_generator(self.context.seed, "generator training", plan.index)
        for _ in range(self.generator_steps):
            y = choices[torch.randint(len(choices), (self.batch,), generator=draw)]
            y = upload(y, heads.device)
            noise = torch.rand(self.batch, self.noise, generator=draw).to(heads.dtype)
            noise = upload(noise, heads.device)
            flat.g.zero_()
            z = flat.module(noise, y)
            (self._teachers(heads, z, y, weights) + diversity(noise, z)).backward()
            optimizer.step()
        moments = optimizer.state[flat.parameter]
        new = {"m": moments["exp_avg"], "v": moments["exp_avg_sq"], "t": moments["step"]}
        return {
            "w": flat.w.clone(),
            "b": flat.b.clone(),
            "labels": torch.maximum(state["labels"], present),
            **new,
        }

    def _teachers(self, heads: Tensor, z: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """sum_k mean_b u_{k,y_b} CE(head_k(z_b), y_b), with the clients' own classifiers."""
        size = self.head.weight.numel()
        matrices = heads[:, :size].reshape(len(heads), *self.head.weight.shape)
        logits = torch.einsum("kcf,bf->kbc", matrices, z)
        if self.head.bias is not None:
            logits = logits + heads[:, None, size:]
        losses = functional.cross_entropy(
            logits.flatten(0, 1), y.repeat(len(heads)), reduction="none"
        )
        return (weights[:, y] * losses.reshape(len(heads), -1)).mean(dim=1).sum()


def label_weights(counts: Tensor) -> Tensor:
    """u_{k,c}: each client's share of a class, from counts [K, C], as if each had one example
    more.
    """
    return (counts + 1.0) / (counts + 1.0).sum(dim=0)


def diversity(noise: Tensor, z: Tensor) -> Tensor:
    """exp( mean_ij( -mean|eps_i - eps_j|^2 * mean|z_i - z_j| ) ): small when noises differ and
    features, too.
    """
    apart = (z[:, None] - z[None]).abs().mean(dim=2)
    noises = (noise[:, None] - noise[None]).square().mean(dim=2)
    return torch.exp((-noises * apart).mean())

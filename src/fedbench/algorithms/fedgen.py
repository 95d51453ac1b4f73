"""FedGen: a generator of features, trained on the server against the clients' classifiers, helps
local training.

Zhu, Hong and Zhou, "Data-free knowledge distillation for heterogeneous federated learning", 2021;
defaults from the authors' program for MNIST.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Round, Scene, State
from fedbench.core.errors import BadInput, require
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.core.seeding import derive, torch_generator
from fedbench.training.client import Adam

MOST = 10**6  # of any of its sizes and counts


class Network(Model):
    """Noise, uniform on [0, 1), and a label in; an input of the classifier out."""

    def __init__(self, noise: int, classes: int, hidden: int, latent: int):
        super().__init__()
        self.classes = classes
        self.fc1, self.bn, self.fc2 = (
            nn.Linear(noise + classes, hidden),
            nn.BatchNorm1d(hidden),
            nn.Linear(hidden, latent),
        )

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        labels = functional.one_hot(labels, self.classes).to(noise.dtype)
        return self.fc2(functional.relu(self.bn(self.fc1(torch.cat([noise, labels], dim=1)))))


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
    needs_embedding = True
    collects = True
    alpha: float = 10.0
    beta: float = 10.0
    decay: float = 0.98
    generator_steps: int = 50
    generator_lr: float = 3e-4
    generator_decay: float = 1e-2
    batch: int = 32
    noise: int = 32
    hidden: int = 256
    early_stop: int = 20

    def bind(self, scene: Scene, key: str) -> None:
        for name in ("generator_steps", "batch", "noise", "hidden", "early_stop"):
            value, least = getattr(self, name), 2 if name == "batch" else 1
            allowed = f"an integer from {least} to {MOST} is allowed"
            require(least <= value <= MOST, f"{key}.{name}", value, allowed)
        for name in ("alpha", "beta", "generator_decay"):
            value = getattr(self, name)
            require(
                0 <= value <= 1e30, f"{key}.{name}", value, "a number from 0 to 1e30 is allowed"
            )
        require(
            0 < self.generator_lr <= 1e30,
            f"{key}.generator_lr",
            self.generator_lr,
            "a number above 0, at most 1e30, is allowed",
        )
        require(
            0 < self.decay <= 1,
            f"{key}.decay",
            self.decay,
            "a number above 0, at most 1, is allowed",
        )
        super().bind(scene, key)
        model, head = scene.model, scene.model.module.head
        if not isinstance(head, nn.Linear):
            raise BadInput(
                f"{key.replace('modifiers.', '')}: it needs a model whose head is one linear layer"
            )
        self.seed, self.classes, self.head = scene.seed, scene.classes, head
        self.weight, self.bias = (
            model.place(head.weight),
            None if head.bias is None else model.place(head.bias),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive(scene.seed, "generator"))
            network = Network(self.noise, scene.classes, self.hidden, head.in_features).to(
                model.w.dtype
            )
        self.flat = FlatModel(network, model.device)

    def extra_floats(self) -> tuple[int, int]:
        return self.flat.size, self.classes

    def upload_size(self) -> int:
        """The classifier, which is part of the client's update and not sent twice, and label
        counts.
        """
        return self.head.weight.numel() + (0 if self.bias is None else self.classes) + self.classes

    def init_server(self, model: FlatModel) -> State:
        w, b = self.flat.w, self.flat.b
        moments = {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": w.new_zeros(())}
        return {"w": w.clone(), "b": b.clone(), "labels": w.new_zeros(self.classes), **moments}

    def begin(self, local: Local, memory: Memory) -> None:
        memory.scratch["seen"] = local.model.w.new_zeros(self.classes)
        self.flat.load(memory.server["w"], memory.server["b"])
        self.flat.module.eval()

    def loss(self, local: Local, memory: Memory, loss: Tensor) -> Tensor:
        y = local.batch.y
        memory.scratch["seen"] += torch.bincount(y, minlength=self.classes).to(loss.dtype)
        present = memory.server["labels"].nonzero().flatten()
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
            return self.flat.module(noise, labels)

    def finish(self, local: Local, memory: Memory) -> Finished:
        w = local.before + local.update  # as the server gets it
        parts = (
            [w[self.weight], memory.scratch["seen"]]
            if self.bias is None
            else [w[self.weight], w[self.bias], memory.scratch["seen"]]
        )
        return Finished(upload=torch.cat(parts))

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        """Train the generator against every client's classifier; all ranks do the same."""
        counts, heads = uploaded[:, -self.classes :], uploaded[:, : -self.classes]
        weights = label_weights(counts)
        present = (counts.sum(dim=0) > 0).to(state["labels"].dtype)
        choices = present.nonzero().flatten()
        self.flat.load(state["w"], state["b"])
        flat = self.flat
        flat.module.train()
        optimizer = Adam(
            [flat.parameter],
            lr=self.generator_lr * self.decay**facts.index,
            weight_decay=self.generator_decay,
        )
        optimizer.state[flat.parameter] = {
            "step": state["t"].clone(),
            "exp_avg": state["m"].clone(),
            "exp_avg_sq": state["v"].clone(),
        }
        draw = torch_generator(self.seed, "generator training", facts.index)
        for _ in range(self.generator_steps):
            y = choices[
                torch.randint(len(choices), (self.batch,), generator=draw).to(choices.device)
            ]
            noise = torch.rand(self.batch, self.noise, generator=draw).to(heads)
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
        if self.bias is not None:
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

"""Federated training in numpy, part 3: one round, with the pieces of a method switched on one by
one.

FedGen is not here: its generator is trained on random noise, which cannot be followed without
fedbench's own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import floor

import numpy as np

from support.independent import (
    Client,
    Loss,
    Matrix,
    Vector,
    calibrated_cross_entropy,
    contrastive,
    cross_entropy,
    descend,
    label_margins,
    solver_norm,
)
from support.independent_pieces import Ecgr, Gsnr, Ncv, Pgvc, Pmvr, similarity_weights


@dataclass
class Setting:
    """What is the same for every method; all clients take part with their full batch."""

    rounds: int = 3
    steps: int = 4
    rate: float = 0.3
    momentum: float = 0.0
    weight_decay: float = 0.0
    rate_factor: float = 1.0  # applied to the rate after every round
    weights: str = "samples"
    server_rate: float = 1.0


@dataclass
class Method:
    """The pieces; with all of them off this is FedAvg."""

    mu: float = 0.0  # FedProx
    nova: bool = False
    server_momentum: float | None = None  # FedAvgM
    server_variant: str = "heavy-ball"
    variate_layers: int = 0  # SCAFFOLD: all layers; FedPVR: the last ones
    correction: str = "inside"
    dyn: float | None = None  # FedDyn's alpha
    margin: float | None = None  # FedLC's tau
    without_truth: bool = False
    contrast: float | None = None  # MOON's mu
    temperature: float = 0.5
    personal: str | None = None  # the head of FedPer ("per") and FedRep ("rep")
    pgvc: Pgvc | None = None
    pmvr: Pmvr | None = None
    ecgr: Ecgr | None = None
    gsnr: Gsnr | None = None
    ncv: Ncv | None = None


@dataclass
class Memory:
    """What one client keeps between rounds."""

    c: Vector  # SCAFFOLD
    s: Vector  # FedDyn
    m: Vector  # FedPMVR
    head: Vector  # FedPer, FedRep (a whole model, of which only the head counts)
    alpha: float = 0.0  # FedNCV
    sent: float | None = None  # FedNCV: squared norm of the last update
    model: Vector | None = None  # MOON: the last local model


@dataclass
class Training:
    clients: list[Client]
    w: Vector
    setting: Setting
    method: Method
    memories: list[Memory] = field(init=False)
    allocated: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        network, zero = self.clients[0].network, np.zeros_like(self.w)
        start = self.method.ncv.alpha if self.method.ncv else 0.0
        self.memories = [Memory(zero, zero, zero, self.w, start) for _ in self.clients]
        self.c, self.h, self.v = zero, zero, zero
        self.head = network.last(1)
        self.varied = network.last(self.method.variate_layers)
        self.sizes = np.array([len(client.y) for client in self.clients], dtype=np.float64)
        counts = self.sizes if self.setting.weights == "samples" else np.ones(len(self.clients))
        self.p = counts / counts.sum()
        self.rate = self.setting.rate

    def run(self) -> Vector:
        for _ in range(self.setting.rounds):
            self.round()
            self.rate *= self.setting.rate_factor
        if self.method.personal:
            heads = (
                self.sizes / self.sizes.sum() @ np.array([memory.head for memory in self.memories])
            )
            return np.where(self.head, heads, self.w)
        return self.w

    def round(self) -> None:
        steps = self.steps()
        active = [k for k in range(len(self.clients)) if steps[k] > 0]
        paths = {k: self.path(k, steps[k]) for k in active}
        updates = np.array([self.update(k, paths[k]) for k in active])
        variates = {k: self.new_variate(k, paths[k]) for k in active}
        p = self.p[active] / self.p[active].sum()
        aggregate = self.aggregate(p, updates, [steps[k] for k in active], active)
        self.remember(paths, variates)
        self.server_step(aggregate, updates)

    def steps(self) -> list[int]:
        """FedGSNR: from the statistic of the corrected gradients; the correction does not change
        the variance.
        """
        if not self.method.gsnr:
            return [self.setting.steps] * len(self.clients)
        each = [
            client.per_example(self.w, self.loss(k))[1] for k, client in enumerate(self.clients)
        ]
        decay = self.setting.weight_decay * self.w
        means = np.array(
            [rows.mean(axis=0) + self.c - self.memories[k].c + decay for k, rows in enumerate(each)]
        )
        variances = np.array([rows.var(axis=0) for rows in each])
        self.allocated.append(self.method.gsnr.allocate(self.p, means, variances, self.sizes))
        return self.allocated[-1]

    def loss(self, k: int) -> Loss:
        method, client, previous = self.method, self.clients[k], self.memories[k].model
        if method.margin is not None:
            classes = len(client.network.classifier(self.w))
            return calibrated_cross_entropy(
                label_margins(client.y, classes, method.margin), method.without_truth
            )
        if method.contrast is not None and previous is not None:
            return contrastive(
                method.contrast,
                method.temperature,
                client.features(self.w),
                client.features(previous),
            )
        return cross_entropy

    def gradient(self, k: int, y: Vector, loss: Loss) -> Vector:
        """Data, PGVC, proximal term, FedDyn's terms, control variate, weight decay."""
        method, client, memory = self.method, self.clients[k], self.memories[k]
        losses, each = client.per_example(y, loss)
        g = (
            method.pgvc.direction(client.network, losses, each)
            if method.pgvc
            else each.mean(axis=0)
        )
        g = g + method.mu * (y - self.w)
        if method.dyn is not None:
            g = g - memory.s + method.dyn * (y - self.w)
        if method.correction == "inside":
            g = g + self.c - memory.c
        return g + self.setting.weight_decay * y

    def path(self, k: int, steps: int) -> Matrix:
        method, rate, momentum, loss = self.method, self.rate, self.setting.momentum, self.loss(k)
        start = np.where(self.head, self.memories[k].head, self.w) if method.personal else self.w

        def gradient(y: Vector) -> Vector:
            return self.gradient(k, y, loss)

        if (
            method.personal == "rep"
        ):  # one full-batch step is one epoch: the last one trains the body
            first = descend(start, lambda y: self.head * gradient(y), steps - 1, rate, momentum)
            second = descend(first[-1], lambda y: ~self.head * gradient(y), 1, rate, momentum)
            return np.concatenate([first, second[1:]])
        if method.pmvr and method.pmvr.variant == "eq12":
            return descend(start, self.averaged(gradient), steps, rate)
        outside = self.c - self.memories[k].c if method.correction == "outside" else 0.0
        return descend(start, gradient, steps, rate, momentum, outside)

    def averaged(self, gradient):
        """FedPMVR, Eq. 12: b = alpha * b + (1 - alpha) * g in the head, from zero in every
        round.
        """
        alpha, masked = (
            self.method.pmvr.alpha,
            self.clients[0].network.last(self.method.pmvr.layers),
        )
        b = np.zeros_like(self.w)

        def direction(y: Vector) -> Vector:
            nonlocal b
            g = gradient(y)
            b = alpha * b + (1.0 - alpha) * g
            return np.where(masked, b, g)

        return direction

    def update(self, k: int, path: Matrix) -> Vector:
        """After minus before, as it is sent: first ECGR, then PMVR."""
        method, client, memory = self.method, self.clients[k], self.memories[k]
        update = path[-1] - path[0]
        if method.ecgr:  # what stays on the client is no part of what it sees
            update = method.ecgr.update(np.where(self.head, 0.0, path) if method.personal else path)
        if method.pgvc and method.pgvc.rho == "code":
            update = method.pgvc.rescaled(client, path[-1], self.rate) - self.w
        if method.pmvr:
            masked = client.network.last(method.pmvr.layers)
            update, memory.m = method.pmvr.corrected(update, masked, memory.m)
            if method.pmvr.variant == "alg1":
                update = update - np.where(masked, method.pmvr.alpha, self.rate) * client.gradient(
                    path[-1]
                )
        return np.where(self.head, 0.0, update) if method.personal else update

    def norm(self, steps: int) -> float:
        return solver_norm(steps, self.rate, self.setting.momentum, self.method.mu)

    def new_variate(self, k: int, path: Matrix) -> Vector:
        """c_k - c + (w - y) / (rate * ||a||_1), from the path and not from what is sent."""
        steps = len(path) - 1
        divisor = steps if self.method.correction == "outside" else self.norm(steps)
        return self.varied * (
            self.memories[k].c - self.c + (path[0] - path[-1]) / (self.rate * divisor)
        )

    def aggregate(self, p: Vector, updates: Matrix, steps: list[int], active: list[int]) -> Vector:
        if self.method.nova:
            norms = np.array([self.norm(count) for count in steps])
            effective = p @ norms if self.setting.momentum else p @ np.array(steps)
            return effective * (p / norms) @ updates
        if self.method.ncv:
            alphas = np.array([self.memories[k].alpha for k in active])
            return (self.method.ncv.weights(p) * (1.0 - alphas)) @ updates
        return p @ updates

    def remember(self, paths: dict[int, Matrix], variates: dict[int, Vector]) -> None:
        for k, path in paths.items():
            memory, moved = self.memories[k], path[-1] - self.w
            self.c = self.c + self.p[k] * (
                variates[k] - memory.c
            )  # p over all clients: c stays the mean of the c_k
            memory.c, memory.head, memory.model = variates[k], path[-1], path[-1]
            if self.method.dyn is not None:
                memory.s = memory.s - self.method.dyn * moved
            if self.method.ncv:
                memory.alpha, memory.sent = self.method.ncv.next_alpha(
                    memory.alpha, moved, memory.sent
                )

    def server_step(self, aggregate: Vector, updates: Matrix) -> None:
        method, beta = self.method, self.method.server_momentum
        if method.dyn is not None:
            self.h = self.h - method.dyn / len(self.clients) * updates.sum(axis=0)
            self.w = self.w + updates.mean(axis=0) - self.h / method.dyn
            return
        step = aggregate
        if beta is not None:
            self.v = (
                beta * self.v + (1.0 - beta if method.server_variant == "ema" else 1.0) * aggregate
            )
            step = aggregate + beta * self.v if method.server_variant == "nesterov" else self.v
        self.w = self.w + self.setting.server_rate * step


def pfedsim(clients: list[Client], w: Vector, setting: Setting, warmup: float = 0.5) -> Vector:
    """FedAvg for a share of the rounds; then extractors mixed by the similarity of the
    classifiers.
    """
    first = floor(warmup * setting.rounds)
    sizes = np.array([len(client.y) for client in clients], dtype=np.float64)
    p, head = sizes / sizes.sum(), clients[0].network.last(1)
    for _ in range(first):
        w = p @ np.array(
            [descend(w, client.gradient, setting.steps, setting.rate)[-1] for client in clients]
        )
    starts = np.array([w for _ in clients])
    for _ in range(setting.rounds - first):
        models = np.array(
            [
                descend(start, client.gradient, setting.steps, setting.rate)[-1]
                for client, start in zip(clients, starts, strict=True)
            ]
        )
        mixing = similarity_weights([clients[0].network.classifier(model) for model in models])
        starts = np.where(head, models, mixing @ models)
    return p @ starts

"""Federated training in numpy and float64, part 1: the network, its per-example gradients and a
client's path.

Written from the equations alone. These `independent*` files import nothing but numpy and the
standard library, so that an error in fedbench cannot be repeated here by sharing its code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Vector = np.ndarray  # [d]: all parameters, tensor after tensor, each in PyTorch's layout
Matrix = np.ndarray


@dataclass
class Outputs:
    """What the network says about every example; the features are what the last layer sees."""

    inputs: list[Matrix]  # of every layer
    logits: Matrix

    @property
    def features(self) -> Matrix:
        return self.inputs[-1]


# Labels and outputs -> loss of every example, its slope in the logits, its slope in the features.
Loss = Callable[[Outputs, Vector], tuple[Vector, Matrix, Matrix]]


class Network:
    """fc1 - ReLU - fc2 - ReLU - fc3 on one flat vector."""

    def __init__(self, inputs: int, hidden: list[int], classes: int) -> None:
        widths = [inputs, *hidden, classes]
        self.tensors: dict[str, tuple[slice, tuple[int, ...]]] = {}
        self.layers: list[slice] = []  # a layer is weight and bias together
        self.size = 0
        for number, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
            begin = self.size
            for kind, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
                end = self.size + int(np.prod(shape))
                self.tensors[f"fc{number}.{kind}"] = (slice(self.size, end), shape)
                self.size = end
            self.layers.append(slice(begin, self.size))

    def named(self, w: Vector) -> dict[str, np.ndarray]:
        return {name: w[where].reshape(shape) for name, (where, shape) in self.tensors.items()}

    def flat(self, tensors: dict[str, np.ndarray]) -> Vector:
        return np.concatenate([tensors[name].astype(np.float64).ravel() for name in self.tensors])

    def last(self, layers: int) -> Vector:
        """True on the parameters of the last layers."""
        mask = np.zeros(self.size, dtype=bool)
        for where in self.layers[len(self.layers) - layers :]:
            mask[where] = True
        return mask

    def classifier(self, w: Vector) -> Matrix:
        return self.named(w)[f"fc{len(self.layers)}.weight"]

    def forward(self, w: Vector, x: Matrix) -> Outputs:
        named, inputs, last = self.named(w), [x], len(self.layers)
        for number in range(1, last + 1):
            value = inputs[-1] @ named[f"fc{number}.weight"].T + named[f"fc{number}.bias"]
            if number == last:
                return Outputs(inputs, value)
            inputs.append(np.maximum(value, 0.0))
        raise AssertionError

    def per_example(self, w: Vector, x: Matrix, y: Vector, loss: Loss) -> tuple[Vector, Matrix]:
        """The loss [n] and the gradient [n, d] of every example."""
        outputs, named = self.forward(w, x), self.named(w)
        losses, slope, feature_slope = loss(outputs, y)
        gradients = np.empty((len(x), self.size))
        for number in range(len(self.layers), 0, -1):
            seen = outputs.inputs[number - 1]
            gradients[:, self.tensors[f"fc{number}.weight"][0]] = np.einsum(
                "no,ni->noi", slope, seen
            ).reshape(len(x), -1)
            gradients[:, self.tensors[f"fc{number}.bias"][0]] = slope
            slope = slope @ named[f"fc{number}.weight"]
            if number == len(self.layers):
                slope = slope + feature_slope
            slope = slope * (seen > 0)  # through the ReLU that made this input
        return losses, gradients


def log_sum_exp(values: Matrix) -> Vector:
    top = values.max(axis=1)
    return top + np.log(np.exp(values - top[:, None]).sum(axis=1))


def cross_entropy(outputs: Outputs, y: Vector) -> tuple[Vector, Matrix, Matrix]:
    return calibrated_cross_entropy(np.zeros(outputs.logits.shape[1]))(outputs, y)


def calibrated_cross_entropy(margins: Vector, without_truth: bool = False) -> Loss:
    """FedLC: z_c - margin_c. `without_truth` is the paper's form, whose denominator leaves the true
    class out.
    """

    def loss(outputs: Outputs, y: Vector) -> tuple[Vector, Matrix, Matrix]:
        rows = np.arange(len(y))
        calibrated = outputs.logits - margins
        denominator = calibrated.copy()
        if without_truth:
            denominator[rows, y] = -np.inf
        total = log_sum_exp(denominator)
        slope = np.exp(denominator - total[:, None])
        slope[rows, y] -= 1.0
        return total - calibrated[rows, y], slope, np.zeros_like(outputs.features)

    return loss


def label_margins(y: Vector, classes: int, tau: float) -> Vector:
    """tau * n_c^(-1/4); a missing class counts as 1e-8 examples, which masks it."""
    return tau * np.maximum(np.bincount(y, minlength=classes), 1e-8) ** -0.25


def cosine(a: Matrix, b: Matrix) -> tuple[Vector, Matrix]:
    """cos(a, b) row by row, and its gradient in a."""
    norm_a = np.maximum(np.linalg.norm(a, axis=1), 1e-8)  # an example may have no active feature
    norm_b = np.maximum(np.linalg.norm(b, axis=1), 1e-8)
    value = (a * b).sum(axis=1) / (norm_a * norm_b)
    return value, b / (norm_a * norm_b)[:, None] - (value / norm_a**2)[:, None] * a


def contrastive(mu: float, temperature: float, received: Matrix, previous: Matrix) -> Loss:
    """MOON: cross-entropy - mu * log(e^(cos(z, zg)/T) / (e^(cos(z, zg)/T) + e^(cos(z, zp)/T)))."""

    def loss(outputs: Outputs, y: Vector) -> tuple[Vector, Matrix, Matrix]:
        losses, slope, _ = cross_entropy(outputs, y)
        near, near_slope = cosine(outputs.features, received)
        far, far_slope = cosine(outputs.features, previous)
        term = np.log1p(np.exp((far - near) / temperature))
        share = 1.0 / (1.0 + np.exp((near - far) / temperature))
        return (
            losses + mu * term,
            slope,
            mu * (share / temperature)[:, None] * (far_slope - near_slope),
        )

    return loss


@dataclass
class Client:
    network: Network
    x: Matrix
    y: Vector

    def per_example(self, w: Vector, loss: Loss = cross_entropy) -> tuple[Vector, Matrix]:
        return self.network.per_example(w, self.x, self.y, loss)

    def gradient(self, w: Vector) -> Vector:
        return self.per_example(w)[1].mean(axis=0)

    def features(self, w: Vector) -> Matrix:
        return self.network.forward(w, self.x).features


def descend(
    start: Vector,
    gradient: Callable[[Vector], Vector],
    steps: int,
    rate: float,
    momentum: float = 0.0,
    outside: Vector | float = 0.0,
) -> Matrix:
    """PyTorch's SGD: all iterates [steps + 1, d], the start first. `outside` goes past the momentum
    buffer.
    """
    path, buffer = [start], np.zeros_like(start)
    for _ in range(steps):
        buffer = momentum * buffer + gradient(path[-1])
        path.append(path[-1] - rate * (buffer + outside))
    return np.array(path)


def solver_norm(steps: int, rate: float, momentum: float = 0.0, mu: float = 0.0) -> float:
    """||a||_1 of the local solver: what it accumulates when every gradient is one."""
    moved = buffer = 0.0
    for _ in range(steps):
        buffer = momentum * buffer + 1.0 - rate * mu * moved
        moved += buffer
    return moved

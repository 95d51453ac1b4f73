"""FedPGVC: what the last layers step along instead of their gradient. FedPGVC paper, Eqs. 8-10, 14,
15.

The paper contradicts itself on the penalty rho, so its readings have names; see docs/algorithms.md.
None but `code` leaves a linear solver behind on the mask, so client momentum is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.algorithms.modifier import Local, Memory, Modifier, Round, Scene, masked
from fedbench.core.errors import nearest, require
from fedbench.core.flat_model import flatten

LEAST_NORM = 1e-30  # a gradient of zero stays zero
READINGS = ("norm", "eq15", "layer_norm", "layer_mean", "wdro", "add", "code")


@dataclass
class Pgvc(Modifier):
    """On the last layers, with g the mini-batch gradient and rho the gradient of half the mean
    squared loss (Eq. 14):

    norm        sigma * g_l / ||g_l||  for every layer l (Eqs. 8-10: steps of constant length)
    eq15        rho (*) g, entry by entry, as printed: not a descent direction
    layer_norm  ||rho_l|| * g_l
    layer_mean  mean(rho_l) * g_l
    wdro        rho itself (the appendix: the gradient of a distributionally robust loss)
    add         g + rho
    code        the released program: g, and after training every layer times (1 - eta * s_l)
    """

    order = 10
    rho: str = "norm"
    sigma: float = 1.0
    layers: int = 2
    skip: int = 0  # layers at the end that are left out before `layers` are counted

    def bind(self, scene: Scene, key: str) -> None:
        require(self.rho in READINGS, f"{key}.rho", self.rho, nearest(str(self.rho), READINGS))
        require(
            0 < self.sigma <= 1e6,
            f"{key}.sigma",
            self.sigma,
            "a number above 0, at most 1e6, is allowed",
        )
        count = len(scene.model.layers)
        allowed = f"the model has {count} layers with weights, so 0 to {count} are allowed"
        require(0 <= self.skip <= count, f"{key}.skip", self.skip, allowed)
        self.where = masked(scene, self.layers, key, self.skip)
        self.pieces = scene.model.layers_in(self.where)
        self.inputs = scene.model.parameters_in(self.where)
        self.numbers = range(count - self.skip - self.layers, count - self.skip)

    @property
    def active(self) -> bool:
        return self.layers != 0

    @property
    def needs_plain_sgd(self) -> str:
        return (
            ""
            if self.rho == "code"
            else "its steps on the last layers are no gradients that momentum may sum up"
        )

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        known = fields if self.rho == "norm" else {**fields, "sigma": None}
        return (
            known if self.skip else {key: value for key, value in known.items() if key != "skip"}
        )  # a later field

    def extra_gradients(self, facts: Round) -> int:
        return sum(facts.samples) if self.rho == "code" else 0

    def probe(self, local: Local, memory: Memory) -> None:
        """rho = 1/B sum_b l_b grad l_b, by one more backward pass through the last layers."""
        if self.rho in ("norm", "code") or local.shared_frozen:
            return
        each = local.batch.each
        weights = each.detach() / len(each)
        memory.scratch["rho"] = flatten(
            torch.autograd.grad(each, self.inputs, weights, retain_graph=True)
        )

    def grad(self, local: Local, memory: Memory) -> None:
        if self.rho == "code" or local.shared_frozen:
            return
        g, rho = self.where.read(local.model.g), memory.scratch.get("rho")
        if self.rho == "eq15":
            g.mul_(rho)
        elif self.rho == "wdro":
            g.copy_(rho)
        elif self.rho == "add":
            g.add_(rho)
        else:
            for piece in self.pieces:  # one number a layer, weight and bias together
                g[piece].mul_(self._scale(g[piece], None if rho is None else rho[piece]))
        if isinstance(self.where.index, Tensor):  # g is no view then
            self.where.write(local.model.g, g)

    def _scale(self, g: Tensor, rho: Tensor | None) -> Tensor:
        if self.rho == "layer_norm":
            return torch.linalg.vector_norm(rho)
        if self.rho == "layer_mean":
            return rho.mean()
        return self.sigma / torch.linalg.vector_norm(g).clamp_(min=LEAST_NORM)

    def update(self, local: Local, memory: Memory) -> None:
        """`code`: s_l is the loss of example l times the mean entry of the summed gradient of
        *tensor* l.

        The released program mixes up the numbers of examples, tensors and layers in this way.
        """
        if self.rho != "code":
            return
        model, trainer = local.model, local.trainer
        numbers = [
            number for number in self.numbers if number < min(local.samples, len(model.places))
        ]
        if not numbers:
            return
        summed = local.samples * trainer.gradient(
            local.own, only=[model.places[number][0] for number in numbers]
        )
        for number in numbers:
            x, y = trainer.train.batch(local.own[number : number + 1])
            with torch.no_grad():
                loss = trainer.loss(model.module(x), y)
            _, start, stop = model.places[number]
            layer = slice(model.layers[number].start, model.layers[number].stop)
            local.update[layer] -= local.lr * loss * summed[start:stop].mean() * model.w[layer]

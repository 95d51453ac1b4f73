"""FedPGVC: what the last layers step along instead of their gradient, and the server of Eq. 16.

FedPGVC paper, Eqs. 8-10, 14-16. The paper contradicts itself on the penalty rho, so its readings
have names; see docs/algorithms.md. None but `code` leaves a linear solver behind on the mask, so
client momentum is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fedbench.algorithms.context import Clients, LocalRun, Memory, RoundPlan, State
from fedbench.algorithms.modifier import Needs, OnLastLayers
from fedbench.algorithms.server_optimizer import Add
from fedbench.core.fields import choice, count, number_or
from fedbench.core.flat_model import FlatModel, flatten

LEAST_NORM = 1e-30  # a gradient of zero stays zero
READINGS = (
    "norm",
    "eq15",
    "layer_norm",
    "layer_mean",
    "wdro",
    "add",
    "loss",
    "gradient_norm",
    "code",
)
WITHOUT_PENALTY = ("norm", "gradient_norm", "code")
MEASURED = ("measured", "measured_mean")
NO_MOMENTUM = "its steps on the last layers are no gradients that momentum may sum up"


@dataclass
class Pgvc(OnLastLayers):
    """On the last layers, with g the mini-batch gradient and rho the gradient of half the mean
    squared loss (Eq. 14):

    norm        sigma * g_l / ||g_l||  for every layer l (Eqs. 8-10: steps of constant length);
                sigma `measured` is the standard deviation of the norms of layer l's gradients
                under IID data (Eq. 5), `measured_mean` their mean, which is what Eq. 10 wants
    eq15        rho (*) g, entry by entry, as printed: not a descent direction
    layer_norm  ||rho_l|| * g_l
    layer_mean  mean(rho_l) * g_l
    wdro        rho itself (the appendix: the gradient of a distributionally robust loss)
    add         g + rho
    loss        the mean loss of the batch times g (what section 3.3.1 sets Eq. 14 against)
    gradient_norm  ||g_l|| * g_l (the same)
    code        the released program: g, and after training every layer times (1 - eta * s_l)
    """

    order = 10
    capturable = True
    rho: str = choice("norm", READINGS)
    sigma: int | float | str = number_or(1.0, MEASURED, above=0, at_most=1e6)
    sigma_rounds: int = count(5)  # of the IID run by which sigma is measured

    @cached_property
    def layer_slices(self) -> list[slice]:
        """Of the values of `where`."""
        return self.context.model.layers_in(self.where)

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        return self.context.model.parameters_in(self.where)

    @property
    def active(self) -> bool:
        return self.layers != 0

    @property
    def needs(self) -> Needs:
        return Needs(no_momentum="" if self.rho == "code" else NO_MOMENTUM)

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self.measures:
            return fields
        kept = {name: value for name, value in fields.items() if name != "sigma_rounds"}
        return {**kept, "sigma": float(self.sigma) if self.rho == "norm" else None}

    @property
    def measures(self) -> bool:
        return self.rho == "norm" and self.sigma in MEASURED

    def init_server(self, model: FlatModel) -> State:
        return {"sigma": model.w.new_zeros(len(self.layer_slices))} if self.measures else {}

    def measure(self, clients: Clients) -> State:
        if not self.measures:
            return {}
        found = clients.iid_gradient_norms(self.where, self.layer_slices, self.sigma_rounds)
        mean, deviation = (value.to(clients.weights) for value in found)
        return {"sigma": deviation if self.sigma == "measured" else mean}

    def facts(self, state: State) -> dict[str, float]:
        """sigma by the name of its layer."""
        if not self.measures:
            return {}
        model = self.context.model
        touched = [one for one in model.layers if model.overlaps(self.where, one)]
        values = state["sigma"].tolist()
        return {f"sigma/{one.name}": value for one, value in zip(touched, values, strict=True)}

    def extra_gradients(self, plan: RoundPlan) -> int:
        return sum(plan.samples) if self.rho == "code" else 0

    def probe(self, local: LocalRun, memory: Memory) -> None:
        """rho = 1/B sum_b l_b grad l_b, by one more backward pass through the last layers."""
        if self.rho in WITHOUT_PENALTY or local.shared_frozen:
            return
        each = local.batch.each
        if self.rho == "loss":
            memory.scratch["rho"] = each.detach().mean()
            return
        weights = each.detach() / len(each)
        gradients = torch.autograd.grad(each, self.parameters, weights, retain_graph=True)
        memory.scratch["rho"] = flatten(gradients)

    def grad(self, local: LocalRun, memory: Memory) -> None:
        if self.rho == "code" or local.shared_frozen:
            return
        g = self.where.read(local.model.g)
        if self.rho == "norm":
            sigmas = (
                memory.server["sigma"] if self.measures else [self.sigma] * len(self.layer_slices)
            )
            for layer, sigma in zip(self.layer_slices, sigmas, strict=True):
                g[layer].mul_(sigma / torch.linalg.vector_norm(g[layer]).clamp_(LEAST_NORM))
        else:
            self._penalise(g, g if self.rho == "gradient_norm" else memory.scratch["rho"])
        if isinstance(self.where.index, Tensor):  # g is no view then
            self.where.write(local.model.g, g)

    def _penalise(self, g: Tensor, rho: Tensor) -> None:
        if self.rho in ("eq15", "loss"):
            g.mul_(rho)
        elif self.rho == "wdro":
            g.copy_(rho)
        elif self.rho == "add":
            g.add_(rho)
        elif self.rho in ("layer_norm", "gradient_norm"):
            for layer in self.layer_slices:
                g[layer].mul_(torch.linalg.vector_norm(rho[layer]))
        elif self.rho == "layer_mean":
            for layer in self.layer_slices:
                g[layer].mul_(rho[layer].mean())

    def update(self, local: LocalRun, memory: Memory) -> None:
        """`code`: s_l is the loss of example l times the mean entry of the summed gradient of
        *tensor* l.

        The released program mixes up the numbers of examples, tensors and layers in this way.
        """
        if self.rho != "code":
            return
        model = local.model
        tensors, last = model.parameter_slices, len(model.layers) - self.skip
        numbers = range(last - self.layers, min(last, local.samples, len(tensors)))
        if not numbers:
            return
        summed = local.samples * local.own.gradient(only=[tensors[n][0] for n in numbers])
        for n in numbers:
            _, start, stop = tensors[n]
            layer = slice(model.layers[n].start, model.layers[n].stop)
            loss = local.own.loss_of(n)
            local.update[layer] -= local.lr * loss * summed[start:stop].mean() * model.w[layer]


@dataclass
class Eq16(Add):
    """Eq. 16 as printed (`literal`) is w <- (1 - lr) w + mean y_k with lr = eta_g.

    Its coefficients sum to 2 - lr, so the model grows every round unless lr = 1; the convex
    reading, (1 - lr) w + lr mean y_k, is the default.
    """

    literal: bool = False

    def identity(self, fields: dict[str, Any], lr: float) -> dict[str, Any]:
        return {**fields, "literal": self.literal and lr != 1.0}

    def step(
        self, plan: RoundPlan, weights: Tensor, update: Tensor, state: State
    ) -> tuple[Tensor, State]:
        if not self.literal or plan.server_lr == 1.0:  # the readings agree then, to the last bit
            return update, state
        return ((1.0 - plan.server_lr) * weights + update) / plan.server_lr, state

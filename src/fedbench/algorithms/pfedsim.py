"""pFedSim: after a FedAvg phase, clients with similar classifiers share their feature extractors.

Tan, Zhou and Shi, "pFedSim: similarity-aware model aggregation towards personalized federated
learning", 2023; the formulas are those of the authors' program, which is part of FL-bench.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, cast

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.context import (
    ClientResult,
    Clients,
    LocalRun,
    Memory,
    RoundPlan,
    State,
)
from fedbench.algorithms.modifier import Modifier
from fedbench.core.fields import number
from fedbench.core.flat_model import FlatModel, Selection
from fedbench.parallel.exchange import Exchange

LARGEST = 0.9999  # of a similarity: two equal classifiers would weigh infinitely much
ROW_ELEMENTS = 2**23  # of all clients' models that are exchanged at a time


def is_personal(warmup: float, index: int, rounds: int | None) -> bool:
    """Whether a round belongs to the second phase."""
    assert rounds is not None  # both pieces declare that they use it
    return index >= int(warmup * rounds + 1e-9)  # 0.29 of 100 rounds are 29


@dataclass
class UntilWarm(Mean):
    """The aggregate slot: FedAvg in the first phase, nothing in the second."""

    uses_rounds: ClassVar[bool] = True
    warmup: float = 0.5

    def coefficients(self, plan: RoundPlan) -> list[float]:
        personal = is_personal(self.warmup, plan.index, plan.rounds)
        return [0.0] * len(plan.weights) if personal else plan.weights


@dataclass
class Similarity(Modifier):
    """Second phase: client i starts from sum_j a_ij extractor_j and its own classifier, trains and
    returns both.

    sim_ij = max(0, mean over classes of cos(classifier row of i, of j)), refreshed for pairs that
    meet in a round; a_ij is proportional to -log(1 - sim_ij) with sim_ii = 0.9999. Who has met
    nobody similar keeps its own extractor. Batch-norm statistics are averaged over the cohort, as
    everywhere.
    """

    order = 90
    personal = True
    uses_rounds = True
    collects = True
    warmup: float = number(0.5, at_least=0, at_most=1)

    @cached_property
    def body(self) -> Selection:
        model = self.context.model
        return model.select([(0, model.layers[-1].start)])

    @property
    def head(self) -> nn.Linear:
        return cast(nn.Linear, self.context.model.module.head)

    @cached_property
    def classifier(self) -> slice:
        return self.context.model.place(cast(nn.Parameter, self.head.weight))

    @property
    def upload_size(self) -> int:
        return self.classifier.stop - self.classifier.start

    def traffic(self, plan: RoundPlan) -> tuple[int, int]:
        return 0, 0  # the classifier is part of the client's update and not sent twice

    def init_server(self, model: FlatModel) -> State:
        return {"similarity": torch.eye(self.context.clients, dtype=torch.float64)}

    def start(self, clients: Clients, index: int, members: list[int]) -> dict[int, Tensor]:
        """Every rank mixes the models of its clients from all clients' models, some columns at a
        time.
        """
        if not is_personal(self.warmup, index, self.context.rounds):
            return {}
        group, owners, kind = clients.group, clients.owners, clients.weights.dtype
        similarity = clients.server_state(self.name)["similarity"]
        weights = mixture(similarity).to(kind).cpu()
        mine = [k for k in members if owners[k] == group.rank]
        device = clients.weights.device
        starts = {k: self._model(clients, k).to(device, copy=True) for k in mine}
        owned = [k for k, owner in enumerate(owners) if owner == group.rank]
        width = max(1, ROW_ELEMENTS // len(owners))
        for first in range(0, self.body.size, width):
            columns = slice(first, min(first + width, self.body.size))
            exchange = Exchange(group, owners, columns.stop - first, kind)
            for row, k in zip(exchange.mine, owned, strict=True):
                row[:] = self._model(clients, k)[columns]
            exchange.send()
            rows = exchange.rows()
            for k in mine:
                starts[k][columns] = (weights[k] @ rows).to(starts[k].device)
        return starts

    def _model(self, clients: Clients, client: int) -> Tensor:
        kept = clients.client_state(client, self.name)
        return kept["w"] if kept else clients.weights

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        sent = local.before + local.update
        if not is_personal(self.warmup, local.round, self.context.rounds):
            return ClientResult(upload=sent[self.classifier])
        return ClientResult(client={"w": sent}, upload=sent[self.classifier])

    def server(self, plan: RoundPlan, state: State, uploaded: Tensor) -> State:
        if not is_personal(self.warmup, plan.index, plan.rounds):
            return state
        similarity = state["similarity"].clone()
        cohort = torch.tensor(plan.cohort, device=similarity.device)
        classifiers = uploaded.double().reshape(len(cohort), self.head.out_features, -1)
        similarity[cohort[:, None], cohort] = similarities(classifiers).to(similarity.device)
        return {"similarity": similarity}


def similarities(classifiers: Tensor) -> Tensor:
    """[K, C, F] -> [K, K]: the mean over classes of the cosine of two classifiers' rows, at least
    0.
    """
    directions = functional.normalize(classifiers, dim=2)
    return (
        torch.einsum("icf,jcf->ij", directions, directions).div(classifiers.shape[1]).clamp(min=0.0)
    )


def mixture(similarity: Tensor) -> Tensor:
    """a_ij: rows that sum to one."""
    clipped = similarity.clone().fill_diagonal_(LARGEST).clamp(max=LARGEST)
    weights = -torch.log1p(-clipped)
    return weights / weights.sum(dim=1, keepdim=True)

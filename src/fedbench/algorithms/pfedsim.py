"""pFedSim: after a FedAvg phase, clients with similar classifiers share their feature extractors.

Tan, Zhou and Shi, "pFedSim: similarity-aware model aggregation towards personalized federated
learning", 2023; the formulas are those of the authors' program, which is part of FL-bench.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as functional
from torch import Tensor

from fedbench.algorithms.aggregate import Mean
from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Round, Scene, State
from fedbench.core.errors import require
from fedbench.core.flat_model import FlatModel
from fedbench.parallel.exchange import Exchange

if TYPE_CHECKING:
    from fedbench.training.federation import Federation

LARGEST = 0.9999  # of a similarity: two equal classifiers would weigh infinitely much
ROW_ELEMENTS = 2**23  # of all clients' models that are exchanged at a time


def is_personal(warmup: float, index: int, rounds: int) -> bool:
    """Whether a round belongs to the second phase."""
    return index >= int(warmup * rounds + 1e-9)  # 0.29 of 100 rounds are 29


@dataclass
class UntilWarm(Mean):
    """The aggregate slot: FedAvg in the first phase; in the second the server's model stays as it
    is.
    """

    warmup: float = 0.5

    def coefficients(self, facts: Round) -> list[float]:
        personal = is_personal(self.warmup, facts.index, facts.rounds)
        return [0.0] * len(facts.weights) if personal else facts.weights


@dataclass
class Similarity(Modifier):
    """Second phase: client i starts from extractor sum_j a_ij extractor_j and its own classifier,
    trains, returns both.

    sim_ij = max(0, mean over classes of cos(classifier row of i, of j)), refreshed for pairs that
    meet in a round; a_ij is proportional to -log(1 - sim_ij) with sim_ii = 0.9999. Who has met
    nobody similar keeps its own extractor. Batch-norm statistics are averaged over the cohort, as
    everywhere.
    """

    order = 90
    personal = True
    collects = True
    warmup: float = 0.5

    def bind(self, scene: Scene, key: str) -> None:
        require(
            0 <= self.warmup <= 1, f"{key}.warmup", self.warmup, "a number from 0 to 1 is allowed"
        )
        super().bind(scene, key)
        self.name, self.clients, self.rounds = key.split(".")[-1], scene.clients, scene.rounds
        self.body = scene.model.select([(0, scene.model.layers[-1].start)])
        self.classifier = scene.model.place(scene.model.module.head.weight)
        self.classes = scene.model.module.head.weight.shape[0]

    def upload_size(self) -> int:
        return self.classifier.stop - self.classifier.start

    def init_server(self, model: FlatModel) -> State:
        return {"similarity": torch.eye(self.clients, dtype=torch.float64)}

    def start(self, federation: Federation, clients: list[int]) -> dict[int, Tensor]:
        """Every rank mixes the models of the clients that it owns, from all clients' models, some
        columns at a time.
        """
        state, group = federation.state, federation.group
        if not is_personal(self.warmup, federation.done, self.rounds):
            return {}
        weights = mixture(state.server[self.name]["similarity"]).to(state.w.dtype).cpu()
        mine = [k for k in clients if federation.owners[k] == group.rank]
        starts = {k: self._model(state, k).clone() for k in mine}
        owned = [k for k in range(self.clients) if federation.owners[k] == group.rank]
        width = max(1, ROW_ELEMENTS // self.clients)
        for first in range(0, self.body.size, width):
            columns = slice(first, min(first + width, self.body.size))
            exchange = Exchange(group, federation.owners, columns.stop - first, state.w.dtype)
            for row, k in zip(exchange.mine, owned, strict=True):
                row[:] = self._model(state, k)[columns]
            exchange.send()
            rows = exchange.rows()
            for k in mine:
                starts[k][columns] = (weights[k] @ rows).to(starts[k].device)
        return starts

    def _model(self, state, client: int) -> Tensor:
        kept = state.clients.get(client, {}).get(self.name)
        return kept["w"] if kept else state.w

    def finish(self, local: Local, memory: Memory) -> Finished:
        sent = local.before + local.update
        if not is_personal(self.warmup, local.round, self.rounds):
            return Finished(upload=sent[self.classifier])
        return Finished(client={"w": sent}, upload=sent[self.classifier])

    def server(self, facts: Round, state: State, uploaded: Tensor | None) -> State:
        if not is_personal(self.warmup, facts.index, facts.rounds):
            return state
        similarity = state["similarity"].clone()
        cohort = torch.tensor(facts.cohort, device=similarity.device)
        met = similarities(uploaded.double().reshape(len(cohort), self.classes, -1)).to(
            similarity.device
        )
        similarity[cohort[:, None], cohort] = met
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

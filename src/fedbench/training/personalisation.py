"""How good clients' models are on data of their own: as received, and after one round of local
training.

The FedNCV paper reports both. Every client is asked at every evaluation, whether it takes part in
rounds or not; the local training is the one that the client would do in the next round, with the
same batches, and is thrown away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.parallel.exchange import gather

if TYPE_CHECKING:
    from fedbench.training.federation import Federation

STAGES = ("before", "after")


@dataclass
class LocalScores:
    """A row a client that has test examples of its own."""

    clients: list[int]
    sizes: list[int]  # test examples
    numbers: Tensor  # [clients, 4]: accuracy and loss before, accuracy and loss after

    def columns(self) -> dict[str, float]:
        """Mean and standard deviation over clients, and the mean weighted by their test
        examples.
        """
        found = {}
        weights = torch.tensor(self.sizes, dtype=torch.float64)
        for position, stage in enumerate(STAGES):
            accuracies, losses = self.numbers[:, 2 * position], self.numbers[:, 2 * position + 1]
            found[f"local_{stage}_accuracy"] = float(accuracies.mean())
            found[f"local_{stage}_accuracy_std"] = float(accuracies.std(correction=0))
            found[f"local_{stage}_accuracy_weighted"] = float(accuracies @ weights / weights.sum())
            found[f"local_{stage}_loss"] = float(losses.mean())
        return found

    def rows(self, round_number: int) -> list[dict[str, object]]:
        names = [f"{what}_{stage}" for stage in STAGES for what in ("accuracy", "loss")]
        return [
            {
                "round": round_number,
                "client": client,
                "test_samples": size,
                **dict(zip(names, row.tolist(), strict=True)),
            }
            for client, size, row in zip(self.clients, self.sizes, self.numbers, strict=True)
        ]


def score_clients(federation: Federation, local_tests: list[Tensor]) -> LocalScores:
    """All ranks take part, each with the clients that it owns."""
    clients = [k for k in federation.eligible if len(local_tests[k])]
    owners = [federation.owners[k] for k in clients]
    facts = federation.facts(federation.done, clients, [federation.planned[k] for k in clients])
    federation.prepare_starts(clients)
    found = []
    for position, client in enumerate(clients):
        if owners[position] != federation.group.rank:
            continue
        before, memories = federation.state.receive(client)
        scores = [*_score(federation, local_tests[client])]
        federation.trainer(facts, position, federation.shards[client], before, memories)
        found.append([*scores, *_score(federation, local_tests[client])])
    rows = torch.tensor(found, dtype=torch.float64).reshape(len(found), 4)
    return LocalScores(
        clients, [len(local_tests[k]) for k in clients], gather(federation.group, rows, owners)
    )


def _score(federation: Federation, own: Tensor) -> tuple[float, float]:
    """Accuracy and loss of the model as it stands."""
    return federation.evaluator.score_part(federation.trainer.train, own)

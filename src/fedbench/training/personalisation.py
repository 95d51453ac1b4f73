"""How good clients' models are on data of their own, as received and after local training.

The FedNCV paper reports both. Every client is asked at every evaluation, whether it takes part in
rounds or not; the local training is the one that the client would do in the next round, with the
same batches, and is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.parallel.exchange import gather
from fedbench.parallel.group import Group

STAGES = ("before", "after")


@dataclass
class LocalScores:
    """A row a client that has test examples of its own."""

    clients: list[int]
    sizes: list[int]  # test examples
    numbers: Tensor  # [clients, 4]: accuracy and loss before, accuracy and loss after

    def columns(self) -> dict[str, float]:
        """Mean and standard deviation over clients, and the mean weighted by test examples."""
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


def score_clients(
    group: Group, tests: dict[int, int], owners: list[int], score: Callable[[int], list[float]]
) -> LocalScores:
    """`score` gives the four numbers of a client. All ranks take part, each with its own clients.

    `tests` has the number of test examples of every client that has any.
    """
    client_owners = [owners[client] for client in tests]
    found = [score(client) for client in tests if owners[client] == group.rank]
    rows = torch.tensor(found, dtype=torch.float64).reshape(len(found), 4)
    return LocalScores(list(tests), list(tests.values()), gather(group, rows, client_owners))

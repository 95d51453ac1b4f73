"""Attacks: clients whose training data is spoilt (FedGSNR paper, section VIII-B4). Test data never
is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.core.errors import BadInput, require
from fedbench.core.seeding import torch_generator
from fedbench.data.batches import Examples


@dataclass
class NoAttack:
    """Everybody is honest."""

    def check(self, clients: int, classes: int, sequences: bool) -> None:
        pass

    def note(self) -> str:
        """What a reader of the numbers must know, or nothing."""
        return ""

    def spoil(self, train: Examples, shards: list[Tensor], classes: int, seed: int) -> None:
        """Change the named clients' training examples, in place."""


@dataclass
class Attack(NoAttack):
    """Some clients are malicious."""

    clients: list[int] = field(default_factory=lambda: [0])

    def check(self, clients: int, classes: int, sequences: bool) -> None:
        own = self.clients
        good = len(own) > 0 and len(set(own)) == len(own) and min(own) >= 0 and max(own) < clients
        rule = f"must be different numbers from 0 to {clients - 1}"
        require(good, "attack.clients", own, rule)


@dataclass
class LabelShift(Attack):
    """y <- (y + shift) mod classes. The paper's text shifts by 5, its figure 13 by 3."""

    shift: int = 5

    def check(self, clients: int, classes: int, sequences: bool) -> None:
        super().check(clients, classes, sequences)
        rule = f"must not be a multiple of the {classes} classes"
        require(self.shift % classes != 0, "attack.shift", self.shift, rule)

    def note(self) -> str:
        return f"attack: labels shifted by {self.shift} on {_named(self.clients)}"

    def spoil(self, train: Examples, shards: list[Tensor], classes: int, seed: int) -> None:
        own = torch.cat([shards[client] for client in self.clients])
        train.y = train.y.clone()
        train.y[own] = (train.y[own] + self.shift) % classes


@dataclass
class RandomInput(Attack):
    """x is uniform on [-1, 1], as the network sees it, and stays the same in all rounds; labels
    stay.
    """

    def check(self, clients: int, classes: int, sequences: bool) -> None:
        super().check(clients, classes, sequences)
        if sequences:
            raise BadInput(
                "attack=random_input: must be label_shift for text; random inputs are for images"
                " and numbers"
            )

    def note(self) -> str:
        return f"attack: inputs are random on {_named(self.clients)}"

    def spoil(self, train: Examples, shards: list[Tensor], classes: int, seed: int) -> None:
        own = torch.cat([shards[client] for client in self.clients])
        pieces = []
        for client in self.clients:
            generator = torch_generator(seed, "random input", client)
            pieces.append(
                2.0 * torch.rand((len(shards[client]), *train.x.shape[1:]), generator=generator)
                - 1.0
            )
        train.replace(own, torch.cat(pieces).to(train.y.device))


def _named(clients: list[int]) -> str:
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(map(str, clients))}"

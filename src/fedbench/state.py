"""Everything that lives from one round to the next: the server's state and the clients' memories.

This is what a checkpoint holds. A client's memory is kept by the rank that owns the client and by nobody else.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedbench.algorithms.base import Finished, Memory, State
from fedbench.algorithms.build import Algorithm
from fedbench.exchange import Exchange
from fedbench.flat import FlatModel
from fedbench.parallel import Group

MEAN_ELEMENTS = 2**23  # of the clients' own parts that are averaged at a time
OWN_PART = "local"  # the entry of a client's memory that holds the parameters it never sends


class ExperimentState:
    def __init__(self, model: FlatModel, algorithm: Algorithm, owners: list[int], group: Group):
        self.model, self.algorithm, self.owners, self.group = model, algorithm, owners, group
        self.w, self.b, self.counters = model.w.clone(), model.b.clone(), model.counters.clone()
        self.server: dict[str, State] = {name: piece.init_server(model) for name, piece in algorithm.modifiers.items()}
        self.server_opt: State = algorithm.server_opt.init(algorithm.shared.read(model.w))
        self.clients: dict[int, dict[str, State]] = {}
        remembers = any(piece.init_client(model) for piece in algorithm.modifiers.values())
        self.clients_remember = algorithm.personal or remembers

    def receive(self, client: int) -> tuple[Tensor, dict[str, Memory]]:
        """Load what a client starts from, the global model with its own part; returns it, and the client's memories.

        The parameters that are returned must not be written to: without an own part they are the server's.
        """
        kept = self.clients.get(client, {})
        self._load_server()
        before, own = self.w, kept.get(OWN_PART)
        if own is not None:
            self.algorithm.kept.write(self.model.w, own["w"])
            before = self.model.w.clone()
            if self.algorithm.keeps_buffers:
                self.model.b.copy_(own["b"])
                self.model.counters.copy_(own["counters"])
        return before, {
            name: Memory(self.server[name], kept[name] if name in kept else piece.init_client(self.model))
            for name, piece in self.algorithm.modifiers.items()
        }

    def remember(self, client: int, finished: dict[str, Finished]) -> None:
        """Store what a client keeps after its work; the model still holds its final parameters."""
        memory = {name: left.client for name, left in finished.items() if left.client}
        if self.algorithm.personal:
            own = {"w": self.algorithm.kept.read(self.model.w).clone()}
            if self.algorithm.keeps_buffers:
                own |= {"b": self.model.b.clone(), "counters": self.model.counters.clone()}
            memory[OWN_PART] = own
        if memory:
            self.clients[client] = memory

    def load_global(self, members: list[int], weights: list[float]) -> None:
        """Put the global model into the flat model; a part that clients keep is their weighted mean."""
        own_part = self._mean_own_part(members, weights) if self.algorithm.personal else None
        self._load_server()
        if own_part is not None:
            size = self.algorithm.kept.size
            self.algorithm.kept.write(self.model.w, own_part[:size])
            if self.algorithm.keeps_buffers:
                self.model.b.copy_(own_part[size:])

    def _load_server(self) -> None:
        self.model.w.copy_(self.w)
        self.model.b.copy_(self.b)
        self.model.counters.copy_(self.counters)

    def _mean_own_part(self, members: list[int], weights: list[float]) -> Tensor:
        """The clients' own parts in blocks, as many at a time as have room."""
        width = self.algorithm.kept.size + (len(self.b) if self.algorithm.keeps_buffers else 0)
        total = torch.zeros(width, dtype=self.w.dtype)
        block = max(self.group.size, MEAN_ELEMENTS // width)
        for start in range(0, len(members), block):
            some = members[start : start + block]
            exchange = Exchange(self.group, [self.owners[client] for client in some], width, self.w.dtype)
            mine = [client for client in some if self.owners[client] == self.group.rank]
            for row, client in zip(exchange.mine, mine, strict=True):
                self.receive(client)
                part = self.algorithm.kept.read(self.model.w)
                row[:] = torch.cat([part, self.model.b]) if self.algorithm.keeps_buffers else part
            exchange.send()
            exchange.add_to(total, slice(0, width), weights[start : start + block])
        return total.to(self.model.device)

    def server_tensors(self) -> dict[str, Tensor]:
        """The server's side under flat names, for a checkpoint."""
        tensors = {"w": self.w, "b": self.b, "counters": self.counters}
        tensors |= {f"server_opt/{key}": value for key, value in self.server_opt.items()}
        for name, state in self.server.items():
            tensors |= {f"modifier/{name}/{key}": value for key, value in state.items()}
        return tensors

    def client_tensors(self) -> dict[str, Tensor]:
        """The memories of this rank's clients under flat names, for a checkpoint."""
        return {
            f"{client}/{piece}/{key}": value
            for client, memory in self.clients.items()
            for piece, state in memory.items()
            for key, value in state.items()
        }

    def restore_server(self, tensors: dict[str, Tensor]) -> None:
        device = self.model.device
        for name, value in tensors.items():
            piece, _, key = name.rpartition("/")
            if not piece:
                getattr(self, key).copy_(value)
            elif piece == "server_opt":
                self.server_opt[key] = value.to(device)
            else:
                self.server[piece.removeprefix("modifier/")][key] = value.to(device)

    def restore_client(self, name: str, value: Tensor) -> None:
        client, piece, key = name.split("/")
        self.clients.setdefault(int(client), {}).setdefault(piece, {})[key] = value.to(self.model.device)

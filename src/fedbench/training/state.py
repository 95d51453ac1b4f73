"""Everything that lives from one round to the next: the server's state and the clients' memories.

This is what a checkpoint holds. A client's memory is kept by the rank that owns the client and by
nobody else. Those of a GPU's clients are in the machine's own memory: a hundred of them can be much
larger than a GPU.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import torch
from torch import Tensor

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import ClientResult, Memory, State
from fedbench.core.flat_model import FlatModel, Selection
from fedbench.core.transfer import upload
from fedbench.parallel.exchange import weighted_sum
from fedbench.parallel.failures import WorkerFault
from fedbench.parallel.group import Group

OWN_PART = "local"  # the entry of a client's memory that holds the parameters it never sends


class ExperimentState:
    """The server's model and state, and the memories of this rank's clients."""

    def __init__(self, model: FlatModel, algorithm: Algorithm, owners: list[int], group: Group):
        self.model = model
        self.algorithm = algorithm
        self.owners = owners
        self.group = group
        self.w = model.w.clone()
        self.b = model.b.clone()
        self.counters = model.counters.clone()
        self.server: dict[str, State] = {
            name: modifier.init_server(model) for name, modifier in algorithm.modifiers.items()
        }
        self.server_opt: State = algorithm.server_opt.init(algorithm.shared.read(model.w))
        self.clients: dict[int, dict[str, State]] = {}
        self.in_host_memory = model.device.type == "cuda"  # where the clients' memories are
        # What clients start from where it is not the server's; not kept from round to round.
        self.starts: dict[int, Tensor] = {}
        # By modifier, what all clients of this round may read; not kept either.
        self.surveys: dict[str, State] = {}
        self.clients_remember = algorithm.personal or any(
            modifier.remembers for modifier in algorithm.modifiers.values()
        )

    def receive(self, client: int) -> tuple[Tensor, dict[str, Memory]]:
        """Load what a client starts from: the global model with the client's own part.

        Returns the parameters, which must not be written to, and the client's memories.
        """
        kept = self._on_the_device(self.clients.get(client, {}))
        self.load_server()
        before, own = self.w, kept.get(OWN_PART)
        if client in self.starts:
            before = self.starts[client]
            self.model.w.copy_(before)
        if own is not None:
            self.algorithm.kept.write(self.model.w, own["w"])
            before = self.model.w.clone()
            if self.algorithm.keeps_buffers:
                self.model.b.copy_(own["b"])
                self.model.counters.copy_(own["counters"])
        return before, {
            name: Memory(
                self.server[name],
                kept[name] if name in kept else modifier.init_client(self.model),
                dict(self.surveys.get(name, {})),
            )
            for name, modifier in self.algorithm.modifiers.items()
        }

    def remember(self, client: int, results: dict[str, ClientResult]) -> None:
        """Store what a client keeps after its work; the model still holds its final parameters."""
        memory = {name: left.client for name, left in results.items() if left.client}
        if self.algorithm.keeps_part:
            own = {"w": self.algorithm.kept.read(self.model.w).clone()}
            if self.algorithm.keeps_buffers:
                own |= {"b": self.model.b.clone(), "counters": self.model.counters.clone()}
            memory[OWN_PART] = own
        if memory:
            if not self.clients_remember:
                raise RuntimeError(
                    f"{', '.join(memory)}: a modifier whose clients remember must say so"
                )
            self.clients[client] = self._kept(client, memory)

    def _on_the_device(self, memory: dict[str, State]) -> dict[str, State]:
        """A client's memory where it is computed with."""
        if not self.in_host_memory:
            return memory
        device = self.model.device
        return {
            name: {key: upload(value, device) for key, value in state.items()}
            for name, state in memory.items()
        }

    def _kept(self, client: int, memory: dict[str, State]) -> dict[str, State]:
        """A client's memory where it is kept. What was there before is written over."""
        if not self.in_host_memory:
            return memory
        before = self.clients.get(client, {})
        return {
            name: {
                key: _copied(value, before.get(name, {}).get(key)) for key, value in state.items()
            }
            for name, state in memory.items()
        }

    def load_global(self, members: list[int], weights: list[float]) -> None:
        """Load the global model; of what clients have of their own, it has the weighted mean."""
        algorithm = self.algorithm
        part = algorithm.kept if algorithm.keeps_part else self.model.everything()
        own = self._mean_own_part(part, members, weights) if algorithm.personal else None
        self.load_server()
        if own is not None:
            part.write(self.model.w, own[: part.size])
            if algorithm.keeps_buffers:
                self.model.b.copy_(own[part.size :])

    def load_server(self) -> None:
        """Put the server's model, as it is, into the flat model."""
        self.model.w.copy_(self.w)
        if self.model.has_buffers:
            self.model.b.copy_(self.b)
            self.model.counters.copy_(self.counters)

    def _mean_own_part(self, part: Selection, members: list[int], weights: list[float]) -> Tensor:
        buffers = self.algorithm.keeps_buffers

        def write(i: int, row: Tensor) -> None:
            self.receive(members[i])
            row[: part.size] = part.read(self.model.w)
            if buffers:
                row[part.size :] = self.model.b

        owners = [self.owners[client] for client in members]
        width = part.size + (len(self.b) if buffers else 0)
        return weighted_sum(self.group, owners, weights, width, self.w.dtype, write).to(
            self.model.device
        )

    def compare_ranks(self, done: int) -> None:
        """Raise an error if another rank has another global model after round `done`.

        Every rank takes the server's step for itself. Ranks that were forked on one CPU cannot
        differ, so they do not spend time on this.
        """
        if self.group.size == 1 or (self.group.forked and self.model.device.type == "cpu"):
            return
        hashed = hashlib.blake2b(digest_size=8)
        for vector in (self.w, self.b):
            hashed.update(vector.to("cpu").numpy().data)
        found = self.group.gather_text(hashed.hexdigest())
        usual = Counter(found).most_common(1)[0][0]
        odd = [str(rank) for rank, own in enumerate(found) if own != usual]
        if odd:
            needed = "processors of the same model"
            if self.model.device.type != "cpu":
                needed = (
                    "GPUs of the same model and runtime.deterministic=true, which"
                    " runtime.workers=1 does not"
                )
            raise WorkerFault(
                f"rank {', '.join(odd)} of {self.group.size} has another global model than the"
                f" others after round {done}; all need {needed}"
            )

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
            f"{client}/{modifier}/{key}": value
            for client, memory in self.clients.items()
            for modifier, state in memory.items()
            for key, value in state.items()
        }

    def restore_server(self, tensors: dict[str, Tensor]) -> None:
        for name, value in tensors.items():
            modifier, _, key = name.rpartition("/")
            if not modifier:
                getattr(self, key).copy_(value)
                continue
            state = self.server_opt
            if modifier != "server_opt":
                state = self.server[modifier.removeprefix("modifier/")]
            # Some states are on the CPU, whatever the model is on: other devices round differently.
            device = state[key].device if key in state else self.model.device
            state[key] = value.to(device)

    def restore_client(self, name: str, value: Tensor) -> None:
        client, modifier, key = name.split("/")
        own = self.clients.setdefault(int(client), {}).setdefault(modifier, {})
        own[key] = _copied(value) if self.in_host_memory else value.to(self.model.device)


def _copied(value: Tensor, place: Tensor | None = None) -> Tensor:
    """A tensor's values in ordinary memory of this machine, in `place` if they fit there.

    PyTorch rounds pinned memory up to a power of two, which of so much would be a waste.
    """
    if place is None or place.shape != value.shape or place.dtype != value.dtype:
        place = torch.empty(value.shape, dtype=value.dtype)
    return place.copy_(value)

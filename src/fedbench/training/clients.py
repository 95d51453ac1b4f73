"""What modifiers may ask about clients between rounds: `algorithms.context.Clients`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedbench.algorithms.context import State
from fedbench.core.flat_model import Selection
from fedbench.core.seeding import torch_generator
from fedbench.core.transfer import upload
from fedbench.parallel.exchange import weighted_sum
from fedbench.parallel.group import Group
from fedbench.training.client import Trainer
from fedbench.training.example_gradients import gradient_moments
from fedbench.training.state import ExperimentState


class FederationClients:
    """The clients of a federation, as modifiers see them."""

    def __init__(
        self,
        shards: list[Tensor],
        owners: list[int],
        group: Group,
        state: ExperimentState,
        trainer: Trainer,
        cohort_weights: Callable[[list[int]], list[float]],
        iid_gradient_norms: Callable[[Selection, list[slice], int], tuple[Tensor, Tensor]],
    ):
        self.shards = shards
        self.sizes = [len(own) for own in shards]
        self.owners = owners
        self.group = group
        self.state = state
        self.trainer = trainer
        self.cohort_weights = cohort_weights
        self.iid_gradient_norms = iid_gradient_norms

    @property
    def weights(self) -> Tensor:
        return self.state.w

    def batch_size(self, client: int) -> int:
        return self.trainer.sampler.size(self.sizes[client])

    def server_state(self, modifier: str) -> State:
        return self.state.server[modifier]

    def client_state(self, client: int, modifier: str) -> State:
        return self.state.clients.get(client, {}).get(modifier, {})

    def full_gradient(self) -> Tensor:
        members = [client for client, size in enumerate(self.sizes) if size]
        self.state.load_server()

        def write(i: int, row: Tensor) -> None:
            row[:] = self.trainer.gradient(self.shards[members[i]])

        owners, weights = [self.owners[k] for k in members], self.cohort_weights(members)
        w = self.state.w
        return weighted_sum(self.group, owners, weights, len(w), w.dtype, write).to(w.device)

    def gradient_moments(self, client: int, examples: int, index: int) -> tuple[Tensor, Tensor]:
        trainer, own = self.trainer, self.shards[client]
        before, memories = self.state.receive(client)
        if examples < len(own):
            generator = torch_generator(trainer.seed, "gradient statistics", index, client)
            drawn = torch.randperm(len(own), generator=generator)[:examples]
            own = own[upload(drawn, own.device)]
        mean, variance = gradient_moments(trainer.model, trainer.loss, trainer.train, own)
        mean.add_(before, alpha=trainer.settings.weight_decay)
        for name, modifier in trainer.modifiers.items():
            modifier.shift(memories[name], mean)
        return mean, variance

"""The local_train slot: which parameters a client trains in which of its local steps."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedbench.core.flat_model import FlatModel


@dataclass(frozen=True)
class Phase:
    """Some local steps with an optimizer of their own over a slice of the parameters; the rest is
    frozen.
    """

    steps: int
    trained: slice | None = None  # None: everything

    def enter(self, model: FlatModel) -> nn.Parameter:
        """Freeze what is not trained; returns the parameter for the optimizer.

        A zero gradient would not freeze: momentum and weight decay move such weights. Modules
        before the trained slice run in evaluation mode, which keeps their batch-norm statistics.
        """
        if self.trained is None:
            if (
                not model.module.training
            ):  # it walks through all modules, which a client of two steps notices
                model.module.train()
            return model.parameter
        for parameter, start, stop in model.parameter_slices:
            parameter.requires_grad_(self.trained.start <= start and stop <= self.trained.stop)
        model.module.train(self.trained.start == 0)
        model.module.head.train()
        part = nn.Parameter(model.w[self.trained])
        part.grad = model.g[self.trained]
        return part

    def leave(self, model: FlatModel) -> None:
        if self.trained is not None:
            for parameter, _, _ in model.parameter_slices:
                parameter.requires_grad_(True)


@dataclass
class Joint:
    """All parameters in all steps."""

    def phases(self, model: FlatModel, steps: int, steps_an_epoch: int) -> list[Phase]:
        return [Phase(steps)]

    def shared_steps(self, steps: int, steps_an_epoch: int) -> int:
        """In how many of the steps the parameters move that leave the client."""
        return steps


@dataclass
class HeadThenBody(Joint):
    """FedRep (Collins et al. 2021): the head with the body frozen, then, in the last epoch, the
    body.

    The body gets at most half of the steps, so that a client with few of them trains both. Each
    phase has an optimizer of its own: momentum of the head's must not enter the body's.
    """

    def phases(self, model: FlatModel, steps: int, steps_an_epoch: int) -> list[Phase]:
        head, body = model.layers[-1].start, self.shared_steps(steps, steps_an_epoch)
        return [Phase(steps - body, slice(head, model.size)), Phase(body, slice(0, head))]

    def shared_steps(self, steps: int, steps_an_epoch: int) -> int:
        return max(1, min(steps_an_epoch, steps // 2))

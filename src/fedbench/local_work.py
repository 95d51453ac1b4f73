"""What an experiment asks of its clients is possible: checked before anything is written."""

from __future__ import annotations

from fedbench.algorithms.aggregate import solver_norm
from fedbench.algorithms.base import chain
from fedbench.algorithms.build import Algorithm
from fedbench.batches import Sampler
from fedbench.errors import BadInput, require
from fedbench.settings import Scalars


def check_local_work(scalars: Scalars, algorithm: Algorithm, sizes: list[int], batch_norm: bool) -> None:
    """Somebody must be able to train, and the proximal term must not throw the local path about."""
    client = scalars.client
    sampler = Sampler(scalars.seed, client.batch_size, client.epochs, client.steps, batch_norm)
    allowed = "no client has a batch of two examples, which batch norm needs"
    require(any(sampler.planned_steps(size) for size in sizes), "client.batch_size", client.batch_size, allowed)
    _check_most_steps(algorithm, max(sampler.planned_steps(size) for size in sizes))
    pull = sum(piece.proximal for piece in algorithm.modifiers.values())
    allowed = f"with a proximal weight of {pull:g} a rate below {2 / pull if pull else 0:g} is allowed"
    require(client.lr * pull < 2, "client.lr", client.lr, allowed)
    planned = {sampler.planned_steps(size) for size in sizes} - {0}
    norms = [solver_norm(steps, client.lr, client.momentum, pull, client.nesterov) for steps in planned if pull]
    allowed = (
        f"with momentum and a proximal weight of {pull:g} the local path would turn around; a smaller rate is allowed"
    )
    require(all(norm > 0 for norm in norms), "client.lr", client.lr, allowed)


def _check_most_steps(algorithm: Algorithm, planned: int) -> None:
    for name, piece in algorithm.modifiers.items():
        if piece.most_steps is None:
            continue
        if chain(algorithm.modifiers, "num_steps"):
            raise BadInput(f"modifier={name}: with these settings it needs to know the number of steps beforehand")
        allowed = f"at most {piece.most_steps} local steps are allowed with {name} and these settings, not {planned}"
        require(planned <= piece.most_steps, "client.steps", planned, allowed)

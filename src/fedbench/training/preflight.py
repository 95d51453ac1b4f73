"""What an experiment asks of its clients is possible: checked before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from fedbench.algorithms.aggregate import solver_norm
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.modifier import chain
from fedbench.config.schema import Scalars
from fedbench.core.errors import BadInput, require
from fedbench.data.batches import Examples, Sampler
from fedbench.data.dataset import Dataset

GIBIBYTE = 2**30


def check_memory(build: Callable[[], nn.Module]) -> None:
    """Refuse a model that the machine's memory cannot hold, before it is built.

    The model, its flat parameters and its flat gradients are counted: 12 bytes a parameter. Data,
    activations and further workers need more, so a model that passes may still not fit.
    """
    try:
        with torch.device("meta"):  # where a model takes no memory
            parameters = sum(parameter.numel() for parameter in build().parameters())
    except Exception:  # building it in earnest raises the same error
        return
    needed, physical = 12 * parameters, physical_memory()
    if needed > physical:
        sizes = f"{needed / GIBIBYTE:.1f} GiB of {physical / GIBIBYTE:.1f} GiB"
        raise BadInput(
            "model: too large for this machine's memory"
            f" (a model of {parameters:,} parameters needs at least {sizes})"
        )


def physical_memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_local_work(
    scalars: Scalars, algorithm: Algorithm, sizes: list[int], batch_norm: bool
) -> None:
    """Somebody must be able to train, and the proximal term must not throw the local path about."""
    client = scalars.client
    sampler = Sampler(scalars.seed, client.batch_size, client.epochs, client.steps, batch_norm)
    allowed = "no client has a batch of two examples, which batch norm needs"
    require(
        any(sampler.planned_steps(size) for size in sizes),
        "client.batch_size",
        client.batch_size,
        allowed,
    )
    _check_most_steps(algorithm, max(sampler.planned_steps(size) for size in sizes))
    pull = sum(piece.proximal for piece in algorithm.modifiers.values())
    allowed = (
        f"with a proximal weight of {pull:g} a rate below {2 / pull if pull else 0:g} is allowed"
    )
    require(client.lr * pull < 2, "client.lr", client.lr, allowed)
    planned = {sampler.planned_steps(size) for size in sizes} - {0}
    moving = [
        algorithm.local_train.shared_steps(
            sampler.planned_steps(size), sampler.batches_per_epoch(size)
        )
        for size in sizes
    ]
    _check_steps_fit(scalars, algorithm, max(moving))
    norms = [
        solver_norm(steps, client.lr, client.momentum, pull, client.nesterov)
        for steps in planned
        if pull
    ]
    allowed = (
        f"with momentum and a proximal weight of {pull:g} the local path would turn around; a"
        " smaller rate is allowed"
    )
    require(all(norm > 0 for norm in norms), "client.lr", client.lr, allowed)


def check_scoring(
    algorithm: Algorithm, attack: Any, data: Dataset, shards: list[np.ndarray], seed: int
) -> None:
    """Clients' own models are scored on test data of the classes that they train on: somebody must
    have one.
    """
    if not algorithm.personal or algorithm.scoring != "per_client":
        return
    labels = Examples(torch.empty(len(data.train_y), 0), torch.from_numpy(data.train_y), None, None)
    own = [torch.from_numpy(indices) for indices in shards]
    attack.spoil(labels, own, data.classes, seed)  # it may change classes
    tested = torch.isin(labels.y[torch.cat(own)], torch.from_numpy(data.test_y))
    allowed = "no client has a class of the test set; mean_acc is allowed"
    require(bool(tested.any()), "algo.scoring", algorithm.scoring, allowed)


def _check_steps_fit(scalars: Scalars, algorithm: Algorithm, steps: int) -> None:
    """A method that keeps something of every step must have room for it."""
    client = scalars.client
    key, value = (
        ("client.steps", client.steps) if client.steps else ("client.epochs", client.epochs)
    )
    if not chain(algorithm.modifiers, "num_steps"):
        for piece in algorithm.modifiers.values():
            piece.check_room(steps, key, value)


def _check_most_steps(algorithm: Algorithm, planned: int) -> None:
    for name, piece in algorithm.modifiers.items():
        if piece.most_steps is None:
            continue
        if chain(algorithm.modifiers, "num_steps"):
            raise BadInput(
                f"modifier={name}: with these settings it needs to know the number of steps"
                " beforehand"
            )
        allowed = (
            f"at most {piece.most_steps} local steps are allowed with {name} and these settings,"
            f" not {planned}"
        )
        require(planned <= piece.most_steps, "client.steps", planned, allowed)

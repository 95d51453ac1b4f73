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
from fedbench.parallel.devices import Gpu
from fedbench.training.client import make_sampler

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


def check_gpu_memory(
    parameters: int, data: Dataset, gpu: Gpu, ranks: int, of_steps: int = 0
) -> None:
    """Refuse what the memory of a GPU cannot hold for the ranks that share it.

    Each of them has the model, its gradients, the server's model and the data there, unless the
    data is memory-mapped, and `of_steps` bytes for what the method keeps of a client's steps.
    Activations, optimizers and CUDA itself need more, so a run that passes may still not fit.
    """
    arrays = (data.train_x, data.train_y, data.test_x, data.test_y, data.val_x, data.val_y)
    examples = sum(
        array.nbytes
        for array in arrays
        if isinstance(array, np.ndarray) and not isinstance(array, np.memmap)
    )
    needed = ranks * (12 * parameters + examples + of_steps)
    if needed > gpu.memory:
        fewer = ["a smaller runtime.workers"] if ranks > 1 else []
        fewer += ["a smaller algo.memory"] if of_steps else []
        less = f"; {' or '.join(fewer)} needs less" if fewer else ""
        raise BadInput(
            f"model, data: too large for the memory of the GPU ({gpu}): they need at least"
            f" {needed / GIBIBYTE:.1f} GiB for {ranks} worker{'s' if ranks > 1 else ''} on it{less}"
        )


def physical_memory() -> int:
    """The bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_local_work(
    scalars: Scalars, algorithm: Algorithm, sizes: list[int], batch_norm: bool
) -> None:
    """Somebody must be able to train, and the proximal term must not throw the weights about."""
    client = scalars.client
    sampler = make_sampler(scalars, batch_norm)
    planned = {size: sampler.planned_steps(size) for size in sizes}
    words = "no client has a batch of two examples, which batch norm needs"
    require(any(planned.values()), "client.batch_size", client.batch_size, words)
    _check_steps(scalars, algorithm, sampler, planned)
    pull = sum(modifier.proximal for modifier in algorithm.modifiers.values())
    if pull == 0:
        return
    words = f"must be below {2 / pull:g} with a proximal weight of {pull:g}"
    require(client.lr * pull < 2, "client.lr", client.lr, words)
    norms = [
        solver_norm(steps, client.lr, client.momentum, pull, client.nesterov)
        for steps in set(planned.values()) - {0}
    ]
    words = f"must be smaller: with momentum and a proximal weight of {pull:g} clients would return"
    require(all(norm > 0 for norm in norms), "client.lr", client.lr, words)


def memory_of_steps(
    scalars: Scalars, algorithm: Algorithm, sizes: list[int], batch_norm: bool
) -> int:
    """Bytes that methods need where the model is, for what they keep of a client's local steps."""
    sampler = make_sampler(scalars, batch_norm)
    planned = {size: sampler.planned_steps(size) for size in sizes}
    most = _most_steps(algorithm, sampler, planned) or 0
    return sum(modifier.step_memory(most) for modifier in algorithm.modifiers.values())


def _most_steps(algorithm: Algorithm, sampler: Sampler, planned: dict[int, int]) -> int | None:
    """Of the steps of one client, how many can move what it sends at most."""
    if chain(algorithm.modifiers, "num_steps"):
        return None  # another method decides, round by round
    shared_steps = algorithm.local_train.shared_steps
    return max(
        shared_steps(steps, sampler.batches_per_epoch(size)) for size, steps in planned.items()
    )


def _check_steps(
    scalars: Scalars, algorithm: Algorithm, sampler: Sampler, planned: dict[int, int]
) -> None:
    """A method that keeps something of every step must have room for it."""
    client = scalars.client
    key, value = "client.epochs", client.epochs
    if client.steps:
        key, value = "client.steps", client.steps
    most = _most_steps(algorithm, sampler, planned)
    for modifier in algorithm.modifiers.values():
        modifier.check_steps(most, key, value)


def check_scoring(
    algorithm: Algorithm, attack: Any, data: Dataset, shards: list[np.ndarray], seed: int
) -> None:
    """Clients' own models are scored on the classes that they train on: somebody must have one."""
    if not algorithm.personal or algorithm.scoring != "per_client":
        return
    labels = Examples(torch.empty(len(data.train_y), 0), torch.from_numpy(data.train_y), None, None)
    own = [torch.from_numpy(indices) for indices in shards]
    attack.spoil(labels, own, data.classes, seed)  # it may change classes
    held = labels.y[torch.cat(own)]
    tested = torch.isin(held, torch.from_numpy(data.test_y))
    words = "must be mean_acc: no client has a class of the test set"
    require(bool(tested.any()), "algo.scoring", algorithm.scoring, words)
    if data.val_y is not None:
        validated = torch.isin(held, torch.from_numpy(data.val_y))
        words = "must be mean_acc: no client has a class of the validation set"
        require(bool(validated.any()), "algo.scoring", algorithm.scoring, words)

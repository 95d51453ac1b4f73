"""One of the bench's workloads in pfl-research. Runs in an environment without fedbench.

Usage: rival_pfl.py SETTINGS, where SETTINGS is JSON; see bench_rivals.py. The last line of the
output is the list of the rounds' times in seconds.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as functional
from bare_networks import bare_network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn


class Network(nn.Module):
    """A network with the loss and the metrics that pfl-research asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.inner.eval() if eval else self.inner.train()
        return functional.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = False) -> dict[str, Weighted]:
        self.inner.eval() if eval else self.inner.train()
        hits = (self.inner(x).argmax(dim=1) == y).sum().item()
        return {"accuracy": Weighted(hits, len(y))}


class Stopwatch(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.moments = [time.perf_counter()]

    def after_central_iteration(self, metrics, model, *, central_iteration):
        self.moments.append(time.perf_counter())
        return False, type(metrics)()


def tensors(x: np.ndarray, y: np.ndarray) -> list[Tensor]:
    images = torch.from_numpy(x).permute(0, 3, 1, 2).float().div(127.5).sub(2.0).contiguous()
    return [images, torch.from_numpy(y)]


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    file = np.load(settings["data"])
    x, y = tensors(file["x"], file["y"])
    size = settings["images"]
    users = list(range(len(y) // size))

    def user_data(user: int) -> Dataset:
        own = slice(user * size, (user + 1) * size)
        order = torch.randperm(size)  # a fresh order of batches, as the other programs draw it
        return Dataset(raw_data=[x[own][order], y[own][order]], user_id=str(user))

    network = Network(bare_network(settings["model"]))
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data = FederatedDataset(user_data, get_user_sampler("minimize_reuse", users))
    backend = SimulatedBackend(
        training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]
    )
    never = 10**9
    algorithm = NNAlgorithmParams(
        central_num_iterations=settings["rounds"],
        evaluation_frequency=never,  # of clients; the test set is below
        train_cohort_size=settings["cohort"],
        val_cohort_size=0,
    )
    training = NNTrainHyperParams(
        local_batch_size=settings["batch"],
        local_num_epochs=settings["epochs"],
        local_learning_rate=0.01,
    )
    evaluation = NNEvalHyperParams(local_batch_size=500)
    watch = Stopwatch()
    callbacks: list[TrainingProcessCallback] = []
    if settings["test"]:
        test = Dataset(raw_data=tensors(file["test_x"], file["test_y"]), eval_kwargs={"eval": True})
        callbacks.append(CentralEvaluationCallback(test, evaluation, frequency=1))
    callbacks.append(watch)
    FederatedAveraging().run(
        algorithm, backend, model, training, evaluation, callbacks, send_metrics_to_platform=False
    )
    moments = watch.moments
    print(json.dumps([after - before for before, after in pairwise(moments)]))


if __name__ == "__main__":
    main()

"""How much there is to do in a run, and of which kind, before it is run."""

from __future__ import annotations

import json
from typing import Any

from fedbench.config.schema import Config
from fedbench.data.batches import Sampler
from fedbench.parallel.devices import own_gpu, pick_device

ROW = 120  # bytes a client and round in clients.csv
UNKNOWN_SIZE, UNKNOWN_CLIENTS = 10_000, 10  # of somebody's own files


def work_of(config: Config) -> dict[str, Any]:
    """How much there is to do in a run, and of which kind, as plain numbers that a plan can keep.

    Jobs of the same kind cost the same for each gradient: data, network, batch size, optimizer,
    threads, device.
    """
    scalars, tree = config.scalars, config.tree
    client, data = scalars.client, tree["data"]
    shown = config.shown  # what is kept shows no value of the environment
    shape = {key: shown["data"][key] for key in ("name", "shape") if key in data}
    device = pick_device(scalars.runtime.device)
    where = [own_gpu().name, scalars.runtime.precision] if device == "cuda" else ["cpu"]
    kind = [shape, shown["model"], client.batch_size, client.optimizer, scalars.runtime.threads]
    kind += where
    train = data.get("subset") or data.get("train_size") or UNKNOWN_SIZE
    test = data.get("test_size") or UNKNOWN_SIZE
    if data.get("source") == "synthetic":
        test = min(test, train)
    clients = getattr(config.partition, "clients", None) or UNKNOWN_CLIENTS
    cohort = scalars.cohort or clients
    sampler = Sampler(
        scalars.seed, client.batch_size, client.epochs, client.steps, drop_single=False
    )
    mean, pieces = max(train // clients, 1), config.algo["modifiers"]
    steps = pieces["gsnr"].steps if "gsnr" in pieces else sampler.planned_steps(mean)
    gradients = scalars.rounds * cohort * sampler.examples_seen(mean, steps)
    evaluations = max(scalars.rounds // scalars.eval.every, 1)
    if (
        config.partition.local_test
    ):  # at every evaluation every client trains as it would in the next round
        gradients += evaluations * clients * sampler.examples_seen(mean, steps)
    scored = evaluations * test * (clients if config.algo.get("scoring") == "mean_acc" else 1)
    disk = 8 * train + 2 * test + ROW * cohort * scalars.rounds
    return {
        "kind": json.dumps(kind, sort_keys=True),
        "gradients": gradients,
        "scored": scored,
        "disk": disk,
    }

"""Measure the engine against a bare PyTorch loop: `make bench`, or `python scripts/bench.py W1
--repeats 9`.

Both run turn and turn about, each in processes of its own, so that a noisy machine disturbs them
alike; only ratios of medians are judged. The bare loop (bare.py) is what one would write without
any federated code: the same network in PyTorch's default memory layout, the same data, the same
number of steps and the same evaluation, as many processes as workers, one thread each, each doing
its share. `methods` compares rounds of the methods with FedAvg's.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from bare import Bare
from bench_methods import bench_methods

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext
from fedbench.config.schema import ClientSettings, EvalSettings, Scalars
from fedbench.core.flat_model import FlatModel
from fedbench.data.batches import examples
from fedbench.data.dataset import Dataset
from fedbench.models.cnn import CnnBn, LeNet
from fedbench.parallel.group import Group
from fedbench.parallel.processes import configure_process, launch
from fedbench.training.federation import Federation


@dataclass(frozen=True)
class Workload:
    name: str
    what: str
    limit: float
    model: str
    shape: tuple[int, int, int]
    clients: int
    images: int  # a client
    batch: int
    epochs: int
    cohort: int | None
    test: int  # images evaluated a round
    times: int = 1  # repeats are multiplied by this: short rounds need more


WORKLOADS = [
    Workload(
        "W1",
        "LeNet-5, 10 clients x 1,000 images 28x28, batch 32, 2 epochs, 2,000 test images",
        0.90,
        "lenet",
        (28, 28, 1),
        10,
        1000,
        32,
        2,
        None,
        2000,
    ),
    Workload(
        "W2",
        "cnn_bn, 10 clients x 300 images 32x32x3, batch 64, 1 epoch",
        0.85,
        "cnn_bn",
        (32, 32, 3),
        10,
        300,
        64,
        1,
        None,
        0,
    ),
    Workload(
        "W3",
        "LeNet-5, 500 clients x 20 images 28x28, 50 a round, batch 10",
        1.10,
        "lenet",
        (28, 28, 1),
        500,
        20,
        10,
        1,
        50,
        0,
        8,
    ),
]
START_LIMIT = 1.5
IMPORTS = """
import torch
library = torch.library.Library("torchvision", "FRAGMENT")  # see core/torchvision_operators.py
if not torch.cuda.is_available():
    for name in ("nms", "qnms"):
        library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import torchvision, hydra
"""


def random_data(load: Workload, images: int) -> Dataset:
    draw = np.random.default_rng(0)

    def pictures(count: int) -> np.ndarray:
        return draw.integers(0, 256, (count, *load.shape), dtype=np.uint8)

    test, channels = max(load.test, 10), load.shape[2]
    labels = draw.integers(0, 10, images), draw.integers(0, 10, test)
    statistics_ = (0.5,) * channels, (0.25,) * channels
    return Dataset(
        "random",
        pictures(images),
        labels[0],
        pictures(test),
        labels[1],
        10,
        "synthetic",
        *statistics_,
        "",
    )


def make_federation(
    load: Workload, data: Dataset, group: Group, algorithm: Algorithm | None = None
) -> Federation:
    torch.manual_seed(0)
    settings = LeNet() if load.model == "lenet" else CnnBn()
    client = ClientSettings(epochs=load.epochs, batch_size=load.batch, lr=0.01)
    every = 1 if load.test else 10**9
    scalars = Scalars(
        rounds=10**9, cohort=load.cohort, client=client, eval=EvalSettings(every=every)
    )
    shards = list(torch.arange(len(data.train_y)).split(load.images))
    model = FlatModel(settings.build(load.shape, 10))
    train, test = (
        examples(data, "train", torch.device("cpu")),
        examples(data, "test", torch.device("cpu")),
    )
    context = BindContext(model, len(shards), 10, scalars.rounds, scalars.seed)
    bound = (algorithm or Algorithm()).bind(context)
    return Federation(model, train, test, shards, bound, scalars, group, 10)


class Turns:
    """Lets two sets of processes work turn and turn about: a number in shared memory that both sets
    watch.
    """

    def __init__(self) -> None:
        self.number = torch.frombuffer(mmap.mmap(-1, 8), dtype=torch.int64)

    def wait(self, number: int) -> None:
        while int(self.number) < number:
            time.sleep(0.0005)


def measure(
    group: Group, name: str, load: Workload, data: Dataset, repeats: int, turns: Turns, output: Path
) -> None:
    """What every process of one set does: its rounds in its turns; the leader writes the times."""
    if name == "bare":
        torch.set_num_threads(1)
        work = Bare(load, data, group).round
    else:
        configure_process(1)
        rounds = make_federation(load, data, group).rounds()
        work = lambda: next(rounds)  # noqa: E731
    times = []
    for repeat in range(repeats + 1):
        turns.wait(2 * repeat + (name == "engine"))
        group.barrier()
        started = time.perf_counter()
        work()
        group.barrier()
        if repeat:  # the first one warms up
            times.append(time.perf_counter() - started)
        if group.leader:
            turns.number += 1
    if group.leader:
        output.write_text(json.dumps(times))


def judge(name: str, what: str, ratio: float, limit: float, detail: str) -> bool:
    verdict = "ok" if ratio <= limit else "TOO SLOW"
    print(
        f"{name}  {ratio:.2f} x bare (at most {limit:.2f}: {verdict})  {what}; {detail}", flush=True
    )
    return ratio <= limit


def bench_workload(load: Workload, repeats: int, workers: int) -> bool:
    repeats *= load.times
    data, turns = random_data(load, load.clients * load.images), Turns()
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in ("bare", "engine")}
        pid = os.fork()  # each set has processes of its own: they share nothing but the turns
        name = "engine" if pid else "bare"
        launch(
            lambda group: measure(group, name, load, data, repeats, turns, files[name]),
            workers,
            600,
        )
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        bare, engine = (
            statistics.median(json.loads(files[name].read_text())) for name in ("bare", "engine")
        )
    detail = (
        f"round {1000 * engine:.0f} ms against {1000 * bare:.0f} ms, {workers} workers, {repeats}"
        " repeats"
    )
    return judge(load.name, load.what, engine / bare, load.limit, detail)


def bench_start(repeats: int) -> bool:
    """From the start of the process to the line of the first round, against importing the libraries
    alone.
    """
    imports, starts = [], []
    for repeat in range(repeats + 1):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        imported = time.perf_counter() - started
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable,
                "-m",
                "fedbench",
                "rounds=1",
                "logger=none",
                f"results={folder}",
            ]
            started = time.perf_counter()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            while not process.stdout.readline().startswith("round 1/1"):
                if process.poll() is not None:
                    sys.exit("fedbench failed")
            first_round = time.perf_counter() - started
            process.communicate()
        if repeat:
            imports.append(imported)
            starts.append(first_round)
    bare, engine = statistics.median(imports), statistics.median(starts)
    detail = (
        f"{engine:.2f} s against {bare:.2f} s for importing torch, torchvision and hydra, {repeats}"
        " repeats"
    )
    return judge(
        "start",
        "start to first round of `fedbench rounds=1 logger=none`",
        engine / bare,
        START_LIMIT,
        detail,
    )


def bench_memory() -> bool:
    """Peak memory of a rank with 10,000 clients and with 500, on the same images."""
    peaks = {}
    for clients in (500, 10_000):
        load = Workload(
            "memory", "", 0, "lenet", (28, 28, 1), clients, 10_000 // clients, 10, 1, 50, 0
        )
        pid = os.fork()
        if pid == 0:  # a process of its own, because a peak never falls
            rounds = make_federation(load, random_data(load, 10_000), Group()).rounds()
            for _ in range(3):
                next(rounds)
            os._exit(0)
        _, status, usage = os.wait4(pid, 0)
        peaks[clients] = usage.ru_maxrss / 1024 if status == 0 else float("inf")
    ratio = peaks[10_000] / peaks[500]
    detail = f"{peaks[10_000]:.0f} MiB with 10,000 clients against {peaks[500]:.0f} MiB with 500"
    verdict = "ok" if ratio <= 1.1 else "TOO MUCH"
    print(f"memory  {ratio:.2f} x (at most 1.10: {verdict})  LeNet-5, 50 clients a round; {detail}")
    return ratio <= 1.1


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [load.name for load in WORKLOADS] + ["methods", "start", "memory"]
    parser.add_argument(
        "what", nargs="*", choices=[*names, []], default=[], help="workloads; default: all"
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    what = arguments.what or names
    torch.set_num_threads(1)
    results = [
        bench_workload(load, arguments.repeats, arguments.workers)
        for load in WORKLOADS
        if load.name in what
    ]
    if "methods" in what:
        load = WORKLOADS[0]
        data, steps = (
            random_data(load, load.clients * load.images),
            load.epochs * -(-load.images // load.batch),
        )
        make = lambda group, algorithm: make_federation(load, data, group, algorithm)  # noqa: E731
        results.append(bench_methods(make, arguments.repeats, arguments.workers, steps))
    if "start" in what:
        results.append(bench_start(arguments.repeats))
    if "memory" in what:
        results.append(bench_memory())
    sys.exit(not all(results))


if __name__ == "__main__":
    main()

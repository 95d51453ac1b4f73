"""Measure the engine against a bare PyTorch loop: `make bench`, or `python scripts/bench.py W1
--repeats 9`.

Both run turn and turn about, each in processes of its own, so that a noisy machine disturbs them
alike; only ratios of medians are judged. The bare loop (bare.py) is what one would write without
any federated code: the same network in PyTorch's default memory layout, the same data, the same
number of steps and the same evaluation, as many processes as workers, one thread each, each doing
its share. `client` compares what the engine does around forward and backward passes with the bare
loop's steps, `command` the whole program with the engine, `scaling` two workers with one, `methods`
rounds of the methods with FedAvg's. `rivals` (only when asked for: it installs a package into an
environment of its own) runs the workloads through pfl-research, too.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from bare import Bare
from bench_methods import bench_methods
from bench_rivals import PflResearch

import fedbench
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext
from fedbench.config.schema import ClientSettings, EvalSettings, Scalars
from fedbench.core.flat_model import FlatModel
from fedbench.core.machine import available_cores, machine_name
from fedbench.data.batches import examples
from fedbench.data.dataset import Dataset
from fedbench.models.cnn import Cnn5, CnnBn, LeNet
from fedbench.models.cpu_kernels import choose_kernels, library
from fedbench.parallel.group import Group
from fedbench.parallel.processes import configure_process, launch
from fedbench.runs.identity import source_commit
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
        0.50,
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
        0.60,
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
        0.75,
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
    Workload(
        "W4",
        "cnn5, 10 clients x 1,000 images 32x32x3, batch 32, 1 epoch",
        0.50,
        "cnn5",
        (32, 32, 3),
        10,
        1000,
        32,
        1,
        None,
        0,
    ),
]
BY_NAME = {load.name: load for load in WORKLOADS}
MODELS = {"lenet": LeNet, "cnn5": Cnn5, "cnn_bn": CnnBn}
CLIENT_LIMIT = 0.15  # of a bare client's time, for what is around forward and backward passes
COMMAND_LIMITS = {"W1": 1.10, "W3": 1.20}  # of `fedbench` against the engine
COMMAND_ROUNDS = {"W1": 8, "W3": 40}
SCALING_LIMIT = 0.55  # two workers against one
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
    settings = MODELS[load.model]()
    client = ClientSettings(epochs=load.epochs, batch_size=load.batch, lr=0.01)
    every = 1 if load.test else 10**9
    scalars = Scalars(
        rounds=10**9, cohort=load.cohort, client=client, eval=EvalSettings(every=every)
    )
    shards = list(torch.arange(len(data.train_y)).split(load.images))
    model = FlatModel(settings.build(load.shape, 10))
    choose_kernels("auto", model.module, "cpu", threads=1)
    train, test = (
        examples(data, "train", torch.device("cpu")),
        examples(data, "test", torch.device("cpu")),
    )
    context = BindContext(model, len(shards), 10, scalars.rounds, scalars.seed)
    bound = (algorithm or Algorithm()).bind(context)
    return Federation(model, train, test, shards, bound, scalars, group, 10)


@dataclass(frozen=True)
class Contestant:
    """A set of processes: how many, and what makes the function that does its share of a round."""

    workers: int
    prepare: Callable[[Group], Callable[[], object]]


class Turns:
    """Lets sets of processes work turn and turn about.

    Those that wait read from a pipe: looking from time to time, they would slow the others down.
    """

    def __init__(self, workers: Sequence[int]) -> None:
        self.workers = workers
        self.pipes = [os.pipe() for _ in workers]

    def give(self, place: int) -> None:
        """To all processes of a set."""
        os.write(self.pipes[place][1], b"." * self.workers[place])

    def wait(self, place: int) -> None:
        os.read(self.pipes[place][0], 1)

    def close(self) -> None:
        for end in sum(self.pipes, ()):
            os.close(end)


def bare_loop(load: Workload, data: Dataset, workers: int) -> Contestant:
    def prepare(group: Group) -> Callable[[], object]:
        torch.set_num_threads(1)
        return Bare(load, data, group).round

    return Contestant(workers, prepare)


def engine(load: Workload, data: Dataset, workers: int) -> Contestant:
    def prepare(group: Group) -> Callable[[], object]:
        configure_process(1)
        rounds = make_federation(load, data, group).rounds()
        return lambda: next(rounds)

    return Contestant(workers, prepare)


def compete(contestants: dict[str, Contestant], repeats: int) -> dict[str, float]:
    """The median time of a round of each, all of them turn and turn about."""
    turns, children = Turns([one.workers for one in contestants.values()]), {}
    with tempfile.TemporaryDirectory() as folder:
        for place, (name, one) in enumerate(contestants.items()):
            pid = os.fork()  # each set has processes of its own: they share nothing but the turns
            if pid == 0:
                work = partial(_rounds, one, place, repeats, turns, Path(folder) / name)
                _end_after(partial(launch, work, one.workers, 600))
            children[pid] = name
        turns.give(0)
        _wait_for_all(children)
        turns.close()
        times = {name: json.loads((Path(folder) / name).read_text()) for name in contestants}
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _end_after(work: Callable[[], None]) -> NoReturn:
    """Do the work of a forked process, in which nothing else of this program may run."""
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _wait_for_all(children: dict[int, str]) -> None:
    """If one fails, end the others, which would wait for their turn for ever."""
    while children:
        pid, status = os.wait()
        name = children.pop(pid, "")
        if name and status != 0:
            for other in children:
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
            sys.exit(f"bench: {name} failed")


def _rounds(
    one: Contestant, place: int, repeats: int, turns: Turns, output: Path, group: Group
) -> None:
    """What every process of one set does: its rounds in its turns; the leader writes the times."""
    work = one.prepare(group)
    times = []
    for repeat in range(repeats + 1):
        turns.wait(place)
        group.barrier()
        started = time.perf_counter()
        work()
        group.barrier()
        if repeat:  # the first one warms up
            times.append(time.perf_counter() - started)
        if group.leader:
            turns.give((place + 1) % len(turns.workers))
    if group.leader:
        output.write_text(json.dumps(times))


def judge(name: str, what: str, ratio: float, limit: float, detail: str, of: str = "bare") -> bool:
    verdict = "ok" if ratio <= limit else "TOO SLOW"
    line = f"{name}  {ratio:.2f} x {of} (at most {limit:.2f}: {verdict})  {what}; {detail}"
    print(line, flush=True)
    return ratio <= limit


def bench_workload(load: Workload, repeats: int, workers: int) -> bool:
    repeats *= load.times
    data = random_data(load, load.clients * load.images)
    times = compete(
        {"bare": bare_loop(load, data, workers), "engine": engine(load, data, workers)}, repeats
    )
    detail = (
        f"round {1000 * times['engine']:.0f} ms against {1000 * times['bare']:.0f} ms,"
        f" {workers} workers, {repeats} repeats"
    )
    return judge(load.name, load.what, times["engine"] / times["bare"], load.limit, detail)


def bench_client(repeats: int) -> bool:
    """What a small client costs besides forward and backward passes: the CPU time of one thread.

    That is set-up, batches, optimizer, numbers for the record, and the client's part of planning
    and summing a round. The bare loop, whose rounds alternate with the engine's, is the measure of
    the machine.
    """
    load = BY_NAME["W3"]
    repeats *= load.times
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times"
        # In a process of its own: others that are forked later shall not inherit its memory.
        launch(partial(_client_times, load, repeats, output), 1, 600, isolated=True)
        times = json.loads(output.read_text())
    bare, engine, around = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    detail = f"{around:.2f} of {engine:.2f} ms, bare {bare:.2f} ms, {repeats} repeats"
    what = "a client of W3 around forward and backward, CPU time of one thread"
    return judge("client", what, around / bare, CLIENT_LIMIT, detail)


def _client_times(load: Workload, repeats: int, output: Path, group: Group) -> None:
    """Of each repeat: seconds a client of the bare loop, of the engine, and around its passes."""
    configure_process(1)
    data = random_data(load, load.clients * load.images)
    federation, bare = make_federation(load, data, group), Bare(load, data, group)
    trainer, rounds, passes = federation.trainer, federation.rounds(), []
    compute_pass = trainer._forward_backward

    def timed_pass(*given) -> torch.Tensor:
        started = time.thread_time()
        loss = compute_pass(*given)
        passes.append(time.thread_time() - started)
        return loss

    trainer._forward_backward = timed_pass
    times, clients = [], load.cohort or load.clients
    for repeat in range(repeats + 1):
        passes.clear()
        started = time.thread_time()
        bare.round()
        between = time.thread_time()
        next(rounds)
        engine = time.thread_time() - between
        if repeat:  # the first one warms up
            seconds = between - started, engine, engine - sum(passes)
            times.append([one / clients for one in seconds])
    output.write_text(json.dumps(times))


def bench_scaling(repeats: int) -> bool:
    """The same rounds with two workers and with one."""
    load = BY_NAME["W1"]
    data = random_data(load, load.clients * load.images)
    times = compete({"two": engine(load, data, 2), "one": engine(load, data, 1)}, repeats)
    detail = (
        f"round {1000 * times['two']:.0f} ms against {1000 * times['one']:.0f} ms,"
        f" {repeats} repeats"
    )
    ratio = times["two"] / times["one"]
    return judge("scaling", "W1 with two workers", ratio, SCALING_LIMIT, detail, of="one worker")


def bench_command(name: str, repeats: int, workers: int) -> bool:
    """A round of `fedbench`, with its files and lines, against a round of the engine alone.

    The command and the engine run one after the other, three times: the command's rounds lie
    between its lines.
    """
    load = replace(BY_NAME[name], test=BY_NAME[name].test or 10)  # a line needs an evaluation
    data, rounds = random_data(load, load.clients * load.images), COMMAND_ROUNDS[name]
    commands, engines = [], []
    with tempfile.TemporaryDirectory() as folder:
        words = command_words(load, data, rounds, workers, Path(folder))
        for _ in range(max(repeats // 3, 1)):
            commands.append(seconds_a_round(words, rounds))
            engines.append(compete({"engine": engine(load, data, workers)}, rounds - 1)["engine"])
    command, own = statistics.median(commands), statistics.median(engines)
    detail = f"round {1000 * command:.0f} ms against {1000 * own:.0f} ms, {workers} workers"
    what = f"`fedbench` with files and lines on {name}"
    return judge("command", what, command / own, COMMAND_LIMITS[name], detail, of="engine")


def command_words(
    load: Workload, data: Dataset, rounds: int, workers: int, folder: Path
) -> list[str]:
    """The command that trains a workload: its images and its split as files."""
    np.savez(
        folder / "data.npz",
        x_train=data.train_x,
        y_train=data.train_y,
        x_test=data.test_x,
        y_test=data.test_y,
    )
    shards = np.arange(len(data.train_y)).reshape(load.clients, load.images).tolist()
    (folder / "split.json").write_text(json.dumps(shards))
    return [
        sys.executable,
        "-m",
        "fedbench",
        "data=npz",
        f"data.path={folder / 'data.npz'}",
        "partition=file",
        f"partition.path={folder / 'split.json'}",
        f"model={load.model}",
        f"cohort={load.cohort or 'null'}",
        f"client.epochs={load.epochs}",
        f"client.batch_size={load.batch}",
        "client.lr=0.01",
        f"rounds={rounds}",
        f"runtime.workers={workers}",
        "logger=none",
        "force=true",
        f"results={folder / 'results'}",
    ]


def seconds_a_round(words: list[str], rounds: int) -> float:
    """From the line of the first round to that of the last."""
    lines = {}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("round "):
            lines[int(line.split()[1].split("/")[0])] = time.perf_counter()
    if process.wait() != 0 or rounds not in lines:
        sys.exit("fedbench failed")
    return (lines[rounds] - lines[1]) / (rounds - 1)


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


def bench_rivals(repeats: int) -> None:
    """The workloads through pfl-research, the bare loop and the engine: one process each.

    A table for docs/benchmarks.md. pfl-research is installed from the package index into an
    environment of its own, in the user's cache.
    """
    rival = PflResearch()
    print(rival.heading())
    for load in WORKLOADS:
        data = random_data(load, load.clients * load.images)
        count = repeats if load.times == 1 else 3 * repeats
        times: dict[str, list[float]] = {"bare": [], "engine": [], "rival": []}
        for _ in range(3):  # one after the other, three times
            pair = compete(
                {"bare": bare_loop(load, data, 1), "engine": engine(load, data, 1)}, count
            )
            times["bare"].append(pair["bare"])
            times["engine"].append(pair["engine"])
            times["rival"].append(rival.round_seconds(load, data, count))
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        print(rival.row(load.name, medians), flush=True)


def facts() -> str:
    """What a measurement depends on, in one line. Ends the bench where there are no native kernels.

    The limits are those of native kernels: without them, PyTorch's layers would be measured.
    """
    for load in WORKLOADS:
        network = MODELS[load.model]().build(load.shape, 10)
        choice = choose_kernels("auto", network, "cpu", threads=1)
        if choice.name != "native":
            sys.exit(f"bench: {load.name} has no native kernels here: {choice.reason}")
    compiler, source = library.compiler_version(library.find_compiler()), source_commit()
    commit = (source["commit"] or "unknown")[:10] + (" with changes" if source["dirty"] else "")
    return (
        f"fedbench {fedbench.__version__}, commit {commit}; {machine_name()};"
        f" torch {torch.__version__}; {compiler.splitlines()[0]}; native kernels"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [*BY_NAME, "client", "command", "scaling", "methods", "start", "memory"]
    parser.add_argument(
        "what",
        nargs="*",
        choices=[*names, "rivals", []],
        default=[],
        help="workloads; default: all but rivals, which needs a network",
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--workers", type=int, default=available_cores())
    arguments = parser.parse_args()
    what = arguments.what or names
    torch.set_num_threads(1)
    print(facts(), flush=True)
    results = [
        bench_workload(load, arguments.repeats, arguments.workers)
        for load in WORKLOADS
        if load.name in what
    ]
    if "client" in what:
        results.append(bench_client(arguments.repeats))
    if "command" in what:
        results += [
            bench_command(name, arguments.repeats, arguments.workers) for name in COMMAND_LIMITS
        ]
    if "scaling" in what:
        results.append(bench_scaling(arguments.repeats))
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
    if "rivals" in what:
        bench_rivals(arguments.repeats)
    sys.exit(not all(results))


if __name__ == "__main__":
    main()

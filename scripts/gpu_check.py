"""Everything that could not be tried without a GPU: `make gpu-check`, about twenty minutes on one.

- `pytest -m gpu`: recorded steps have the bits of ordinary ones, for every method; no step waits
  for the GPU.
- Runs of the command line end in the same bits with 1, 2 and 4 ranks on a GPU, with and without
  recorded steps, and after SIGKILL in the middle; where there are several equal GPUs, also with a
  rank on each.
- Running out of memory is reported with the GPU and the remedy.
- Gradients a second and peak memory of the bench's workloads and of ResNet-18, with and without
  recorded steps, as a table for docs/benchmarks.md.

Without a GPU it says so in one line and ends with status 0: there is nothing to check. With
`--device cpu --quick` the program itself is rehearsed on a CPU, with tiny sizes; those figures mean
nothing.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from bench import MODELS, WORKLOADS, Workload, make_federation, random_data

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import BindContext
from fedbench.core.flat_model import FlatModel
from fedbench.core.machine import peak_memory
from fedbench.data.batches import examples
from fedbench.models.torchvision import ResNet18
from fedbench.parallel import devices
from fedbench.parallel.group import Group
from fedbench.parallel.processes import configure_process
from fedbench.training.federation import Federation

ROOT = Path(__file__).parents[1]
MEBIBYTE = 2**20
RESNET = Workload(
    "ResNet-18",
    "10 clients x 1,000 images 32x32x3, batch 64, 1 epoch, 2,000 test images",
    limit=0.0,  # it is not compared with a bare loop
    model="resnet18",
    shape=(32, 32, 3),
    clients=10,
    images=1000,
    batch=64,
    epochs=1,
    cohort=None,
    test=2000,
)
MODELS[RESNET.model] = partial(ResNet18, stem="cifar", extra=False)
LOADS = {load.name: load for load in (*WORKLOADS, RESNET)}
# Methods whose bits could depend on the ranks in different ways: memories, draws on the device.
METHODS = ("algo=fedavg", "algo=scaffold", "algo=moon", "algo=fedgen", "data.augment=[crop,flip]")
RUN = ("data=cifar10", "data.source=synthetic", "model=lenet", "model.batch_norm=true")
SIZES = ("data.subset=5000", "rounds=6", "checkpoint.every=2", "partition.clients=8", "logger=none")
QUICK_SIZES = ("data.subset=100", "rounds=4", "checkpoint.every=1", *SIZES[3:])
# Of so many images at once, activations take more than ROOM, which is all that is left free. Before
# them come CUDA itself, the model and the data.
ROOM = 2 * 2**30
TOO_MUCH = (
    "data=cifar10",
    "data.source=synthetic",
    "algo=centralized",
    "model=resnet18_plain",
    "client.batch_size=full",
    "rounds=1",
    "logger=none",
)


@dataclass
class Check:
    name: str
    good: bool
    detail: str

    def __str__(self) -> str:
        return f"{'ok    ' if self.good else 'FAILED'}  {self.name}: {self.detail}"


@dataclass
class Speed:
    """What one workload did."""

    load: str
    graph: str
    seconds: float  # of a round
    gradients: float  # a second
    memory: float  # bytes, at the peak


@dataclass
class Runs:
    """Runs of the command line, each in a results folder of its own."""

    device: str
    quick: bool
    folder: Path
    gpus: int = 1  # the first ones that this process sees, as many as runs are to see
    count: int = 0

    def new_folder(self) -> Path:
        self.count += 1
        return self.folder / str(self.count)

    def environment(self) -> dict[str, str]:
        """Of all that this program starts."""
        environment = dict(os.environ)
        if self.device == "cuda":
            environment[devices.VISIBLE] = ",".join(devices.visible_names()[: self.gpus])
        return environment

    def command(self, folder: Path, *words: str) -> list[str]:
        own = (f"results={folder}", f"runtime.device={self.device}")
        return [sys.executable, "-m", "fedbench", *words, *own]

    def settings(self, *words: str) -> tuple[str, ...]:
        return (*RUN, *(QUICK_SIZES if self.quick else SIZES), *words)

    def digest(self, *words: str, folder: Path | None = None) -> str:
        """Of the final model, or what went wrong."""
        folder = folder or self.new_folder()
        done = subprocess.run(
            self.command(folder, *words), capture_output=True, text=True, env=self.environment()
        )
        if done.returncode:
            return f"status {done.returncode}: {last_line(done.stderr)}"
        (summary,) = folder.glob("runs/*/*/summary.json")
        return json.loads(summary.read_text())["digest"]

    def killed(self, folder: Path, *words: str) -> bool:
        """Start a run and kill all of its processes once it has written a checkpoint."""
        process = subprocess.Popen(
            self.command(folder, *words),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self.environment(),
        )
        while process.poll() is None:
            if list(folder.glob("runs/*/*/checkpoint-*")):
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.01)
        return process.wait() == -signal.SIGKILL


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "nothing on standard error"


def check_tests(runs: Runs) -> Check:
    """Recorded steps, and waiting for the GPU, for every method.

    Where a GPU cannot be used, pytest skips them all and ends well.
    """
    command = [sys.executable, "-m", "pytest", "-m", "gpu", str(ROOT / "tests")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=runs.environment())
    told = last_line(done.stdout)
    tried = runs.device == "cpu" or ("passed" in told and "skipped" not in told)
    return Check("pytest -m gpu", done.returncode == 0 and tried, told)


def check_ranks(runs: Runs, method: str) -> Check:
    """The same bits for 1, 2 and 4 ranks on a GPU, and without recorded steps."""
    words = runs.settings(method)
    found = {
        f"{count} ranks": runs.digest(*words, f"runtime.workers={count}") for count in (1, 2, 4)
    }
    found["no graph"] = runs.digest(*words, "runtime.workers=1", "runtime.graph=off")
    same = len(set(found.values())) == 1 and not any("status" in one for one in found.values())
    told = found["1 ranks"] if same else str(found)
    return Check(f"1, 2, 4 ranks and runtime.graph=off, {method}", same, told)


def check_gpus(runs: Runs, method: str) -> Check:
    """The same bits for one rank on one GPU, and for a rank on each."""
    words = runs.settings(method)
    every = replace(runs, gpus=equal_gpus(), folder=runs.folder / "gpus")
    found = {
        "1 GPU": runs.digest(*words, "runtime.workers=1"),
        f"{every.gpus} GPUs": every.digest(*words, f"runtime.workers={every.gpus}"),
    }
    same = len(set(found.values())) == 1 and "status" not in found["1 GPU"]
    return Check(f"a rank on each of {every.gpus} GPUs, {method}", same, str(found))


def equal_gpus() -> int:
    """How many of the GPUs here are like the first, without others between them."""
    names = [one.name for one in devices.gpus().found]
    return next((place for place, name in enumerate(names) if name != names[0]), len(names))


def check_kill(runs: Runs, method: str) -> Check:
    """The same bits after SIGKILL and a resumption."""
    words = (*runs.settings(method), "runtime.workers=2")
    folder = runs.new_folder()
    whole, killed = runs.digest(*words), runs.killed(folder, *words)
    resumed = runs.digest(*words, folder=folder)
    good = killed and whole == resumed and "status" not in whole
    told = whole if good else f"killed in time: {killed}; {whole} and, resumed, {resumed}"
    return Check(f"SIGKILL and resumption, {method}", good, told)


def check_out_of_memory(runs: Runs) -> Check:
    """One on purpose: the message names the GPU and what needs less."""
    name = "out of memory on purpose"
    if runs.device == "cpu":
        return Check(name, True, "not tried on the CPU: the kernel might end other programs")
    with memory_held(runs.environment()) as held:
        if not held:
            return Check(name, False, "the process that was to hold the GPU's memory died")
        command = runs.command(runs.new_folder(), *TOO_MUCH)
        done = subprocess.run(command, capture_output=True, text=True, env=runs.environment())
    words = " ".join(done.stderr.split())
    needed = ("GPU 0 (", "not enough memory", "client.batch_size")
    good = done.returncode == 1 and "Traceback" not in words and all(x in words for x in needed)
    return Check(name, good, last_line(done.stderr))


@contextmanager
def memory_held(environment: dict[str, str]) -> Iterator[str]:
    """Another process has all memory of the GPU but ROOM, however large the GPU is.

    Yields what that process says, which is nothing if it died.
    """
    command = [sys.executable, __file__, "--hold"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:  # leaving closes its standard input, which ends it, and waits
        assert process.stdout is not None
        yield process.stdout.readline()


def hold() -> None:
    """Take all memory of the GPU but ROOM until standard input ends."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(free - ROOM, 0), dtype=torch.uint8, device="cuda")
    print(f"{held.numel()} bytes", flush=True)
    sys.stdin.read()


def federation_on(load: Workload, device: torch.device, graph: str) -> Federation:
    """The bench's federation, on this device."""
    data = random_data(load, load.clients * load.images)
    made = make_federation(load, data, Group())
    model = FlatModel(made.model.module, device)
    settings = replace(made.settings, runtime=replace(made.settings.runtime, graph=graph))
    shards = [own.to(device) for own in made.shards]
    context = BindContext(model, len(shards), data.classes, settings.rounds, settings.seed)
    train, test = examples(data, "train", device), examples(data, "test", device)
    bound = Algorithm().bind(context)
    return Federation(model, train, test, shards, bound, settings, Group(), data.classes)


def measure(load: Workload, kind: str, graph: str, repeats: int) -> Speed:
    """In a process of its own: a peak of memory never falls."""
    configure_process(1)
    device = devices.enter(kind, 0, deterministic=True, precision="float32")
    federation = federation_on(load, device, graph)
    rounds = federation.rounds()
    for _ in range(2):  # libraries set themselves up, and steps are recorded
        next(rounds)
    times, before = [], federation.totals.gradients
    for _ in range(repeats):
        started = time.perf_counter()
        next(rounds)  # ends with copies from the device, which wait for it
        times.append(time.perf_counter() - started)
    gradients = (federation.totals.gradients - before) / repeats
    peak = torch.cuda.max_memory_allocated(device) if kind == "cuda" else peak_memory()
    seconds = statistics.median(times)
    return Speed(load.name, graph, seconds, gradients / seconds, float(peak))


def measured(runs: Runs, name: str, graph: str) -> Speed | Check:
    """`measure` in a child: this process does not touch the GPU."""
    words = ["--measure", name, "--graph", graph, "--device", runs.device]
    words += ["--quick"] * runs.quick
    done = subprocess.run(
        [sys.executable, __file__, *words],
        capture_output=True,
        text=True,
        env=runs.environment(),
    )
    if done.returncode:
        return Check(f"speed of {name}, graph {graph}", False, last_line(done.stderr))
    return Speed(**json.loads(last_line(done.stdout)))


def small(load: Workload) -> Workload:
    cohort = 2 if load.cohort else None
    return replace(load, clients=2, images=12, batch=4, test=min(load.test, 10), cohort=cohort)


def table(found: list[Speed], about: str) -> str:
    """Rows for docs/benchmarks.md."""
    lines = [
        f"Measured by `make gpu-check` on {about}, torch {torch.__version__}, one rank.",
        "",
        "| workload | graph | round | gradients a second | against no graph | peak memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    eager = {one.load: one.gradients for one in found if one.graph == "off"}
    for one in found:
        ratio = f"{one.gradients / eager[one.load]:.2f}" if one.load in eager else "unknown"
        lines.append(
            f"| {one.load} | {one.graph} | {1000 * one.seconds:.1f} ms | {one.gradients:,.0f} |"
            f" {ratio} | {one.memory / MEBIBYTE:,.0f} MiB |"
        )
    return "\n".join(lines)


def checks(runs: Runs) -> Iterator[Callable[[], Check]]:
    """In the order in which they are tried."""
    methods = METHODS[:1] if runs.quick else METHODS
    yield lambda: check_tests(runs)
    for method in methods:
        yield lambda method=method: check_ranks(runs, method)
    for method in methods[:2]:
        yield lambda method=method: check_kill(runs, method)
    if runs.device == "cuda" and equal_gpus() > 1:
        yield lambda: check_gpus(runs, METHODS[1])
    yield lambda: check_out_of_memory(runs)


def check_everything(device: str, quick: bool, about: str) -> bool:
    good, found = True, []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(device, quick, Path(folder))
        for check in checks(runs):
            result = check()
            good &= result.good
            print(result, flush=True)
    for name in LOADS:
        for graph in ("off", "auto"):
            one = measured(runs, name, graph)
            if isinstance(one, Check):
                good = False
                print(one, flush=True)
            else:
                found.append(one)
    print(f"\n{table(found, about)}", flush=True)
    return good


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to try this program")
    parser.add_argument("--measure", choices=LOADS, help=argparse.SUPPRESS)
    parser.add_argument("--hold", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--graph", choices=("auto", "off"), default="auto", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.hold:
        hold()
        return 0
    if arguments.measure:
        load = LOADS[arguments.measure]
        speed = measure(
            small(load) if arguments.quick else load,
            arguments.device,
            arguments.graph,
            2 if arguments.quick else 9,
        )
        print(json.dumps(vars(speed)))
        return 0
    about = "the CPU, as a rehearsal"
    if arguments.device == "cuda":
        here = devices.gpus()
        if not len(here):
            print(f"no GPU: {here.problem or 'there is none here'}; nothing was checked")
            return 0
        about = f"{here.found[0]}, " + ", ".join(f"{k} {v}" for k, v in here.versions.items())
    return 0 if check_everything(arguments.device, arguments.quick, about) else 1


if __name__ == "__main__":
    sys.exit(main())

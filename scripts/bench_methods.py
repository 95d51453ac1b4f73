"""What the methods cost: the time of a round on the bench's first workload, as a multiple of
FedAvg's.

All methods take turns in the same processes, each next to a round of FedAvg, so that noise disturbs
both alike; the ratio is that of the medians of these pairs.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hydra
from hydra import compose, initialize_config_dir

from fedbench.algorithms.algorithm import Algorithm, build
from fedbench.config.validate import check, config_folder
from fedbench.parallel.group import Group
from fedbench.parallel.processes import configure_process, launch
from fedbench.training.federation import Federation

# Words of the command line, and the largest multiple of FedAvg's round time.
LIMITS = {
    "algo=scaffold": 1.10,
    "algo=fedprox": 1.10,
    "algo=feddyn": 1.10,
    "algo=fedpvr": 1.10,
    **{
        f"algo=fedpgvc algo.rho={rho}": 1.15
        for rho in ("norm", "eq15", "layer_norm", "layer_mean", "wdro", "add")
    },
    # The released program passes over all data once more after its two epochs: the forward pass
    # alone makes it 1.13.
    "algo=fedpgvc algo.rho=code": 1.30,
    "algo=fedecgr": 1.30,
    "algo=fedgsnr algo.steps={steps}": 1.40,  # as many steps as FedAvg, shared out anew
}
BASELINE = "algo=fedavg"


def algorithm(words: str) -> Algorithm:
    hydra.core.global_hydra.GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_folder()), version_base="1.3"):
        composed = compose("config", overrides=["logger=none", *words.split()])
    config = check(composed, {})
    return build(config.algo, config.scalars.client, None)


def bench_methods(
    make: Callable[[Group, Algorithm], Federation], repeats: int, workers: int, steps: int
) -> bool:
    """`make` puts the workload's federation together; `steps` is the number of a client's local
    steps.
    """
    methods = {name: algorithm(name.format(steps=steps)) for name in (BASELINE, *LIMITS)}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "times"
        launch(lambda group: measure(group, make, methods, repeats, output), workers, 1800)
        times = json.loads(output.read_text())
    good = True
    for name, limit in LIMITS.items():
        own, baseline = (statistics.median(column) for column in zip(*times[name], strict=True))
        ratio = own / baseline
        good &= ratio <= limit
        verdict = "ok" if ratio <= limit else "TOO SLOW"
        words = name.format(steps=steps)
        print(
            f"{ratio:.2f} x fedavg (at most {limit:.2f}: {verdict})  {words}; {repeats} repeats",
            flush=True,
        )
    return good


def measure(
    group: Group,
    make: Callable[[Group, Algorithm], Federation],
    methods: dict,
    repeats: int,
    output: Path,
) -> None:
    configure_process(1)
    rounds = {name: make(group, method).rounds() for name, method in methods.items()}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in LIMITS}
    for repeat in range(repeats + 1):
        for name in LIMITS:
            pair = seconds(group, rounds[name]), seconds(group, rounds[BASELINE])
            if repeat:  # the first one warms up
                times[name].append(pair)
    if group.leader:
        output.write_text(json.dumps(times))


def seconds(group: Group, rounds: Iterator) -> float:
    """How long a round takes on all workers."""
    group.barrier()
    started = time.perf_counter()
    next(rounds)
    group.barrier()
    return time.perf_counter() - started

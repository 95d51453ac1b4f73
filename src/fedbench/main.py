"""The command line: builds the parts of an experiment in a visible order, runs it, reports."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from fedbench import messages
from fedbench.algorithms.build import Algorithm, build
from fedbench.batches import examples
from fedbench.bookkeeping import Totals
from fedbench.checkpoint import CheckpointStore
from fedbench.config import Config, check, config_folder, short_names
from fedbench.data.base import Dataset
from fedbench.errors import BadInput, require
from fedbench.federation import Federation
from fedbench.flat import FlatModel
from fedbench.interrupt import Interrupted, StopRequest
from fedbench.models.base import Model
from fedbench.parallel import Group, join_torchrun, launch, settle, under_torchrun
from fedbench.partitions.base import Split
from fedbench.partitions.measures import heterogeneity, partition_hash
from fedbench.recorder import Recorder
from fedbench.runs import RunFolder, identity, label, run_id, source_commit, versions
from fedbench.seeding import derive

FINISHED, UNEXPECTED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


@dataclass
class Parts:
    """An experiment, built and checked, before anything is written."""

    config: Config
    device: str
    data: Dataset
    split: Split
    model: Model
    algorithm: Algorithm
    folder: RunFolder
    id: str

    @property
    def shards(self) -> list[np.ndarray]:
        """The training indices of every client."""
        return self.split.parts


def build_parts(config: Config) -> Parts:
    scalars = config.scalars
    device = pick_device(scalars.runtime.device)
    algorithm = build(config.algo, scalars.client, scalars.server.weights)
    data = config.data.load(scalars.seed)
    split = config.partition.draw(data.train_y, data.classes, scalars.seed)
    allowed = f"at most the {len(split.parts)} clients of the partition are allowed"
    require(scalars.cohort is None or scalars.cohort <= len(split.parts), "cohort", scalars.cohort, allowed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(scalars.seed, "initial weights"))
        model = config.model.build(data.shape, data.classes)
    if config.model.weights is not None:
        config.model.load_weights(model)
    algorithm.bind(FlatModel(model))  # refuses selections that this model does not have
    number = run_id(identity(config, algorithm, device))
    folder = RunFolder(Path(scalars.results) / "runs" / label(config) / number)
    return Parts(config, device, data, split, model, algorithm, folder, number)


def pick_device(asked: str) -> str:
    available = torch.cuda.is_available()
    require(
        asked != "cuda" or available,
        "runtime.device",
        asked,
        "there is no CUDA device here; cpu or auto is allowed",
    )
    return "cuda" if available and asked != "cpu" else "cpu"


def run(config: Config) -> int:
    """One experiment from configuration to files. Returns the exit status."""
    runtime = config.scalars.runtime
    torch.set_num_threads(1)  # no thread pool before the ranks are forked
    parts = build_parts(config)
    group = join_torchrun(runtime.timeout) if under_torchrun() else Group()
    lock = parts.folder.lock() if group.leader else None
    try:
        skip = group.share(int(parts.folder.finished() is not None and not config.scalars.force))
        if not skip:
            with StopRequest() as stop:
                execute(parts, group, stop)
        if group.leader:
            report(parts, skipped=bool(skip))
    finally:
        if lock is not None:
            lock.release()
    return FINISHED


def execute(parts: Parts, group: Group, stop: StopRequest) -> None:
    """Prepare the folder, train on every rank, and notice an interruption."""
    runtime = parts.config.scalars.runtime
    workers = group.size if under_torchrun() else runtime.workers or default_workers(parts.device)
    if group.leader:
        prepare(parts, workers)
    if under_torchrun():
        train(group, parts, stop, group.size)
    else:
        launch(lambda ranks: train(ranks, parts, stop, workers), workers, runtime.timeout)
    if group.share(int(stop.requested and parts.folder.finished() is None)):
        raise Interrupted


def default_workers(device: str) -> int:
    return torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))


def prepare(parts: Parts, workers: int) -> None:
    """Write what is known before training, and say what is about to run."""
    folder, config, data = parts.folder, parts.config, parts.data
    if config.scalars.force:
        folder.clear()
    folder.write("config.yaml", OmegaConf.to_yaml(OmegaConf.create({**config.tree, "choices": config.names})))
    folder.write("partition.json", "[" + ",\n".join(str(own.tolist()) for own in parts.shards) + "]\n")
    draw_partition(parts)
    flat = FlatModel(parts.model)
    last = ", ".join(layer.name for layer in flat.layers[-2:])
    print(f"{label(config)}  seed {config.scalars.seed}  id {parts.id}")
    print(
        f"data: {data.name} ({data.note or data.source}), {len(data.train_y):,} training and {len(data.test_y):,} test examples"
    )
    print(f"model: {flat.size:,} parameters in {len(flat.layers)} layers (the last two: {last})")
    print(f"clients: {len(parts.shards)}, partition {partition_hash(parts.shards)}")
    print(f"running on {parts.device}, {workers} worker{'s' if workers > 1 else ''}", flush=True)
    for stamp in parts.algorithm.stamps:
        print(f"note: {stamp}")


def train(group: Group, parts: Parts, stop: StopRequest, workers: int) -> None:
    """What every rank does: the federation's rounds, with checkpoints and books around them."""
    started, scalars = time.time(), parts.config.scalars
    settle(scalars.runtime.threads)
    device = torch.device(
        parts.device, group.rank % torch.cuda.device_count() if parts.device == "cuda" else None
    )
    data = parts.data
    shards = [torch.from_numpy(own).to(device) for own in parts.shards]
    model = FlatModel(parts.model, device)
    train_set, test_set = examples(data, "train", device), examples(data, "test", device)
    federation = Federation(model, train_set, test_set, shards, parts.algorithm, scalars, group, data.classes)
    store = CheckpointStore(parts.folder.path, group)
    recorder = Recorder(parts.folder, test_set.y.to("cpu"), scalars.rounds) if group.leader else None
    checkpoint = store.load(federation.state)
    before = 0.0
    if checkpoint is not None:
        federation.done, federation.totals = checkpoint.done, Totals(**checkpoint.books["totals"])
        before = checkpoint.books["wall_time"]
    if recorder is not None:
        if checkpoint is not None:
            recorder.restore(checkpoint.books, checkpoint.extra)
            print(f"resuming after round {checkpoint.done}", flush=True)
        tracker = parts.config.logger.start(
            parts.id, label(parts.config), parts.config.tree, parts.folder.path
        )
        recorder.start(tracker, federation.done)
    for record in federation.rounds():
        if recorder is not None:
            recorder.add(record)
        stopping = group.any(stop.requested)
        last = record.diverged or federation.done == scalars.rounds
        if not last and (stopping or federation.done % scalars.checkpoint.every == 0):
            books = {"totals": asdict(federation.totals), "wall_time": before + time.time() - started}
            books |= recorder.books() if recorder is not None else {}
            store.save(
                federation.done, federation.state, books, recorder.predictions if recorder is not None else {}
            )
        if stopping and not last:
            return
    federation.load_global()
    if recorder is not None:
        facts = summary_facts(parts, federation, workers, before + time.time() - started)
        note = (
            "clients keep a part of their models; here it is the clients' weighted mean"
            if parts.algorithm.personal
            else ""
        )
        recorder.finish(model.state_dict(), note, facts)
        store.remove()


def summary_facts(parts: Parts, federation: Federation, workers: int, wall_time: float) -> dict[str, Any]:
    """What a reader of the numbers must know beside them."""
    data, scalars = parts.data, parts.config.scalars
    return {
        "label": label(parts.config),
        "id": parts.id,
        "seed": scalars.seed,
        "rounds": federation.done,
        "scoring": parts.algorithm.scoring if parts.algorithm.personal else "global",
        "stamps": parts.algorithm.stamps,
        "data": {
            "name": data.name,
            "source": data.source,
            "note": data.note,
            "fingerprint": data.fingerprint(),
        },
        "partition_hash": partition_hash(parts.shards),
        "partition": {"draws": parts.split.tries, "moved_to_reach_min_samples": parts.split.moved},
        "heterogeneity": heterogeneity(data.train_y, data.classes, parts.shards),
        "parameters": federation.model.size,
        "scale": scalars.scale,
        "device": parts.device,
        "workers": workers,
        "threads": scalars.runtime.threads,
        "versions": versions(),
        **{f"git_{key}": value for key, value in source_commit().items()},
        "wall_time": round(wall_time, 3),
        "train_seconds": round(federation.totals.seconds, 3),
    }


def draw_partition(parts: Parts) -> None:
    from fedbench.partitions.picture import save_picture

    path = parts.folder.path / "partition.png"
    save_picture(path, parts.data.train_y, parts.data.classes, parts.shards, label(parts.config))


def report(parts: Parts, skipped: bool) -> None:
    summary = parts.folder.finished()
    if skipped:
        print("this run is finished already (force=true runs it again)")
    if summary["status"] == "diverged":
        print(f"diverged in round {summary['diverged']['round']}: {summary['diverged']['cause']}")
    else:
        best, final = 100 * summary["best_accuracy"], 100 * summary["final_accuracy"]
        note = f" on a {summary['data']['note']}" if summary["data"]["source"] == "synthetic" else ""
        print(
            f"accuracy{note}: final {final:.2f} %, best {best:.2f} % (round {summary['best_round']})", end=""
        )
        print(f", scored: {summary['scoring']}")
    print(f"run: {parts.folder.path}", flush=True)


statuses: list[int] = []


def job(composed: DictConfig) -> None:
    """One job of a sweep, or the only one. A failed job is told at once and does not end a sweep."""
    aliases = short_names(composed)
    try:
        statuses.append(run(check(composed, dict(HydraConfig.get().runtime.choices))))
    except BadInput as error:
        complain(in_users_words(str(error), aliases))
        statuses.append(BAD_INPUT)
    except (Interrupted, KeyboardInterrupt):
        statuses.append(INTERRUPTED)
        raise KeyboardInterrupt from None  # ends a sweep, too
    except Exception:
        traceback.print_exc()
        statuses.append(UNEXPECTED)


def in_users_words(message: str, aliases: dict[str, str]) -> str:
    """Name the short key that a person typed, `algo.mu`, instead of the place to which it leads."""
    for place, name in aliases.items():
        message = message.replace(f"{place}=", f"{name}=")
    return message


def complain(message: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"fedbench: {message}", file=sys.stderr, flush=True)


def main() -> None:
    """`fedbench ...`: see `fedbench --help`."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors through to here, where they become one line
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # asking for a GPU must not spoil the fork
    sweeps = [word for word in sys.argv[1:] if word in ("-m", "--multirun")]  # Hydra wants them in front
    sys.argv[1:] = sweeps + [word for word in sys.argv[1:] if word not in sweeps]
    try:
        hydra.main(version_base="1.3", config_path=str(config_folder()), config_name="config")(job)()
    except messages.CONFIGURATION_ERRORS as error:
        complain(messages.explain(error, sys.argv[1:]))
        statuses.append(BAD_INPUT)
    except KeyboardInterrupt:
        statuses.append(INTERRUPTED)
        complain("interrupted; the same command goes on from the last checkpoint")
    for status in (INTERRUPTED, UNEXPECTED, BAD_INPUT):
        if status in statuses:
            sys.exit(status)
    sys.exit(FINISHED)


if __name__ == "__main__":
    main()

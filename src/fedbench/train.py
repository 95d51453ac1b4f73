"""One experiment as a library: prepare, train, write. The command line and studies call it."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch

from fedbench.algorithms.algorithm import Algorithm, build
from fedbench.algorithms.context import BindContext
from fedbench.config.schema import Config, Scalars
from fedbench.core.errors import BadInput, refuse_what_does_not_fit, require
from fedbench.core.flat_model import FlatModel
from fedbench.core.model import Model
from fedbench.core.seeding import derive
from fedbench.data.batches import examples
from fedbench.data.dataset import Dataset
from fedbench.parallel.failures import explain
from fedbench.parallel.group import Group
from fedbench.parallel.interrupt import Interrupted, StopRequest
from fedbench.parallel.processes import configure_process, launch, under_torchrun
from fedbench.parallel.ranks import AllLeave, Ranks, this_rank
from fedbench.partitions.base import Split, hold_out
from fedbench.runs.console import print_header, print_result
from fedbench.runs.folder import RunFolder
from fedbench.runs.identity import identity, label, run_id
from fedbench.runs.prepared import PreparedRun
from fedbench.runs.writer import RunWriter
from fedbench.training.federation import Federation
from fedbench.training.preflight import check_local_work, check_memory, check_scoring


@refuse_what_does_not_fit
def prepare(config: Config) -> PreparedRun:
    """Everything that an experiment needs, built and checked; nothing is written."""
    scalars = config.scalars
    device = pick_device(scalars.runtime.device)
    unbound = build(config.algo, scalars.client, scalars.server.weights)
    data = config.data.load(scalars.seed)
    split = config.partition.draw(data.train_y, data.classes, scalars.seed)
    split = hold_out(split, config.partition.local_test, scalars.seed)
    cohort_fits = scalars.cohort is None or scalars.cohort <= len(split.client_indices)
    words = f"must be at most {len(split.client_indices)}, the number of clients"
    require(cohort_fits, "cohort", scalars.cohort, words)
    model = build_model(config, data, unbound.projection)
    flat = FlatModel(model)
    context = BindContext(
        model=flat,
        clients=1 if unbound.pooled else len(split.client_indices),
        classes=data.classes,
        rounds=scalars.rounds,
        seed=scalars.seed,
        momentum=scalars.client.momentum,
        batch_size=scalars.client.batch_size,
    )
    algorithm = unbound.bind(context)  # refuses what makes no sense on this model
    attack_note = config.attack.note()
    if attack_note:
        algorithm.caveats = [*algorithm.caveats, attack_note]
    check_experiment(config, data, split, algorithm, flat)
    number = run_id(
        identity(config, algorithm, device, data.fingerprint(), len(split.client_indices))
    )
    folder = RunFolder(Path(scalars.results) / "runs" / label(config) / number)
    return PreparedRun(
        config, device, data, split, model, flat, algorithm, unbound, context, folder, number
    )


def build_model(config: Config, data: Dataset, projection: int | None) -> Model:
    """The network with its initial weights, which come from the seed or from a file."""

    def network() -> Model:
        return config.model.network(
            data.shape, data.classes, projection, vocabulary=data.vocabulary
        )

    check_memory(network)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.scalars.seed, "initial weights"))
        model = network()
    config.model.load_weights(model)
    return model


def check_experiment(
    config: Config, data: Dataset, split: Split, algorithm: Algorithm, model: FlatModel
) -> None:
    """What makes no sense together, although every part is right by itself."""
    scalars, clients = config.scalars, len(split.client_indices)
    config.attack.check(clients, data.classes, sequences=data.vocabulary is not None)
    words = f"must be false with algo={algorithm.name}, which has no global model"
    fits = not (scalars.eval.conformal and algorithm.personal)
    require(fits, "eval.conformal", "true", words)
    check_scoring(algorithm, config.attack, data, split.client_indices, scalars.seed)
    sizes = [len(own) for own in split.client_indices]
    check_local_work(scalars, algorithm, sizes, model.has_batch_norm)


def pick_device(asked: str) -> str:
    available = torch.cuda.is_available()
    rule = "must be cpu or auto: there is no CUDA device here"
    require(asked != "cuda" or available, "runtime.device", asked, rule)
    return "cuda" if available and asked != "cpu" else "cpu"


def run(config: Config) -> bool:
    """One experiment, from configuration to files.

    Returns whether a signal asked to stop while the run was ending well.
    """
    ranks = this_rank()
    try:
        return _run(config, ranks)
    except (BadInput, Interrupted, AllLeave):  # on every rank alike: they can do the next run
        raise
    except Exception as error:
        lost = ranks.explain(error, config.scalars.runtime.timeout)
        fault = lost or explain(error, Path(config.scalars.results))
        if not lost:
            ranks.tell_failure(str(fault or error))
        if fault is None:
            raise
        raise fault from error
    except BaseException:
        ranks.give_up()
        raise


def _run(config: Config, ranks: Ranks) -> bool:
    timeout = config.scalars.runtime.timeout
    stopping = False
    torch.set_num_threads(1)  # no thread pool before the ranks are forked
    prepared = ranks.together(lambda: prepare(config), timeout)
    ranks.agree(prepared.origin(), timeout)
    ranks.check_common_folder(Path(config.scalars.results), timeout)
    group = ranks.group(timeout)
    # A restart by torchrun resumes what its first attempt began with force=true.
    force = config.scalars.force and not ranks.remembers(f"forced {prepared.id}")
    lock = ranks.together(
        lambda: prepared.folder.lock(force) if ranks.leader else None, timeout, patient=True
    )
    try:
        done = group.share(int(group.leader and not force and is_done(prepared.folder)))
        if not done:
            with StopRequest() as stop:
                execute(prepared, group, stop, force)
                stopping = stop.requested
        if group.leader:
            if lock is not None:
                prepared.folder.clean()
            print_result(prepared.folder, skipped=bool(done))
    finally:
        if lock is not None:
            lock.release()
    return stopping


def is_done(folder: RunFolder) -> bool:
    """Whether a run is finished and undamaged. A damaged one is reported, and run again."""
    summary, damage = folder.examine(by_content=True)
    if damage:
        print(f"this run was finished, but {damage}; it is run again: {folder.path}", flush=True)
    return summary is not None


def execute(prepared: PreparedRun, group: Group, stop: StopRequest, force: bool) -> None:
    """Prepare the folder, train on every rank, and notice an interruption."""
    runtime = prepared.config.scalars.runtime
    if under_torchrun():
        workers = group.size
    else:
        workers = workers_here(prepared.config.scalars, prepared.device)
    writer = RunWriter(prepared, workers)
    if group.leader:
        writer.prepare(force)
        if force:
            this_rank().remember(f"forced {prepared.id}")
        print_header(prepared, workers)
    if under_torchrun():
        train(group, prepared, writer, stop)
    else:
        isolated = prepared.device == "cuda" or runtime.threads > 1
        work = partial(train, prepared=prepared, writer=writer, stop=stop)
        launch(work, workers, runtime.timeout, isolated)
    if group.share(int(stop.requested and prepared.folder.finished() is None)):
        raise Interrupted


def workers_here(scalars: Scalars, device: str) -> int:
    """How many workers to start on this machine."""
    if scalars.runtime.workers:
        return scalars.runtime.workers
    return torch.cuda.device_count() if device == "cuda" else len(os.sched_getaffinity(0))


def assemble(group: Group, parts: PreparedRun) -> Federation:
    """The federation of this rank, with the data and the model on its device."""
    scalars, data = parts.config.scalars, parts.data
    device = torch.device("cpu")
    if parts.device == "cuda":
        device = torch.device("cuda", group.rank % torch.cuda.device_count())
    model, algorithm = parts.on(device)
    train_set = examples(data, "train", device, getattr(parts.config.data, "augment", ()))
    test_set = examples(data, "test", device)
    shards = [torch.from_numpy(own).to(device) for own in parts.shards]
    parts.config.attack.spoil(train_set, shards, data.classes, scalars.seed)
    tests = parts.split.local_tests
    local_tests = None if tests is None else [torch.from_numpy(own).to(device) for own in tests]
    return Federation(
        model,
        train_set,
        test_set,
        shards,
        algorithm,
        scalars,
        group,
        data.classes,
        local_tests=local_tests,
    )


def train(group: Group, prepared: PreparedRun, writer: RunWriter, stop: StopRequest) -> None:
    """What every rank does: the federation's rounds, each of which is written."""
    configure_process(prepared.config.scalars.runtime.threads)
    federation = assemble(group, prepared)
    writer.open(federation)
    for record in federation.rounds():
        writer.add(record)
        stopping = group.any(stop.requested)
        writer.checkpoint(stopping)
        if stopping and not writer.complete:
            writer.close()
            break
    else:
        writer.finish()
    group.barrier()  # a rank that left before the leader has written would not notice that it hangs

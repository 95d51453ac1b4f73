"""One experiment as a library: prepare, train, write. The command line and studies call it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout

from fedbench.algorithms.algorithm import Algorithm, build
from fedbench.algorithms.context import BindContext
from fedbench.algorithms.equivalence import why_fedavg
from fedbench.config.schema import Config, Scalars
from fedbench.config.validate import with_algorithm
from fedbench.core.errors import BadInput, Interrupted, refuse_what_does_not_fit, require
from fedbench.core.flat_model import FlatModel
from fedbench.core.machine import available_cores
from fedbench.core.model import Model
from fedbench.core.seeding import derive
from fedbench.data.batches import examples
from fedbench.data.dataset import Dataset, tested_on
from fedbench.models.cpu_kernels import choose_kernels
from fedbench.parallel import devices
from fedbench.parallel.failures import explain
from fedbench.parallel.group import Group
from fedbench.parallel.interrupt import StopRequest
from fedbench.parallel.processes import configure_process, launch, under_torchrun
from fedbench.parallel.ranks import AllLeave, Ranks, this_rank
from fedbench.partitions.base import Split
from fedbench.runs.console import print_header, print_result
from fedbench.runs.folder import RunFolder
from fedbench.runs.identity import identity, label, run_id, series_id
from fedbench.runs.prepared import PreparedRun
from fedbench.runs.writer import RunWriter
from fedbench.training.federation import Federation
from fedbench.training.preflight import (
    check_gpu_memory,
    check_local_work,
    check_memory,
    check_scoring,
    memory_of_steps,
)

LONGEST_WAIT = 60.0  # seconds for another program's lock, before the ranks meet again


@refuse_what_does_not_fit
def prepare(config: Config, loaded: Dataset | None = None) -> PreparedRun:
    """Everything that an experiment needs, built and checked; nothing is written.

    `loaded`: the examples, for a caller who prepares many runs with the same ones.
    """
    scalars = config.scalars
    device = choose_device(scalars)
    unbound = build(config.algo, scalars.client, scalars.server.weights)
    data = config.data.for_run(scalars.seed) if loaded is None else loaded
    split = config.partition.for_run(
        data.train_y, data.classes, scalars.seed, data.training_fingerprint()
    )
    if config.data.pool:
        words = "must be false without partition.local_test, the share of examples that then test"
        require(split.local_tests is not None, "data.pool", "true", words)
        data = tested_on(data, np.sort(np.concatenate(split.local_tests)))
    cohort_fits = scalars.cohort is None or scalars.cohort <= len(split.client_indices)
    words = f"must be at most {len(split.client_indices)}, the number of clients"
    require(cohort_fits, "cohort", scalars.cohort, words)
    model = build_model(config, data, unbound.projection)
    flat = FlatModel(model)
    context = BindContext(
        model=flat,
        clients=1 if unbound.pooled else len(split.client_indices),
        classes=data.classes,
        rounds=scalars.rounds if unbound.uses_rounds else None,
        seed=scalars.seed,
        momentum=scalars.client.momentum,
        weight_decay=scalars.client.weight_decay,
        batch_size=scalars.client.batch_size,
    )
    algorithm = unbound.bind(context)  # refuses what makes no sense on this model
    asked, reason = config, _why_fedavg(config, unbound, algorithm)
    if reason:  # then it is that run, under its name and in its folder
        config = with_algorithm(config, "fedavg")
        unbound = build(config.algo, scalars.client, scalars.server.weights)
        algorithm = unbound.bind(context)
    notes = filter(None, [split.note, config.attack.note()])
    algorithm.caveats = [*algorithm.caveats, *notes]
    check_experiment(config, data, split, algorithm, flat)
    kernels = choose_kernels(scalars.runtime.kernels, model, device, scalars.runtime.threads)
    clients = len(split.client_indices)
    tree = identity(config, algorithm, device, data.fingerprint(), clients, kernels.name)
    number, series = run_id(tree), series_id(tree)
    folder = RunFolder(Path(scalars.results) / "runs" / label(config) / number)
    asked.folder = folder.path  # where the caller, who has `asked`, reads it
    return PreparedRun(
        config,
        device,
        data,
        split,
        model,
        flat,
        algorithm,
        unbound,
        context,
        folder,
        number,
        series,
        kernels,
        reason and f"{label(asked)} is FedAvg to the bit, because {reason}: this is FedAvg's run",
    )


def _why_fedavg(config: Config, unbound: Algorithm, bound: Algorithm) -> str:
    """Why the algorithm is FedAvg of conf/algo with this experiment's settings; empty if not."""
    same_weights = config.scalars.server.weights is not None or config.algo["weights"] == "samples"
    if config.own_code or not same_weights:
        return ""
    return why_fedavg(unbound, bound, config.scalars)


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


def choose_device(scalars: Scalars) -> str:
    """The device of a run, "cpu" or "cuda", if it can do what is asked of it."""
    device, precision = devices.pick_device(scalars.runtime.device), scalars.runtime.precision
    fits = device == "cuda" or precision == "float32"
    require(fits, "runtime.precision", precision, "must be float32 on the CPU")
    return device


def prepare_here(config: Config) -> PreparedRun:
    """As `prepare`, for the GPUs that this process sees: they must be equal and large enough."""
    prepared, scalars = prepare(config), config.scalars
    if prepared.device == "cuda":
        workers = workers_here(scalars, prepared.device)
        if scalars.runtime.deterministic:
            devices.check_equal_gpus(workers)
        sharing = devices.ranks_a_gpu(workers)
        flat, sizes = prepared.flat, [len(own) for own in prepared.shards]
        of_steps = memory_of_steps(scalars, prepared.algorithm, sizes, flat.has_batch_norm)
        check_gpu_memory(flat.size, prepared.data, devices.own_gpu(), sharing, of_steps)
    return prepared


def run(config: Config) -> bool:
    """One experiment, from configuration to files.

    Returns whether a signal asked to stop while the run was ending well; of several ranks, all
    return the same.
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
    prepared = ranks.together(lambda: prepare_here(config), timeout)
    ranks.agree(prepared.origin() | what_the_ranks_do_in_step(config), timeout)
    ranks.check_common_folder(Path(config.scalars.results), timeout)
    group = ranks.group(timeout)
    if group.leader and prepared.instead:
        print(f"note: {prepared.instead}", flush=True)
    # A restart by torchrun resumes what its first attempt began with force=true.
    force = config.scalars.force and not ranks.remembers(f"forced {prepared.id}", timeout)
    lock = take_lock(prepared.folder, force, ranks, group, timeout)
    try:
        done = group.share(int(group.leader and not force and is_done(prepared.folder)))
        if not done:
            with StopRequest() as stop:
                stopping = execute(prepared, group, stop, force)
        if group.leader:
            if lock is not None:
                prepared.folder.clean()
            keep = config.scalars.checkpoint.keep
            print_result(prepared.folder, skipped=bool(done), keep=keep)
    finally:
        if lock is not None:
            lock.release()
    return stopping


def take_lock(
    folder: RunFolder, force: bool, ranks: Ranks, group: Group, timeout: int
) -> FileLock | None:
    """The lock of the run's folder, which the leader takes for all ranks.

    It may have to wait for another program for any time. The ranks meet now and then meanwhile, so
    that the loss of one is noticed.
    """
    if ranks.size == 1:
        return folder.lock(force)
    taken: list[FileLock | None] = []
    tries = 0

    def attempt() -> None:
        if ranks.leader:
            with suppress(Timeout):
                patience = min(LONGEST_WAIT, timeout / 4)
                taken.append(folder.lock(force, patience, report=tries == 0))

    while True:
        ranks.together(attempt, timeout)
        if group.share(len(taken)):
            return taken[0] if taken else None
        tries += 1


def what_the_ranks_do_in_step(config: Config) -> dict[str, str]:
    """Settings that change no number, but when ranks wait for each other."""
    checkpoint = config.scalars.checkpoint
    return {
        "checkpoint.every": str(checkpoint.every),
        "checkpoint.keep": str(checkpoint.keep).lower(),
    }


def is_done(folder: RunFolder) -> bool:
    """Whether a run is finished and undamaged. A damaged one is reported, and run again."""
    summary, damage = folder.examine(by_content=True)
    if damage:
        print(f"this run was finished, but {damage}; it is run again: {folder.path}", flush=True)
    return summary is not None


def execute(prepared: PreparedRun, group: Group, stop: StopRequest, force: bool) -> bool:
    """Prepare the folder and train on every rank. Raises Interrupted on all of them when a signal
    to any of them ended the run early; returns whether one came while the run was ending well.
    """
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
    stopping = group.any(stop.requested)  # a signal may reach one rank alone
    if group.share(int(stopping and prepared.folder.finished() is None)):
        raise Interrupted
    return stopping


def workers_here(scalars: Scalars, device: str) -> int:
    """How many workers to start on this machine."""
    if scalars.runtime.workers:
        return scalars.runtime.workers
    return len(devices.gpus()) if device == "cuda" else available_cores()


def assemble(group: Group, parts: PreparedRun) -> Federation:
    """The federation of this rank, with the data and the model on its device."""
    scalars, data = parts.config.scalars, parts.data
    runtime = scalars.runtime
    device = devices.enter(parts.device, group.rank, runtime.deterministic, runtime.precision)
    model, algorithm = parts.on(device)
    train_set = examples(data, "train", device, getattr(parts.config.data, "augment", ()))
    test_set = examples(data, "test", device)
    place = train_set.x.device  # the CPU where the inputs are memory-mapped
    shards = [torch.from_numpy(own).to(place) for own in parts.shards]
    parts.config.attack.spoil(train_set, shards, data.classes, scalars.seed)
    validation = None if data.val_y is None else examples(data, "val", device)
    tests = parts.split.local_tests
    local_tests = None if tests is None else [torch.from_numpy(own).to(place) for own in tests]
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
        validation=validation,
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

"""The processes of a run: `runtime.workers=N` forks N ranks on this machine and watches them.

Under `torchrun` the ranks exist already; see `fedbench.parallel.ranks`.
"""

from __future__ import annotations

import ctypes
import math
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from fedbench.core.caller import under_torchrun as under_torchrun
from fedbench.core.machine import loopback_interface
from fedbench.parallel.failures import WorkerExit, first_cause
from fedbench.parallel.group import BLOCK_ELEMENTS, Group, SharedMemory

# How long the other ranks may take to notice that one has failed, before they are killed.
GRACE_SECONDS = 2
HANDLED = (signal.SIGINT, signal.SIGTERM)


def configure_process(threads: int) -> None:
    """Set this rank's number of threads, and have it keep the memory that it frees.

    glibc returns freed memory to the kernel and gets it back page by page. Depending on where the
    heap ends, that costs a training step of a small network up to a tenth of its time.
    """
    torch.set_num_threads(threads)
    trim_threshold, mmap_threshold, never = -1, -3, 2**30
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(trim_threshold, never)
        library.mallopt(mmap_threshold, never)
    except (OSError, AttributeError):  # another C library, without these settings
        pass


def speaks() -> bool:
    """Whether this rank prints messages: one rank of each machine does, for all of them."""
    return not under_torchrun() or os.environ.get("LOCAL_RANK", os.environ.get("RANK")) == "0"


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    multiprocessing._prctl_pr_set_pdeathsig(number)  # type: ignore[attr-defined]


def launch(
    work: Callable[[Group], None], workers: int, timeout: int, isolated: bool = False
) -> None:
    """Run `work` on every rank of this machine. A rank that fails ends the others.

    Its reason is raised here. Ranks are forked: they inherit the data without a copy and start
    without importing torch again. That is safe only while this process has started no thread pool
    and not used CUDA, so work that does so must be `isolated`: even a single rank is then forked.
    """
    if workers == 1 and not isolated:
        work(Group())
        return
    _allow_open_files(workers)
    with ExitStack() as files:
        rendezvous, *last_words = (
            files.enter_context(_temporary_file()) for _ in range(1 + workers)
        )
        memory = SharedMemory(BLOCK_ELEMENTS)
        context = multiprocessing.get_context("fork")
        ranks: list[BaseProcess] = []
        for rank in range(workers):
            own = (rank, workers, timeout, rendezvous, last_words[rank], memory, os.getpid())
            ranks.append(context.Process(target=_run_rank, args=(work, *own)))
        # Signals wait until every rank has set its own handlers.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            try:
                for process in ranks:
                    process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
            _watch(ranks, last_words, timeout)
        finally:  # after a second Ctrl-C, too: no rank outlives this process
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _allow_open_files(workers: int) -> None:
    """Raise this process's limit of open files, which is low for the sake of old programs.

    Every rank has a connection to every other one, and inherits the files that this process opened
    for each of them.
    """
    needed = 100 + 5 * workers  # measured: 12 and 4 a worker
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@contextmanager
def _temporary_file() -> Iterator[Path]:
    """A file that the ranks open by name. On Linux it is in memory, so a kill leaves nothing."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="fedbench-") as file:
            yield Path(file.name)
        return
    number = os.memfd_create("fedbench")
    try:
        yield Path(f"/proc/self/fd/{number}")  # forked ranks inherit the number
    finally:
        os.close(number)


def _watch(ranks: list[BaseProcess], last_words: list[Path], timeout: int) -> None:
    """Wait for all ranks. When one has failed, the others have a moment to report what they know,
    and the reason is raised.
    """
    running = set(ranks)
    deadline = math.inf
    while running and time.monotonic() < deadline:
        left = None if deadline == math.inf else max(0.0, deadline - time.monotonic())
        sentinels = set(wait([process.sentinel for process in running], timeout=left))
        ended = {process for process in running if process.sentinel in sentinels}
        running -= ended
        for process in ended:
            process.join()  # a sentinel may be ready a moment before there is an exit code
        if deadline == math.inf and any(process.exitcode for process in ended):
            deadline = time.monotonic() + GRACE_SECONDS
    if deadline == math.inf:
        return
    failed = [
        _how_it_ended(rank, process.exitcode, last_words[rank])
        for rank, process in enumerate(ranks)
        if process.exitcode
    ]
    silent = [rank for rank, process in enumerate(ranks) if process in running]
    raise first_cause(failed, silent, len(ranks), timeout)


def _how_it_ended(rank: int, code: int, last_words: Path) -> WorkerExit:
    if code < 0:
        return WorkerExit(rank, signal=-code)
    try:
        return pickle.loads(last_words.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):  # it could not write them
        return WorkerExit(rank, traceback=f"it ended with status {code} and could not say why\n")


def _run_rank(
    work: Callable[[Group], None],
    rank: int,
    workers: int,
    timeout: int,
    rendezvous: Path,
    last_words: Path,
    memory: SharedMemory,
    parent: int,
) -> None:
    """What a forked rank does: join the process group, work, and leave word of a failure."""
    # The parent alone handles Ctrl-C and SIGTERM and informs the ranks. If it dies, the kernel ends
    # this rank.
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    end_with_parent()
    if os.getppid() != parent:  # it has died already
        os._exit(1)
    interface = loopback_interface()
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # this machine: no name lookup
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=timeout),
        )
        work(Group(memory))
        dist.barrier()  # one that has nothing to do must not leave while others are still joining
        dist.destroy_process_group()
    except BaseException as error:
        last_words.write_bytes(pickle.dumps(WorkerExit.of(rank, error)))
        sys.stdout.flush()
        os._exit(1)  # the process group may hang when it is taken down after a failure

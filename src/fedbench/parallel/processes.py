"""SPMD on torch.distributed: every rank runs the same program and gathers rows in client order.

`runtime.workers=N` forks N ranks on this machine, which pass rows through shared memory; under
`torchrun` the ranks exist already, perhaps on several machines, and rows travel by gloo. A group of
one needs no process group at all. Rows are always in CPU memory, so that several ranks can share
one GPU and the reduction is the same everywhere.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch import Tensor

from fedbench.parallel.failures import WorkerExit, first_cause

# Rows travel between machines in pieces of this many elements: 64 MiB of float32.
PIECE_ELEMENTS = 2**24
# A block of clients is trained before what they send is summed. Its rows have this many elements at
# most, unless the ranks could not have a client each: 256 MiB of float32, which is also the room in
# shared memory.
BLOCK_ELEMENTS = 2**26
GRACE_SECONDS = (
    2  # how long the other ranks may take to notice that one has failed, before they are killed
)
HANDLED = (signal.SIGINT, signal.SIGTERM)


class SharedMemory:
    """Room for what forked ranks exchange, twice.

    Two areas take turns: whoever writes the one again has passed the barrier of the other, which
    every rank entered after it had read the first. So one barrier an exchange is enough.
    """

    def __init__(self, elements: int) -> None:
        self._bytes = 8 * elements  # enough for the widest type
        # Anonymous and shared with forks; a page costs nothing before it is used.
        self._area = torch.frombuffer(mmap.mmap(-1, 2 * self._bytes), dtype=torch.uint8)
        self._second = False

    def next(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor at the same place on every rank, valid until the exchange after the next."""
        self._second = not self._second
        start = self._bytes if self._second else 0
        size = math.prod(shape) * dtype.itemsize
        return self._area[start : start + size].view(dtype).view(*shape)


class Group:
    """The ranks of this run; a single process unless a process group is up."""

    def __init__(self, memory: SharedMemory | None = None) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size = dist.get_world_size() if dist.is_initialized() else 1
        self._memory = memory  # of ranks that were forked on this machine

    @property
    def leader(self) -> bool:
        return self.rank == 0

    def shared_tensor(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor | None:
        """A tensor that every rank sees, valid until the one after the next; None where there is no
        such memory.
        """
        if self.size == 1 or self._memory is None or math.prod(shape) > BLOCK_ELEMENTS:
            return None
        return self._memory.next(shape, dtype)

    def any(self, flag: bool) -> bool:
        """True on every rank when it is true on one."""
        if self.size == 1:
            return flag
        value = torch.tensor([int(flag)])
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return bool(value.item())

    def share(self, number: int) -> int:
        """The leader's number, on every rank."""
        if self.size == 1:
            return number
        value = torch.tensor([number])
        dist.broadcast(value, src=0)
        return int(value.item())

    def gather_text(self, text: str) -> list[str]:
        """Every rank's text, all of the same length."""
        if self.size == 1:
            return [text]
        own = torch.frombuffer(bytearray(text, "ascii"), dtype=torch.uint8)
        texts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(texts, own)
        return [bytes(one.tolist()).decode("ascii") for one in texts]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def balance(loads: list[int], ranks: int) -> list[int]:
    """An owner for each item: the largest first, to the least loaded rank."""
    totals, owners = [0] * ranks, [0] * len(loads)
    for item in sorted(range(len(loads)), key=lambda i: (-loads[i], i)):
        rank = min(range(ranks), key=lambda r: (totals[r], r))
        owners[item] = rank
        totals[rank] += max(loads[item], 1)
    return owners


def settle(threads: int) -> None:
    """What every rank does first: fix its number of threads, and keep the memory that it frees.

    glibc returns freed memory to the kernel and gets it back page by page. Depending on where the
    heap happens to end, that costs a training step of a small network up to a tenth of its time.
    """
    torch.set_num_threads(threads)
    trim_threshold, mmap_threshold, never = -1, -3, 2**30
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(trim_threshold, never)
        library.mallopt(mmap_threshold, never)
    except (OSError, AttributeError):  # another C library: it has its own ways
        pass


def under_torchrun() -> bool:
    return (
        "TORCHELASTIC_RUN_ID" in os.environ
        or {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys()
    )


def speaks() -> bool:
    """One rank of each machine speaks for all that have the same to say."""
    return not under_torchrun() or os.environ.get("LOCAL_RANK", os.environ.get("RANK")) == "0"


def launch(
    work: Callable[[Group], None], workers: int, timeout: int, isolated: bool = False
) -> None:
    """Run `work` on every rank of this machine; a rank that fails ends the others, and its reason
    is raised.

    Ranks are forked: they inherit the data without a copy and start without importing torch again.
    That is safe only while this process has started no thread pool and not touched CUDA, so
    whatever does so must be `isolated`: a single rank is then forked, too, instead of running here.
    """
    if workers == 1 and not isolated:
        work(Group())
        return
    _allow_open_files(workers)
    with ExitStack() as files:
        rendezvous, *last_words = (
            files.enter_context(_file_of_the_group()) for _ in range(1 + workers)
        )
        memory, context = SharedMemory(BLOCK_ELEMENTS), multiprocessing.get_context("fork")
        ranks = []
        for rank in range(workers):
            arguments = (
                rank,
                work,
                workers,
                timeout,
                rendezvous,
                last_words[rank],
                memory,
                os.getpid(),
            )
            ranks.append(context.Process(target=_rank, args=arguments))
        held = signal.pthread_sigmask(
            signal.SIG_BLOCK, HANDLED
        )  # until a rank has its own ways with them
        try:
            try:
                for process in ranks:
                    process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, held)
            _watch(ranks, last_words, timeout)
        finally:  # a second Ctrl-C lands here: no orphan remains
            for process in ranks:
                if process.pid is not None:
                    process.kill()
                    process.join()


def _allow_open_files(workers: int) -> None:
    """Every rank has a connection to every other one, and inherits what this process opened for
    each of them.

    The usual limit is low for the sake of old programs, and a process may raise its own.
    """
    needed = 100 + 5 * workers  # measured: 12 and 4 a worker
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@contextmanager
def _file_of_the_group() -> Iterator[Path]:
    """A file that the ranks reach by name; in memory where Linux has it, so that nothing of it
    outlives a kill.
    """
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(prefix="fedbench-") as file:
            yield Path(file.name)
        return
    number = os.memfd_create("fedbench")
    try:
        yield Path(f"/proc/self/fd/{number}")  # forked ranks inherit the number
    finally:
        os.close(number)


def _watch(ranks: list[multiprocessing.Process], last_words: list[Path], timeout: int) -> None:
    """Wait for all ranks. When one has failed, the others have a moment to say what they know; then
    all is over.
    """
    running, deadline = set(ranks), math.inf
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
    except (OSError, EOFError, pickle.UnpicklingError):  # no room for its last words
        return WorkerExit(rank, traceback=f"it ended with status {code} and could not say why\n")


def _rank(
    rank: int,
    work: Callable[[Group], None],
    workers: int,
    timeout: int,
    rendezvous: Path,
    last_words: Path,
    memory: SharedMemory,
    parent: int,
) -> None:
    # The parent alone handles Ctrl-C and SIGTERM, and tells the ranks; should it die, the kernel
    # ends this rank.
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    multiprocessing._prctl_pr_set_pdeathsig(signal.SIGKILL)
    if os.getppid() != parent:  # it has died already
        os._exit(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # this machine only: no name lookup
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{rendezvous}",
            rank=rank,
            world_size=workers,
            timeout=timedelta(seconds=timeout),
        )
        work(Group(memory))
        dist.destroy_process_group()
    except BaseException as error:
        last_words.write_bytes(pickle.dumps(WorkerExit.of(rank, error)))
        sys.stdout.flush()
        os._exit(1)  # the process group may hang when it is taken down after a failure

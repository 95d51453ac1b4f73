"""ECGR: local steps whose sum stays short count in full, the others are damped.

ECGR paper, Eqs. 3-11.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fedbench.algorithms.aggregate import Nova
from fedbench.algorithms.context import BindContext, ClientResult, Clients, LocalRun, Memory, State
from fedbench.algorithms.modifier import Modifier
from fedbench.core.errors import BadInput, bad_value, require
from fedbench.core.fields import choice, number
from fedbench.core.transfer import upload
from fedbench.parallel.failures import WorkerFault, describe

SELECTIONS = ("greedy", "norm_topk", "exact", "centred")
COSINES = ("ecgr_cosine_chosen", "ecgr_cosine_rest")
# Columns of the trace that are turned into float64 at a time. On a CPU they stay in the cache; on a
# GPU few large kernels are faster, and a block must fit beside the trace.
CPU_COLUMNS = 2**11
GPU_COLUMNS = 2**20
GPU_ELEMENTS = 2**26
BLOCK_BYTES = 16  # of an element of a block: its float64 and a difference
BANDS = 4  # of rows of the inner products
MOST_EXACT = 20  # steps for which all subsets can be tried
GIBIBYTE = 2**30


@dataclass
class Ecgr(Modifier):
    """Of v_1 ... v_tau, the parameter differences of the local steps, floor(ratio * tau) are
    chosen:

    u = sum_chosen v + beta * sum_rest v,    update <- u * ||sum v|| / ||u||

    `greedy` (Eq. 6, released code) starts from S = 0 and takes the step that makes ||S + v_j||
    smallest, again and again; `norm_topk` takes the shortest steps, `exact` the best subset of all
    (Eq. 8), `centred` is greedy on the steps minus their mean, as in the herding that the paper
    cites. beta null is 0.2, and 0.5 with FedNova.

    The trace, the parameters before the first step and after each, takes (steps + 1) x parameters x
    4 bytes for the one client that a worker trains; what is longer than `memory` GiB lies in a
    temporary file instead of in memory. The numbers are the same. On a GPU the trace lies there,
    and past `memory` each step waits until it is copied.

    `alignment` measures Assumption 2 and changes nothing: the cosines of the chosen steps' sum and
    of the others' with -grad F, the descent direction of all clients' loss at the received model.
    """

    order = 40
    update_first = True
    records: ClassVar[tuple[str, ...]] = ("ecgr_gamma", "ecgr_index")
    records_steps = "ecgr_selected"
    beta: float | None = number(None, at_least=0, at_most=1)
    ratio: float = number(0.5, above=0, at_most=1)
    select: str = choice("greedy", SELECTIONS)
    memory: float = number(2.0, above=0, at_most=1e9)  # GiB
    alignment: bool = False  # whether to measure it: one more pass over all data in every round

    def bind(self, context: BindContext, key: str) -> Self:
        bound = super().bind(context, key)
        if self.alignment:
            bound.records = (*self.records, *COSINES)  # type: ignore[misc]
        return bound

    @property
    def damping(self) -> float:
        if self.beta is not None:
            return self.beta
        return 0.5 if isinstance(self.context.aggregate, Nova) else 0.2

    @property
    def active(self) -> bool:
        return self.damping != 1.0 and self.ratio != 1.0

    def check_steps(self, steps: int | None, key: str, value: int) -> None:
        """The trace must fit into memory, or, past `memory`, into the folder of temporary files."""
        if self.select == "exact":
            if steps is None:
                raise BadInput("modifier=ecgr: select=exact must know the number of local steps")
            words = f"must give at most {MOST_EXACT} local steps with select=exact, not {steps}"
            require(steps <= MOST_EXACT, key, value, words)
        if steps is None:
            return
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        folder = tempfile.gettempdir()
        size = self._trace_bytes(steps)
        if size <= self.memory * GIBIBYTE:
            room, place = memory, "the memory"
        else:
            room = shutil.disk_usage(folder).total
            place = f"the disk of {folder} (TMPDIR) and the memory"
        products = 8 * steps**2  # of every two steps, always in memory
        if size > room or products > memory:
            most = min(room // (4 * self.where.size) - 1, math.isqrt(memory // 8))
            reason = f"ecgr keeps all of {steps} local steps; {place} of this machine can hold"
            raise bad_value(key, value, f"{reason} {most} at most")

    def step_memory(self, steps: int) -> int:
        """The trace, unless it lies in a file, and a block of it."""
        size = self.where.size
        if self._trace_bytes(steps) > self.memory * GIBIBYTE:
            return 0
        block = BLOCK_BYTES * (steps + 1) * min(size, gpu_columns(steps))
        return self._trace_bytes(steps) + block

    def _trace_bytes(self, steps: int) -> int:
        return 4 * (steps + 1) * self.where.size

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in fields.items() if key != "alignment"}
        kept |= {"alignment": True} if self.alignment else {}
        return {**kept, "beta": self.damping, "memory": None}

    def survey(self, clients: Clients) -> State:
        return {"descent": -self.where.read(clients.full_gradient())} if self.alignment else {}

    def begin(self, local: LocalRun, memory: Memory) -> None:
        shape = (local.shared_steps + 1, self.where.size)
        with _memory_is_named():
            trace = _matrix(shape, local.model.w, self.memory * GIBIBYTE)
        trace[0] = self.where.read(local.before)
        memory.scratch["trace"] = trace

    def stepped(self, local: LocalRun, memory: Memory) -> None:
        if not local.shared_frozen:
            step = local.step - (local.steps - local.shared_steps)
            memory.scratch["trace"][step + 1] = self.where.read(local.model.w)

    def update(self, local: LocalRun, memory: Memory) -> None:
        with _memory_is_named():
            self._reweigh(local, memory)

    def _reweigh(self, local: LocalRun, memory: Memory) -> None:
        trace = memory.scratch.pop("trace")
        steps = len(trace) - 1
        count = max(1, int(self.ratio * steps + 1e-9))  # 0.29 of 100 steps are 29
        chosen, gamma = list(range(steps)), 1.0
        if count < steps:
            # One copy a client from a GPU: the choice reads values, step by step.
            gram = inner_products(trace).to("cpu")
            chosen = select(gram, count, self.select)
            coefficients = torch.full((steps,), self.damping, dtype=torch.float64)
            coefficients[chosen] = 1.0
            length, damped = gram.sum().clamp(min=0.0), coefficients @ gram @ coefficients
            if damped > 0:  # else there is nothing to scale: the plain sum stands
                gamma = float((length / damped).sqrt())
                result = _weighted_steps(trace, gamma * coefficients)
                self.where.write(local.update, result.to(local.update))
        memory.scratch["gamma"] = torch.tensor(gamma, dtype=torch.float64)
        memory.scratch["chosen"] = torch.tensor(chosen)
        if self.alignment:
            memory.scratch["cosines"] = cosines(trace, chosen, memory.scratch["descent"])
        # Of steps drawn at random the mean is a half.
        middle = (memory.scratch["chosen"].double().mean() + 0.5) / steps
        memory.scratch["index"] = middle

    def finish(self, local: LocalRun, memory: Memory) -> ClientResult:
        numbers: list[Tensor | float] = [memory.scratch["gamma"], memory.scratch["index"]]
        if self.alignment:
            numbers += memory.scratch["cosines"].unbind()
        return ClientResult(numbers=numbers, chosen=memory.scratch["chosen"].tolist())


def cosines(trace: Tensor, chosen: list[int], direction: Tensor) -> Tensor:
    """Between a direction and the sums of the chosen steps and of the others; nan of nothing."""
    taken = torch.zeros(2, len(trace) - 1, dtype=torch.float64)
    taken[1] = 1.0
    taken[0, chosen], taken[1, chosen] = 1.0, 0.0
    taken = upload(taken, trace.device)
    inner, squares = taken.new_zeros(2), taken.new_zeros(2)
    place = 0
    for steps in _differences(trace):
        sums = taken @ steps
        columns = direction[place : place + steps.shape[1]].to(sums)
        inner += sums @ columns
        squares += sums.square().sum(dim=1)
        place += steps.shape[1]
    return inner / (squares.sqrt() * direction.double().norm().to(squares))


def select(gram: Tensor, count: int, how: str) -> list[int]:
    """The numbers of the chosen steps, from their inner products alone; ties go to the first."""
    if how == "norm_topk":
        return gram.diagonal().argsort(stable=True)[:count].tolist()
    if how == "exact":
        inner = gram.tolist()
        return list(
            min(
                combinations(range(len(inner)), count),
                key=lambda c: sum(inner[i][j] for i in c for j in c),
            )
        )
    if how == "centred":
        means = gram.mean(dim=0)
        gram = gram - means[:, None] - means[None, :] + means.mean()
    products = gram.numpy()  # PyTorch would take five times as long for so few numbers
    lengths, along = products.diagonal(), np.zeros(len(products))  # ||v_j||^2 and <S, v_j>
    chosen: list[int] = []
    for _ in range(count):
        score = 2.0 * along + lengths
        score[chosen] = np.inf
        chosen.append(int(score.argmin()))
        along += products[chosen[-1]]
    return chosen


def block_width(trace: Tensor) -> int:
    """How many columns of a trace are worked on at a time, on the device where it lies."""
    if trace.device.type != "cuda":
        return CPU_COLUMNS
    return gpu_columns(len(trace))


def gpu_columns(steps: int) -> int:
    return max(CPU_COLUMNS, min(GPU_COLUMNS, GPU_ELEMENTS // max(steps, 1)))


@contextmanager
def _memory_is_named() -> Iterator[None]:
    """A GPU without room for the trace and its blocks: the line says what puts it elsewhere."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise WorkerFault(
            f"{describe(error)}; with a smaller algo.memory, ECGR's trace lies in a file"
        ) from error


def inner_products(trace: Tensor) -> Tensor:
    """<v_i, v_j> of all steps, in float64.

    They are symmetric, so each band of rows is computed up to the diagonal only.
    """
    count = len(trace) - 1
    gram = torch.zeros(count, count, dtype=torch.float64, device=trace.device)
    ends = [count * (band + 1) // BANDS for band in range(BANDS)]
    bands = list(zip([0, *ends], ends, strict=False))
    for steps in _differences(trace):
        for first, end in bands:
            gram[first:end, :end].addmm_(steps[first:end], steps[:end].T)
    return gram.tril() + gram.tril(-1).T


def _differences(trace: Tensor) -> Iterator[Tensor]:
    """The steps between the recorded parameters, in float64, a block of columns at a time.

    A block is overwritten by the next one.
    """
    columns = min(block_width(trace), trace.shape[1])
    path = trace.new_empty((len(trace), columns), dtype=torch.float64)
    steps = path.new_empty((len(trace) - 1, columns))
    for block in _blocks(trace):
        width = block.stop - block.start
        path[:, :width] = trace[:, block]
        yield torch.sub(path[1:, :width], path[:-1, :width], out=steps[:, :width])


def _weighted_steps(trace: Tensor, coefficients: Tensor) -> Tensor:
    """sum_i c_i (w_i - w_{i-1}), as sum_i (c_i - c_{i+1}) w_i with c_0 = c_{n+1} = 0."""
    padded = torch.nn.functional.pad(coefficients, (1, 1))
    total = trace.new_zeros(trace.shape[1], dtype=torch.float64)
    for parameters, weight in zip(trace, (padded[:-1] - padded[1:]).tolist(), strict=True):
        total.add_(parameters, alpha=weight)  # in float64, although the parameters are not
    return total


def _blocks(trace: Tensor) -> Iterator[slice]:
    """Columns of the trace that are computed at a time."""
    width = block_width(trace)
    for first in range(0, trace.shape[1], width):
        yield slice(first, min(first + width, trace.shape[1]))


def _matrix(shape: tuple[int, int], like: Tensor, limit: float) -> Tensor:
    """Room for the trace: in memory, or, past the limit, in a temporary file that nobody else can
    see.
    """
    size = shape[0] * shape[1]
    if size * like.element_size() <= limit:
        return like.new_empty(shape)
    with tempfile.NamedTemporaryFile(prefix="fedbench-trace-") as file:
        try:
            if hasattr(os, "posix_fallocate"):  # a full disk says so here
                os.posix_fallocate(file.fileno(), 0, size * like.element_size())
            else:  # macOS
                file.truncate(size * like.element_size())
        except OSError as error:
            place = f"ECGR's trace in {file.name}; TMPDIR names another folder"
            raise OSError(error.errno, error.strerror, place) from error
        return torch.from_file(file.name, shared=True, size=size, dtype=like.dtype).view(shape)

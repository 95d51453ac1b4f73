"""ECGR: local steps whose sum stays short count in full, the others are damped. ECGR paper, Eqs.
3-11.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from fedbench.algorithms.aggregate import Nova
from fedbench.algorithms.modifier import Finished, Local, Memory, Modifier, Scene
from fedbench.core.errors import bad_value, nearest, require

SELECTIONS = ("greedy", "norm_topk", "exact", "centred")
BLOCK = 2**10  # columns of the trace that are turned into float64 at a time: they stay in the cache
MOST_EXACT = 20  # steps for which all subsets can be tried
GIBIBYTE = 2**30


@dataclass
class Ecgr(Modifier):
    """With v_1 ... v_tau the parameter differences of the local steps, k = floor(ratio * tau) of
    them are chosen:

    u = sum_chosen v + beta * sum_rest v,    update <- u * ||sum v|| / ||u||

    `greedy` (Eq. 6, released code) starts from S = 0 and takes the step that makes ||S + v_j||
    smallest, again and again; `norm_topk` takes the shortest steps, `exact` the best subset of all
    (Eq. 8), `centred` is greedy on the steps minus their mean, as in the herding that the paper
    cites. beta null is 0.2, and 0.5 with FedNova.

    The trace takes steps x parameters x 4 bytes for the one client that a worker trains; what is
    longer than `memory` GiB lies in a temporary file instead of in memory. The numbers are the
    same.
    """

    order = 40
    update_first = True
    records = ("ecgr_gamma",)
    records_steps = "ecgr_selected"
    beta: float | None = None
    ratio: float = 0.5
    select: str = "greedy"
    memory: float = 2.0

    def bind(self, scene: Scene, key: str) -> None:
        require(
            self.select in SELECTIONS,
            f"{key}.select",
            self.select,
            nearest(str(self.select), SELECTIONS),
        )
        require(
            self.beta is None or 0 <= self.beta <= 1,
            f"{key}.beta",
            self.beta,
            "a number from 0 to 1 is allowed",
        )
        require(
            0 < self.ratio <= 1,
            f"{key}.ratio",
            self.ratio,
            "a number above 0, at most 1, is allowed",
        )
        require(
            0 < self.memory <= 1e9,
            f"{key}.memory",
            self.memory,
            "a number of GiB above 0 is allowed",
        )
        super().bind(scene, key)
        self.damping = (
            self.beta
            if self.beta is not None
            else 0.5
            if isinstance(scene.aggregate, Nova)
            else 0.2
        )

    @property
    def active(self) -> bool:
        return self.damping != 1.0 and self.ratio != 1.0

    @property
    def most_steps(self) -> int | None:
        return MOST_EXACT if self.select == "exact" else None

    def check_room(self, steps: int, key: str, value: int) -> None:
        """The trace must fit into memory, or, past `memory`, into the folder of temporary files."""
        size, total = (
            4 * steps * self.where.size,
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        )
        folder = tempfile.gettempdir()
        room, place = (
            shutil.disk_usage(folder).total,
            f"the disk of {folder} (TMPDIR) and the memory",
        )
        if size <= self.memory * GIBIBYTE:
            room, place = total, "the memory"
        products = 8 * steps**2  # of every two steps, always in memory
        if size > room or products > total:
            most = min(room // (4 * self.where.size), math.isqrt(total // 8))
            allowed = (
                f"ecgr keeps all of {steps} local steps; {place} of this machine can hold {most} at"
                " most"
            )
            raise bad_value(key, value, allowed)

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "beta": self.damping, "memory": None}

    def begin(self, local: Local, memory: Memory) -> None:
        shape = (local.shared_steps, self.where.size)
        memory.scratch["path"] = _matrix(shape, local.model.w, self.memory * GIBIBYTE)
        memory.scratch["start"] = self.where.read(local.before)

    def stepped(self, local: Local, memory: Memory) -> None:
        if not local.shared_frozen:
            row = local.step - (local.steps - local.shared_steps)
            memory.scratch["path"][row] = self.where.read(local.model.w)

    def update(self, local: Local, memory: Memory) -> None:
        path = memory.scratch.pop("path")
        start = memory.scratch["start"].to(path.device)
        count = max(1, int(self.ratio * len(path) + 1e-9))  # 0.29 of 100 steps are 29
        chosen, gamma = list(range(len(path))), 1.0
        if count < len(path):
            gram = torch.zeros(len(path), len(path), dtype=torch.float64, device=path.device)
            for steps in _differences(path, start):
                gram.addmm_(steps, steps.T)
            chosen = select(gram, count, self.select)
            coefficients = torch.full(
                (len(path),), self.damping, dtype=torch.float64, device=path.device
            )
            coefficients[chosen] = 1.0
            length, damped = gram.sum().clamp(min=0.0), coefficients @ gram @ coefficients
            if damped > 0:  # else there is nothing to scale: the plain sum stands
                gamma = float((length / damped).sqrt())
                result = torch.cat([coefficients @ steps for steps in _differences(path, start)])
                self.where.write(local.update, (gamma * result).to(local.update))
        memory.scratch["gamma"] = torch.tensor(gamma, dtype=torch.float64)
        memory.scratch["chosen"] = torch.tensor(chosen)

    def finish(self, local: Local, memory: Memory) -> Finished:
        return Finished(numbers=[memory.scratch["gamma"]], chosen=memory.scratch["chosen"].tolist())


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
    lengths, along = gram.diagonal(), torch.zeros_like(gram[0])  # ||v_j||^2 and <S, v_j>
    chosen: list[int] = []
    for _ in range(count):
        score = 2.0 * along + lengths
        score[chosen] = torch.inf
        chosen.append(int(score.argmin()))
        along = along + gram[chosen[-1]]
    return chosen


def _differences(path: Tensor, start: Tensor) -> Iterator[Tensor]:
    """The steps between the recorded parameters, in float64, a block of columns at a time."""
    for first in range(0, path.shape[1], BLOCK):
        columns = slice(first, min(first + BLOCK, path.shape[1]))
        after = path[:, columns].double()
        before = torch.cat([start[None, columns].double(), after[:-1]])
        yield after - before


def _matrix(shape: tuple[int, int], like: Tensor, limit: float) -> Tensor:
    """Room for the trace: in memory, or, past the limit, in a temporary file that nobody else can
    see.
    """
    size = shape[0] * shape[1]
    if size * like.element_size() <= limit:
        return like.new_empty(shape)
    with tempfile.NamedTemporaryFile(prefix="fedbench-trace-") as file:
        try:
            os.posix_fallocate(
                file.fileno(), 0, size * like.element_size()
            )  # a full disk says so here
        except OSError as error:
            place = f"ECGR's trace in {file.name}; TMPDIR names another folder"
            raise OSError(error.errno, error.strerror, place) from error
        return torch.from_file(file.name, shared=True, size=size, dtype=like.dtype).view(shape)

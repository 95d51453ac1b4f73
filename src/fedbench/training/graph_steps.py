"""Local steps as a recorded list of kernels: `runtime.graph`.

A step of a small network is some fifty kernels, and a GPU waits for the next of them longer than it
computes. A CUDA graph records them once, and starts them all with one call. What is recorded are
kernels and the addresses that they work on, and nothing of Python. So all that changes from client
to client lies in buffers that stay, and all that changes from step to step is computed on the
device: a counter there chooses the batch.

Graph and loop launch the same kernels and have the same bits. Tests show it with a stand-in for
CUDA graphs on the CPU. **It has never run on a GPU.**
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedbench.algorithms.context import LocalRun, Memory, State
from fedbench.algorithms.modifier import Modifier, overrides

REHEARSALS = 3  # ordinary steps before a recording: libraries set themselves up in them
MOST_FORMS = 8  # recordings of one run: each keeps the memory of a step
ORDER_ELEMENTS = 2**16  # of indices that are ready for replays
# What PyTorch warns of when something waits for the GPU, and when it is first asked to do so.
WAITED = "called a synchronizing CUDA operation"
PROTOTYPE = "Synchronization debug mode is a prototype"
STEP_HOOKS = ("loss", "probe", "grad", "stepped")

Step = Callable[[], None]


class Recorder(Protocol):
    """What records steps: CUDA, or its stand-in on the CPU."""

    def rehearse(self, step: Step) -> str:
        """Take an ordinary step. Returns why such a step cannot be recorded, or nothing."""

    def record(self, step: Step) -> Step:
        """Record a step, without taking it. Returns what takes it, as often as it is called."""


class CudaRecorder:
    """CUDA graphs. All of a run share one pool of memory: no result of a step is left in it."""

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def rehearse(self, step: Step) -> str:
        """On the stream of the recording. What waits for the GPU cannot be recorded."""
        current, mode = torch.cuda.current_stream(), torch.cuda.get_sync_debug_mode()
        self.stream.wait_stream(current)
        with warnings.catch_warnings(record=True) as caught, torch.cuda.stream(self.stream):
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        current.wait_stream(self.stream)
        waited = ""
        for one in caught:
            text = str(one.message)
            if text.startswith(WAITED):
                waited = f"the step {WAITED}"
            elif not text.startswith(PROTOTYPE):
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        return waited

    def record(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        ):
            step()
        return graph.replay


def can_be_recorded(modifiers: Iterable[Modifier]) -> bool:
    """Whether every modifier that acts inside of steps says so."""
    return all(
        modifier.capturable
        for modifier in modifiers
        if any(overrides(modifier, hook) for hook in STEP_HOOKS)
    )


@dataclass
class Sums:
    """What the steps of a client add up, in place."""

    loss: Tensor
    gradient_norms: Tensor | None = None

    def clear(self) -> None:
        self.loss.zero_()
        if self.gradient_norms is not None:
            self.gradient_norms.zero_()


@dataclass
class Form:
    """Steps of one kind: with this batch size, and with tensors of these shapes in the memories."""

    order: Tensor  # the indices of some batches, one after the other
    places: Tensor  # 0, 1, ... of one batch
    numbers: Tensor  # 0, 1, ... of the batches
    losses: Tensor  # of the batches
    rehearsed: int = 0
    refused: str = ""  # why it cannot be recorded
    replay: Step | None = None


# Takes one step on the examples of an index, and returns its loss.
TakeStep = Callable[[LocalRun, Tensor, dict[str, Memory], Sums], Tensor]


@dataclass
class GraphSteps:
    """The local steps of one rank's clients, one client after the other."""

    recorder: Recorder
    take_step: TakeStep
    sums: Sums
    counter: Tensor  # on the device: the batch of `order` whose turn it is
    batch_size: int | str  # as the settings have it; steps of smaller clients are not recorded
    forms: dict[Any, Form] = field(default_factory=dict)
    buffers: dict[Any, Tensor] = field(default_factory=dict)

    def run(self, local: LocalRun, memories: dict[str, Memory], batches: list[Tensor]) -> int:
        """Take a client's steps, and return the number of examples that they saw.

        The last batch of an epoch may be smaller than the others; it is taken as an ordinary step.
        """
        size = max(len(index) for index in batches)
        self.sums.clear()
        form = self._form(size, memories, batches[0])
        if form is None:
            for index in batches:
                local.losses.append(self.take_step(local, index, memories, self.sums))
                local.step += 1
        else:
            before, begun = local.before, {name: [*one.scratch] for name, one in memories.items()}
            local.before = self._stay("before", before)
            lasting = {name: self._lasting(name, memory) for name, memory in memories.items()}
            self._run(local, lasting, batches, form)
            local.before = before
            for name, memory in memories.items():  # a method may keep what it finds there
                memory.scratch |= {key: memory.scratch[key].clone() for key in begun[name]}
        local.batch_sizes += [len(index) for index in batches]
        return sum(len(index) for index in batches)

    def _run(
        self, local: LocalRun, memories: dict[str, Memory], batches: list[Tensor], form: Form
    ) -> None:
        size = len(form.places)

        def step() -> None:
            places = torch.add(form.places, self.counter, alpha=size)
            loss = self.take_step(local, form.order.index_select(0, places), memories, self.sums)
            torch.where(form.numbers == self.counter, loss, form.losses, out=form.losses)
            self.counter.add_(1)

        for part in _cut(batches, size, len(form.numbers)):
            whole = [index for index in part if len(index) == size]
            form.order[: len(whole) * size].copy_(torch.cat(whole) if whole else form.order[:0])
            self.counter.zero_()
            losses: list[Tensor | None] = []
            for index in part:
                if len(index) == size:
                    self._take(form, step)
                    losses.append(None)
                else:
                    losses.append(self.take_step(local, index, memories, self.sums))
                local.step += 1
            recorded = iter(form.losses[: len(whole)].clone())
            local.losses += [next(recorded) if loss is None else loss for loss in losses]

    def _take(self, form: Form, step: Step) -> None:
        if form.replay is None and not form.refused and form.rehearsed >= REHEARSALS:
            form.replay = self.recorder.record(step)
        if form.replay is not None:
            form.replay()
        elif form.refused:
            step()
        else:
            reason = self.recorder.rehearse(step)
            form.rehearsed += 1
            if reason and form.rehearsed == REHEARSALS:  # before, libraries may still start
                form.refused = reason
                warnings.warn(f"runtime.graph=auto: steps are not recorded: {reason}", stacklevel=2)

    def _form(self, size: int, memories: dict[str, Memory], like: Tensor) -> Form | None:
        """None: such steps are not recorded."""
        shapes = [
            (name, part, key, value.shape, value.dtype)
            for name, memory in memories.items()
            for part, state in _parts(memory)
            for key, value in state.items()
        ]
        kind = (size, *shapes)
        usual = isinstance(self.batch_size, str) or size == self.batch_size
        if kind not in self.forms and usual and len(self.forms) < MOST_FORMS:
            ready = max(1, ORDER_ELEMENTS // size)
            self.forms[kind] = Form(
                order=like.new_zeros(ready * size),
                places=torch.arange(size, device=like.device),
                numbers=torch.arange(ready, device=like.device),
                losses=self.sums.loss.new_zeros(ready),
            )
        return self.forms.get(kind)

    def _lasting(self, name: str, memory: Memory) -> Memory:
        """A memory for the steps, in buffers that stay. The scratch is the client's own."""
        copies: dict[str, State] = {
            part: {key: self._stay((name, part, key), value) for key, value in state.items()}
            for part, state in _parts(memory)
        }
        memory.scratch.update(copies["scratch"])
        return Memory(copies["server"], copies["client"], memory.scratch)

    def _stay(self, name: Any, value: Tensor) -> Tensor:
        """The value in a buffer that has the same address for all clients."""
        kind = (name, value.shape, value.dtype, value.device)
        if kind not in self.buffers:
            self.buffers[kind] = torch.empty_like(value)
        return self.buffers[kind].copy_(value)


def _parts(memory: Memory) -> list[tuple[str, State]]:
    return [("server", memory.server), ("client", memory.client), ("scratch", memory.scratch)]


def _cut(batches: list[Tensor], size: int, most: int) -> Iterator[list[Tensor]]:
    """The batches in their order, in parts with at most so many of full size."""
    part: list[Tensor] = []
    whole = 0
    for index in batches:
        if len(index) == size and whole == most:
            yield part
            part, whole = [], 0
        part.append(index)
        whole += len(index) == size
    yield part

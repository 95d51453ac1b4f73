"""A stand-in for CUDA graphs on the CPU: records the operators of one step and replays them.

Like a graph it knows nothing of Python: a replay calls the same operators, in the same order, on
the very tensors that the recording touched. Like CUDA's, a recording leaves no trace (the values
of all tensors and the state of the random numbers are put back), and raises where a value is read.
Before the first replay, all intermediate results are spoilt: nothing may rest on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
# They read values, and CUDA would wait for them.
READS = {aten._local_scalar_dense, aten.nonzero, aten.bincount, aten.masked_select, aten.is_nonzero}

Step = Callable[[], None]


class ReadsAValue(RuntimeError):
    """What CUDA calls "operation not permitted when stream is capturing"."""


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Tape(TorchDispatchMode):
    """Records operators while they run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple, dict, list[Tensor]]] = []
        self.views = 0
        self.made: dict[int, Tensor] = {}  # by address: kept, so that no address is used twice
        self.found: dict[int, tuple[Tensor, Tensor]] = {}  # tensors from before, and their values

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in READS:
            raise ReadsAValue(str(func))
        for tensor in tensors((args, kwargs)):
            self._keep(tensor)
        result = func(*args, **kwargs)
        returns = func._schema.returns
        if returns and all(one.alias_info and not one.alias_info.is_write for one in returns):
            self.views += 1  # of memory that stays where it is
            return result
        aliased = any(one.alias_info for one in returns)
        outputs = [] if aliased else tensors(result)
        for tensor in outputs:
            self.made[address(tensor)] = tensor
        self.calls.append((func, args, kwargs, outputs))
        return result

    def _keep(self, tensor: Tensor) -> None:
        place = address(tensor)
        if place not in self.made and place not in self.found and tensor.device.type == "cpu":
            whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            self.found[place] = whole, whole.clone()

    def rewind(self) -> None:
        """Put back the values from before, and spoil those that the recording made."""
        for whole, values in self.found.values():
            whole.copy_(values)
        self.found.clear()
        for tensor in self.made.values():
            if tensor.is_floating_point():
                tensor.detach().fill_(torch.nan)

    def replay(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, outputs in self.calls:
                results = tensors(func(*args, **kwargs)) if outputs else [func(*args, **kwargs)]
                for output, result in zip(outputs, results, strict=False):
                    output.detach().copy_(result)


class ReplayRecorder:
    """In place of CUDA: `fedbench.training.graph_steps.Recorder`."""

    def __init__(self) -> None:
        self.tapes: list[Tape] = []
        self.rehearsals = 0
        self.replays = 0

    def rehearse(self, step: Step) -> str:
        self.rehearsals += 1
        with Reads() as reads:
            step()
        return reads.first

    def record(self, step: Step) -> Step:
        state = torch.get_rng_state()
        tape = Tape()
        with tape:
            step()
        tape.rewind()
        torch.set_rng_state(state)
        self.tapes.append(tape)

        def replay() -> None:
            self.replays += 1
            tape.replay()

        return replay


class Reads(TorchDispatchMode):
    """Notes the first operator that reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func.overloadpacket in READS and not self.first:
            self.first = str(func)
        return func(*args, **(kwargs or {}))

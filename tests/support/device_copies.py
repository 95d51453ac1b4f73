"""A stand-in for a GPU: the meta device, whose tensors have no values.

An operator that mixes devices raises there, and so does reading a value. What a program may do with
a GPU's values is copy them to the machine's memory, which waits for all of the GPU's work: this
mode counts such copies and answers them with zeros, or with another number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


class DeviceCopies(TorchDispatchMode):
    """Counts copies from the meta device (`down`) and to it (`up`)."""

    def __init__(self, answer: int = 0) -> None:
        super().__init__()
        self.answer = answer
        self.down: list[str] = []  # a word for each
        self.up = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._to_copy.default:
            source, target = args[0], kwargs.get("device", args[0].device)
            if source.is_meta and torch.device(target).type != "meta":
                self.down.append(f"{source.dtype} {tuple(source.shape)}")
                kind = kwargs.get("dtype", source.dtype)
                return torch.full(source.shape, self.answer, dtype=kind, device=target)
            self.up += torch.device(target).type == "meta" and not source.is_meta
        if func is aten.copy_.default:
            target, source = args[:2]
            if source.is_meta and not target.is_meta:
                self.down.append(f"{source.dtype} {tuple(source.shape)}")
                return target.fill_(self.answer)
            self.up += target.is_meta and not source.is_meta and source.ndim > 0
        return func(*args, **kwargs)


def on_the_device(*tensors: Tensor) -> bool:
    return all(tensor.is_meta for tensor in tensors)


class OperatorCount(TorchDispatchMode):
    """Counts operators that compute something: views and new tensors without values do not."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        returns = func._schema.returns
        view = bool(returns) and all(
            one.alias_info and not one.alias_info.is_write for one in returns
        )
        empty = "empty" in func.overloadpacket.__name__
        self.count += not (view or empty)
        return func(*args, **(kwargs or {}))

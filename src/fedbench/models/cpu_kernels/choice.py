"""Which kernels a run uses: `runtime.kernels`, resolved once for all of its ranks."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedbench.core.errors import require
from fedbench.models.cpu_kernels import library
from fedbench.models.cpu_kernels.layers import NativeLayer


@dataclass(frozen=True)
class KernelChoice:
    """The kernels of a run, `native` or `torch`, and why a network that has both uses PyTorch's."""

    name: str
    reason: str = ""


def choose_kernels(asked: str, model: nn.Module, device: str, threads: int) -> KernelChoice:
    """Resolve `auto`, compile the kernels if they are used, and set the model's layers to them.

    A network without such layers has the same bits either way: its kernels are `torch`.
    """
    layers = [module for module in model.modules() if isinstance(module, NativeLayer)]
    obstacle = _obstacle(asked, layers, device, threads)
    rule = f"must be auto or torch: {obstacle}"
    require(asked != "native" or obstacle is None, "runtime.kernels", asked, rule)
    for layer in layers:
        layer.native = obstacle is None
    if obstacle is None:
        return KernelChoice("native")
    return KernelChoice("torch", obstacle if layers else "")


def _obstacle(asked: str, layers: list[NativeLayer], device: str, threads: int) -> str | None:
    """Why the native kernels are not used; None if they are."""
    if asked == "torch":
        return "runtime.kernels=torch"
    if not layers:
        return "no layer of this network has native kernels"
    if device != "cpu":
        return f"native kernels are for the CPU, and this run computes on {device}"
    if asked == "auto" and threads > 1:
        return f"native kernels use one thread, and runtime.threads={threads}"
    try:
        library.load()
    except library.Unavailable as error:
        return str(error)
    return None

"""Layers that compute what PyTorch's own do, up to float32 rounding, in less time on a CPU.

There are two implementations. `torch_layers.py` is written in PyTorch. `native.py` calls C++ that
is compiled at first use (`library.py`, `lenet.cpp`, `winograd.cpp`). Their last bits differ, so a
run uses one of them throughout: `runtime.kernels`, which `choose_kernels` resolves.
"""

from fedbench.models.cpu_kernels import library
from fedbench.models.cpu_kernels.choice import KernelChoice, choose_kernels
from fedbench.models.cpu_kernels.layers import Conv3x3, LeNetBlocks, conv3x3
from fedbench.models.cpu_kernels.torch_layers import channels_last, pool_relu

__all__ = [
    "Conv3x3",
    "KernelChoice",
    "LeNetBlocks",
    "channels_last",
    "choose_kernels",
    "conv3x3",
    "library",
    "pool_relu",
]

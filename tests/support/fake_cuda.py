"""A PyTorch that was built for CUDA and sees GPUs, as far as the program can tell without one.

Every call into CUDA is written down with the process that made it. Ranks compute on the CPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fedbench.parallel import devices

GIBIBYTE = 2**30
VERSIONS = {"driver": "570.1", "cuda": "12.9", "cudnn": "91002"}


def gpus(*names: str, memory: int = 80 * GIBIBYTE) -> devices.Gpus:
    """GPUs of these models, as a child would report them."""
    return devices.Gpus(tuple(devices.Gpu(name, "8.0", memory) for name in names), VERSIONS)


@dataclass
class FakeCuda:
    """Its log has a line for every call: the process and the name of the function."""

    log: Path
    names: list[str]
    error: str = ""  # what starting CUDA raises

    def note(self, what: str) -> None:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()} {what}\n")

    def calls(self) -> list[tuple[int, str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(int(pid), what) for pid, what in (line.split(" ", 1) for line in lines)]

    def calls_here(self) -> list[str]:
        return [what for pid, what in self.calls() if pid == os.getpid()]


def install(patch: pytest.MonkeyPatch, folder: Path, names: list[str]) -> FakeCuda:
    """Every way into CUDA that PyTorch has, and what the child asks."""
    cuda = FakeCuda(folder / "cuda.log", names)

    def noted(what: str, answer: object):
        def call(*arguments: object) -> object:
            cuda.note(" ".join([what, *map(str, arguments)]))
            return answer(*arguments) if callable(answer) else answer

        return call

    def init() -> None:
        if cuda.error:
            raise RuntimeError(cuda.error)

    def properties(number: int) -> SimpleNamespace:
        memory = 80 * GIBIBYTE
        return SimpleNamespace(name=cuda.names[number], major=8, minor=0, total_memory=memory)

    def count() -> int:
        visible = os.environ.get(devices.VISIBLE)
        return len(cuda.names if visible is None else visible.split(","))

    patch.delenv(devices.VISIBLE, raising=False)
    patch.setattr(torch.backends.cuda, "is_built", lambda: True)
    patch.setattr(torch.cuda, "_is_compiled", lambda: True)
    patch.setattr(torch._C, "_cuda_getDeviceCount", noted("getDeviceCount", count), raising=False)
    patch.setattr(torch.cuda, "init", noted("init", init))
    patch.setattr(torch.cuda, "_lazy_init", noted("lazy_init", init))
    patch.setattr(torch.cuda, "is_available", noted("is_available", True))
    patch.setattr(torch.cuda, "device_count", noted("device_count", count))
    patch.setattr(torch.cuda, "get_device_properties", noted("properties", properties))
    patch.setattr(torch.cuda, "set_device", noted("set_device", None))
    patch.setattr(torch.backends.cudnn, "version", lambda: int(VERSIONS["cudnn"]))
    patch.setattr(torch.version, "cuda", VERSIONS["cuda"])
    patch.setattr(devices, "_driver_version", lambda: VERSIONS["driver"])
    patch.setattr(devices, "_compute_on", noted("compute_on", None))
    patch.setattr(devices, "_ask_a_child", cache(devices._ask_a_child.__wrapped__))
    return cuda


def compute_on_the_cpu(patch: pytest.MonkeyPatch) -> None:
    """Ranks enter their GPU, and then compute on the CPU."""
    enter = devices.enter

    def enter_and_leave(*arguments: object) -> torch.device:
        enter(*arguments)
        torch.set_deterministic_debug_mode("default")
        return torch.device("cpu")

    patch.setattr(devices, "enter", enter_and_leave)

"""The GPUs of this machine, looked at without CUDA in a process that forks, and a rank's own one.

A process that has used CUDA, if only to count GPUs, cannot fork ranks that use it. So the process
that starts ranks, or studies, asks a child, which has CUDA look at the GPUs, reports and ends. NVML
alone would not do: it counts GPUs that this PyTorch cannot use, and it is missing in some
containers, on WSL and on AMD's GPUs.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import signal
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch

from fedbench.core.errors import BadInput, bad_value, require
from fedbench.parallel.failures import FORKED_TOO_LATE, USED_BEFORE
from fedbench.parallel.processes import end_with_parent, under_torchrun

# Somebody else's code may ask `torch.cuda.is_available()` in this process. It then uses NVML, which
# does no harm to forks, instead of CUDA.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOOK_SECONDS = 120  # a driver that has to wake many GPUs takes several seconds
# What PyTorch says on a machine without GPUs, as opposed to one whose GPUs cannot be used.
NO_GPU = ("Found no NVIDIA driver", "No CUDA GPUs are available", "No HIP GPUs are available")
# The workspaces with which cuBLAS gives the same bits every time, even on several streams.
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
GIBIBYTE = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU, as CUDA describes it."""

    name: str
    capability: str  # such as "8.0"
    memory: int  # bytes

    def __str__(self) -> str:
        return f"{self.name}, {self.memory / GIBIBYTE:.0f} GiB"


@dataclass(frozen=True)
class Gpus:
    """The GPUs that this process may use, and the software that they are used with."""

    found: tuple[Gpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)  # of the driver, CUDA and cuDNN
    problem: str = ""  # why GPUs that are there cannot be used

    def __len__(self) -> int:
        return len(self.found)


def gpus() -> Gpus:
    """What a child has found out. This process does not touch CUDA."""
    visible = os.environ.get(VISIBLE)
    if not torch.backends.cuda.is_built() or visible in ("", "-1"):  # the user hides them all
        return Gpus()
    return _ask_a_child(visible)


def pick_device(asked: str) -> str:
    """`runtime.device` as "cpu" or "cuda"; auto is a GPU where there is one."""
    if asked == "cpu":
        return "cpu"
    here = gpus()
    if here.problem:
        words = f"the GPU cannot be used ({here.problem}); runtime.device=cpu trains without it"
        raise bad_value("runtime.device", asked, words)
    rule = "must be cpu or auto: there is no CUDA device here"
    require(asked != "cuda" or len(here) > 0, "runtime.device", asked, rule)
    return "cuda" if len(here) else "cpu"


def gpu_of(rank: int) -> int:
    """The number of a rank's GPU. Ranks share the GPUs of their machine evenly."""
    local = os.environ.get("LOCAL_RANK") if under_torchrun() else None
    return int(rank if local is None else local) % len(gpus())


def ranks_a_gpu(workers: int) -> int:
    """How many ranks of this machine share the GPU that has the most of them."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", workers)) if under_torchrun() else workers
    return -(-here // len(gpus()))


def own_gpu() -> Gpu:
    """The GPU of this process: that of its own rank, or of the first rank that it will start."""
    return gpus().found[gpu_of(int(os.environ.get("RANK", 0)) if under_torchrun() else 0)]


def facts() -> dict[str, str]:
    """What bits depend on, beside the program: `own_gpu` and its software."""
    gpu = own_gpu()
    return {"name": gpu.name, "capability": gpu.capability, **gpus().versions}


def check_equal_gpus(workers: int) -> None:
    """Refuse ranks on different models of GPUs: a client's bits would depend on who trains it.

    Ranks of torchrun compare their GPUs with each other.
    """
    used = {gpus().found[gpu_of(rank)].name for rank in range(0 if under_torchrun() else workers)}
    if len(used) > 1:
        raise BadInput(
            f"runtime.deterministic=true: the GPUs must be equal, and here are {sorted(used)};"
            f" choose with {VISIBLE}, set runtime.workers=1 or runtime.deterministic=false"
        )


def visible_names() -> list[str]:
    """By what name CUDA_VISIBLE_DEVICES chooses each of the GPUs that this process sees."""
    seen = os.environ.get(VISIBLE)
    return [str(place) for place in range(len(gpus()))] if seen is None else seen.split(",")


def see_one(number: int) -> None:
    """Have this process and its children see one of the GPUs that it has seen so far."""
    os.environ[VISIBLE] = visible_names()[number % len(gpus())]


def enter(kind: str, rank: int, deterministic: bool, precision: str) -> torch.device:
    """The device of a rank, made ready. On a GPU this comes before anything else on it.

    Without `set_device`, libraries would open a second context on the first GPU, and random numbers
    would be seeded there.
    """
    if kind == "cpu":
        return torch.device("cpu")
    number = gpu_of(rank)
    if deterministic:
        os.environ.setdefault(*CUBLAS_WORKSPACE)  # read when cuBLAS starts
    torch.cuda.set_device(number)
    # As torch.use_deterministic_algorithms, but without importing its compiler for two seconds.
    torch.set_deterministic_debug_mode("error" if deterministic else "default")
    # The deterministic mode would fill all new memory, too; here nobody reads what is not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    cudnn: Any = torch.backends.cudnn
    cudnn.benchmark = False  # clients' last batches have many sizes: each would be tried anew
    # PyTorch's own default is tf32 for convolutions and float32 for matrix products.
    for part in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn):
        part.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    return torch.device("cuda", number)


# The child


@cache
def _ask_a_child(visible: str | None) -> Gpus:
    """Once for each set of visible GPUs."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs,))
    process.start()
    theirs.close()
    try:
        if not ours.poll(LOOK_SECONDS):
            return Gpus(problem=f"it does not answer for {LOOK_SECONDS} seconds")
        answer: dict[str, Any] = json.loads(ours.recv_bytes())
    except EOFError:
        return Gpus(problem="the process that looked at it died")
    finally:
        process.kill()
        process.join()
        ours.close()
    found = tuple(Gpu(**one) for one in answer["found"])
    return Gpus(found, answer["versions"], answer["problem"])


def _report(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    end_with_parent()
    warnings.simplefilter("ignore")  # what is wrong is reported in one line
    pipe.send_bytes(json.dumps(asdict(_look())).encode())


def _look() -> Gpus:
    """In the child: what CUDA says about the GPUs."""
    try:
        torch.cuda.init()
        found = tuple(_gpus_of_cuda())
    except (RuntimeError, AssertionError, torch.cuda.DeferredCudaCallError) as error:
        text = re.split(r"\. |\n", str(error))[0]  # advice for programmers follows
        if any(words in text for words in NO_GPU):
            return Gpus()
        return Gpus(problem=USED_BEFORE if FORKED_TOO_LATE in text else text)
    versions = {
        "driver": _driver_version(),
        "cuda": torch.version.cuda or f"HIP {torch.version.hip}",
        "cudnn": str(torch.backends.cudnn.version()),
    }
    return Gpus(found, versions)


def _gpus_of_cuda() -> Iterator[Gpu]:
    """Every GPU; one of each model has to compute something, which an unsupported one cannot."""
    tried: set[str] = set()
    for number in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(number)
        if about.name not in tried:
            _compute_on(torch.device("cuda", number))
            tried.add(about.name)
        yield Gpu(about.name, f"{about.major}.{about.minor}", about.total_memory)


def _compute_on(device: torch.device) -> None:
    """Raise CUDA's error if this PyTorch has no kernels for the GPU, or there is no memory."""
    torch.ones(1, device=device).add_(1).tolist()


def _driver_version() -> str:
    """As NVML tells it; CUDA only knows which of its own versions a driver supports."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if library.nvmlInit_v2() == 0 and library.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode()
    except (OSError, AttributeError):
        pass
    return "unknown"

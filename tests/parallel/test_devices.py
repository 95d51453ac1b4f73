"""GPUs, without one: who looks at them, which rank gets which, and how a rank sets it up.

CUDA is replaced by `support.fake_cuda`. Nothing here has run on a GPU.
"""

from __future__ import annotations

import os
import time

import pytest
import torch
from support import experiments, fake_cuda
from support.run_files import QUICK, summary
from support.waiting import LIMIT

from fedbench.core.errors import BadInput
from fedbench.parallel import devices
from fedbench.parallel.group import Group
from fedbench.parallel.processes import launch
from fedbench.report.running import plan
from fedbench.report.running.work import work_of
from fedbench.runs.identity import identity
from fedbench.train import prepare_here
from fedbench.training.client import seed_device

A100, H100 = "NVIDIA A100", "NVIDIA H100"


@pytest.fixture
def cuda(monkeypatch, tmp_path):
    """Two equal GPUs."""
    return fake_cuda.install(monkeypatch, tmp_path, [A100, A100])


@pytest.fixture
def switches():
    """What `enter` sets for the whole process, as it was before."""
    parts = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
    before = [part.fp32_precision for part in parts], torch.backends.cudnn.benchmark
    filled = torch.utils.deterministic.fill_uninitialized_memory
    yield parts
    for part, value in zip(parts, before[0], strict=True):
        part.fp32_precision = value
    torch.backends.cudnn.benchmark = before[1]
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.set_deterministic_debug_mode("default")


def see(monkeypatch, *names: str, **facts) -> None:
    found = fake_cuda.gpus(*names, **facts)
    monkeypatch.setattr(devices, "gpus", lambda: found)


# Who touches CUDA


def test_a_run_touches_cuda_in_a_child_and_in_its_ranks_only(cuda, fedbench, monkeypatch):
    fake_cuda.compute_on_the_cpu(monkeypatch)
    ended = fedbench(*QUICK, "runtime.workers=3")
    assert ended.status == 0, ended.err
    assert cuda.calls_here() == []
    assert "running on cuda (NVIDIA A100, 80 GiB), 3 workers" in ended.out
    facts = summary(ended.folder)
    assert facts["device"] == "cuda"
    assert facts["gpu"] == {"name": A100, "capability": "8.0", **fake_cuda.VERSIONS}
    chosen = sorted(what for _, what in cuda.calls() if what.startswith("set_device"))
    assert chosen == ["set_device 0", "set_device 0", "set_device 1"]
    child = {pid for pid, what in cuda.calls() if what == "init"}
    assert len(child) == 1  # one child, which has looked at everything
    cpu = fedbench(*QUICK, "runtime.device=cpu")
    assert summary(cpu.folder)["gpu"] is None
    assert cpu.folder != ended.folder
    assert summary(cpu.folder)["digest"] == facts["digest"]  # the ranks computed on the CPU


def test_studies_touch_no_gpu_either(cuda, monkeypatch):
    """A plan's stamp, an id, the kind of a calibration and the number of processes."""
    plan.stamp()
    config = experiments.config(*experiments.DATA)
    experiments.prepare(config)
    kind = work_of(config)["kind"]
    assert len(devices.gpus()) == 2
    assert cuda.calls_here() == []
    assert cuda.calls()
    see(monkeypatch, H100)
    assert kind != work_of(config)["kind"]
    cpu = experiments.config(*experiments.DATA, "runtime.device=cpu")
    assert work_of(cpu)["kind"] not in (kind, work_of(config)["kind"])


def test_the_fake_notices_whoever_touches_cuda(cuda):
    torch.cuda.is_available()
    assert cuda.calls_here() == ["is_available"]


def test_without_a_gpu_auto_is_the_cpu(cuda):
    cuda.error = "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"
    assert devices.pick_device("auto") == "cpu"
    with pytest.raises(BadInput, match="must be cpu or auto: there is no CUDA device here"):
        devices.pick_device("cuda")


@pytest.mark.parametrize("asked", ["auto", "cuda"])
@pytest.mark.parametrize(
    "error",
    [
        "The NVIDIA driver on your system is too old (found version 11040). Please update",
        "CUDA error: no kernel image is available for execution on the device\nCompile with",
    ],
)
def test_a_gpu_that_cannot_be_used_is_one_line(cuda, error, asked):
    cuda.error = error
    with pytest.raises(BadInput) as refused:
        devices.pick_device(asked)
    first = error.replace("\n", ". ").split(". ")[0]
    assert str(refused.value) == (
        f"runtime.device={asked}: the GPU cannot be used ({first}); runtime.device=cpu trains"
        " without it"
    )
    assert devices.pick_device("cpu") == "cpu"
    plan.stamp()  # reports need no GPU


def test_a_gpu_that_fails_while_it_starts_is_one_line(cuda, monkeypatch):
    """PyTorch has an error of its own for calls that were put off until CUDA starts."""

    def init() -> None:
        raise torch.cuda.DeferredCudaCallError("CUDA call failed lazily. \n\nCUDA call was")

    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(BadInput, match=r"cannot be used \(CUDA call failed lazily\);"):
        devices.pick_device("auto")


def test_a_notebook_that_has_used_cuda_is_told_so(cuda):
    cuda.error = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing"
    with pytest.raises(BadInput, match="this process has used CUDA already, so it cannot start"):
        devices.pick_device("auto")


@pytest.mark.parametrize("nothing", ["", "-1"])
def test_hidden_gpus_are_left_alone(cuda, monkeypatch, nothing):
    monkeypatch.setenv(devices.VISIBLE, nothing)
    assert devices.pick_device("auto") == "cpu"
    assert cuda.calls() == []


def test_a_driver_that_hangs_or_kills_is_one_line(cuda, monkeypatch):
    monkeypatch.setattr(devices, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(devices, "_look", lambda: time.sleep(2 * LIMIT))
    started = time.monotonic()
    assert devices.gpus().problem == "it does not answer for 0.1 seconds"
    assert time.monotonic() - started < LIMIT  # nobody waited for the driver
    monkeypatch.setattr(devices, "LOOK_SECONDS", 100)
    monkeypatch.setattr(devices, "_look", lambda: os._exit(1))
    devices._ask_a_child.cache_clear()
    assert devices.gpus().problem == "the process that looked at it died"


# Which rank has which GPU


def torchrun(monkeypatch, **variables: int) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def test_ranks_share_the_gpus_of_their_machine(monkeypatch):
    see(monkeypatch, *[A100] * 4)
    monkeypatch.setenv("LOCAL_RANK", "3")  # of another program: there is no RANK
    assert [devices.gpu_of(rank) for rank in range(6)] == [0, 1, 2, 3, 0, 1]
    assert [devices.ranks_a_gpu(workers) for workers in (1, 4, 5, 9)] == [1, 1, 2, 3]
    torchrun(monkeypatch, RANK=6, WORLD_SIZE=8, LOCAL_RANK=3, LOCAL_WORLD_SIZE=8)
    assert devices.gpu_of(6) == 3  # ranks 0, 2, 4, 6 are on this machine
    assert devices.ranks_a_gpu(1) == 2
    monkeypatch.delenv("LOCAL_RANK")
    assert devices.gpu_of(6) == 2


def test_a_rank_of_torchrun_reports_its_own_gpu(monkeypatch):
    see(monkeypatch, A100, H100)
    assert devices.facts()["name"] == A100
    torchrun(monkeypatch, RANK=5, WORLD_SIZE=8, LOCAL_RANK=1)
    assert devices.facts() == {"name": H100, "capability": "8.0", **fake_cuda.VERSIONS}
    devices.check_equal_gpus(8)  # they compare their GPUs with each other


def test_different_gpus_are_refused_unless_bits_may_differ(monkeypatch):
    see(monkeypatch, A100, H100)
    devices.check_equal_gpus(1)
    words = "runtime.deterministic=true: the GPUs must be equal, and here are"
    with pytest.raises(BadInput, match=words):
        devices.check_equal_gpus(2)
    strict, loose = (
        experiments.config(*experiments.DATA, "runtime.workers=2", f"runtime.deterministic={on}")
        for on in ("true", "false")
    )
    with pytest.raises(BadInput, match=words):
        prepare_here(strict)
    assert prepare_here(loose).device == "cuda"


@pytest.mark.parametrize(
    ("visible", "number", "one"), [(None, 1, "1"), ("4,7", 1, "7"), ("4,7", 2, "4")]
)
def test_a_worker_of_a_study_sees_one_gpu(monkeypatch, visible, number, one):
    see(monkeypatch, A100, A100)
    monkeypatch.delenv(devices.VISIBLE, raising=False)
    if visible:
        monkeypatch.setenv(devices.VISIBLE, visible)
    devices.see_one(number)
    assert os.environ[devices.VISIBLE] == one


def test_other_visible_gpus_are_looked_at_anew(cuda, monkeypatch):
    assert len(devices.gpus()) == 2
    cuda.names.pop()
    assert len(devices.gpus()) == 2
    monkeypatch.setenv(devices.VISIBLE, "0")
    assert len(devices.gpus()) == 1


# What a rank sets


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize(
    ("precision", "products"), [("float32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")]
)
def test_a_rank_enters_its_gpu(cuda, switches, monkeypatch, deterministic, precision, products):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert devices.enter("cuda", 3, deterministic, precision) == torch.device("cuda", 1)
    assert cuda.calls_here() == ["set_device 1"]
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.backends.cudnn.benchmark
    assert not torch.utils.deterministic.fill_uninitialized_memory
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == (":4096:8" if deterministic else None)
    assert [part.fp32_precision for part in switches] == [products] * 3


def test_the_cpu_needs_nothing(switches):
    before = [part.fp32_precision for part in switches]
    assert devices.enter("cpu", 1, True, "float32") == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert [part.fp32_precision for part in switches] == before


def test_forked_ranks_enter_their_own_gpus(cuda):
    """Each in its own process, which has its own memory of them."""
    devices.gpus()

    def work(group: Group) -> None:
        devices.enter("cuda", group.rank, True, "float32")

    launch(work, 2, LIMIT, isolated=True)
    ranks = {pid: what for pid, what in cuda.calls() if what.startswith("set_device")}
    assert sorted(ranks.values()) == ["set_device 0", "set_device 1"]
    assert os.getpid() not in ranks


def test_a_rank_seeds_its_own_gpu(monkeypatch):
    seeds: dict[int, int] = {}

    class Generator:
        def __init__(self, number: int):
            self.number = number

        def manual_seed(self, seed: int) -> None:
            seeds[self.number] = seed

    generators = tuple(Generator(number) for number in range(3))
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    seed_device(torch.device("cuda", 2), 7)
    assert seeds == {2: 7}


# What decides a run


def test_settings_of_a_gpu_are_part_of_the_id_where_they_are_not_the_default():
    def tree(*words: str, device: str) -> dict:
        made = experiments.config(*experiments.DATA, "runtime.device=cpu")
        runtime = experiments.config(*experiments.DATA, *words).tree["runtime"]
        made.tree["runtime"] = runtime
        algorithm = experiments.parts().algorithm
        return identity(made, algorithm, device, "data")["runtime"]

    plain = {"device": "cuda", "threads": 1}
    assert tree(device="cuda") == plain
    assert tree("runtime.deterministic=false", device="cpu") == {**plain, "device": "cpu"}
    loose = tree("runtime.deterministic=false", device="cuda")
    assert loose == {**plain, "deterministic": False}
    rough = tree("runtime.precision=bf16", device="cuda")
    assert rough == {**plain, "precision": "bf16"}


def test_another_gpu_is_another_origin_unless_bits_may_differ(monkeypatch):
    origins = {}
    for name in (A100, H100):
        see(monkeypatch, name)
        for deterministic in ("true", "false"):
            made = experiments.parts(f"runtime.deterministic={deterministic}")
            origins[name, deterministic] = made.origin()
    assert origins[A100, "false"] == origins[H100, "false"]
    strict, other = origins[A100, "true"], origins[H100, "true"]
    assert {what for what in strict if strict[what] != other[what]} == {"GPU name"}
    assert strict["GPU driver"] == "570.1"


def test_what_a_method_keeps_of_every_step_must_fit_too(monkeypatch):
    """ECGR's trace lies on the GPU, or, past algo.memory, in a file."""
    words = (*experiments.DATA, *experiments.PLAIN, "client.steps=1000", "model.hidden=[256,8]")
    see(monkeypatch, A100, memory=2**30)  # the trace has 0.8 GB, a block of it 1.0 GB
    assert prepare_here(experiments.config(*words)).device == "cuda"
    with pytest.raises(BadInput, match=r"at least 1.8 GiB for 1 worker on it; a smaller algo.mem"):
        prepare_here(experiments.config(*words, "algo=fedecgr"))
    file = experiments.config(*words, "algo=fedecgr", "algo.memory=0.5")
    assert prepare_here(file).device == "cuda"


def test_a_gpu_that_is_too_small_is_refused(fedbench, monkeypatch):
    see(monkeypatch, A100, memory=2**20)
    words = ("data=mnist", "data.source=synthetic", "data.subset=1000", "runtime.workers=2")
    refused = fedbench(*QUICK[:2], *words)
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "model, data: too large for the memory of the GPU (NVIDIA A100, 0 GiB)" in refused.err
    assert "for 2 workers on it; a smaller runtime.workers needs less" in refused.err

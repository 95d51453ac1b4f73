"""Recorded steps, with a stand-in for CUDA's graphs on the CPU: `support.replay`.

test_every_method.py has the comparison of recorded and ordinary steps for all methods.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from support import experiments
from support.methods import STEPS
from support.recorded import federation, outcome, parts
from support.replay import ReadsAValue, ReplayRecorder

from fedbench.algorithms.context import ClientResult
from fedbench.algorithms.fedprox import Prox
from fedbench.algorithms.modifier import Modifier
from fedbench.core.flat_model import digest
from fedbench.core.optimizers import fused_adam, fused_sgd, restart
from fedbench.training import graph_steps
from fedbench.training.graph_steps import CudaRecorder, can_be_recorded


@pytest.mark.parametrize(
    "words",
    [
        "algo=fedecgr",
        "algo=fedgen",
        "algo=fedgen algo.early_stop=1",
        "algo=scaffold algo.correction=outside client.momentum=0.5 client.lr_decay.factor=0.5",
        "algo=fedpmvr algo.variant=eq12_plain client.lr_decay.factor=0.5",
    ],
)
def test_methods_that_are_not_recorded_cannot_be(words):
    """Recorded all the same, they compute something else."""
    made = parts(*words.split())
    ordinary, recorded = federation(made, None), federation(made, None)
    assert not can_be_recorded(ordinary.algorithm.modifiers.values())
    recorded.trainer.record_steps(ReplayRecorder())
    try:
        bits = outcome(recorded)[0]
    except ReadsAValue:
        return
    assert bits != outcome(ordinary)[0]


def test_one_recording_serves_all_rates():
    made, recorder = parts("client.lr_decay.factor=0.5", "client.momentum=0.9"), ReplayRecorder()
    built = federation(made, recorder)
    outcome(built)
    assert len({built.plan_round(index).lr for index in range(3)}) == 3
    assert len(recorder.tapes) == 1
    assert recorder.rehearsals == graph_steps.REHEARSALS


def test_indices_are_loaded_a_few_batches_at_a_time(monkeypatch):
    made = parts("algo=fedprox")
    expected = outcome(federation(made, ReplayRecorder()))
    monkeypatch.setattr(graph_steps, "ORDER_ELEMENTS", 17)  # two batches
    assert outcome(federation(made, ReplayRecorder())) == expected


def test_only_so_many_recordings_are_kept(monkeypatch):
    monkeypatch.setattr(graph_steps, "MOST_FORMS", 1)
    made = parts("client.batch_size=full", "client.epochs=3")
    built = federation(made, ReplayRecorder())
    assert outcome(built) == outcome(federation(made, None))
    assert len(built.trainer.graph.forms) == 1


def test_a_step_that_reads_a_value_is_not_recorded(monkeypatch):
    """It says so, and the run goes on with the same numbers."""
    made = parts("algo=fedprox")
    expected, plain_grad = outcome(federation(made, None)), Prox.grad

    def reading(self, local, memory):
        assert float(local.model.w[0]) < 1e9
        plain_grad(self, local, memory)

    monkeypatch.setattr(Prox, "grad", reading)
    recorder = ReplayRecorder()
    with pytest.warns(UserWarning, match="runtime.graph=auto: steps are not recorded") as warned:
        assert outcome(federation(made, recorder)) == expected
    assert len(warned) == 1
    assert not recorder.tapes
    with pytest.raises(ReadsAValue):
        recorder.record(lambda: float(torch.ones(1)))


@dataclass
class Watching(Modifier):
    """A user's own modifier, which does not say that it may be recorded."""

    def grad(self, local, memory):
        local.model.g.mul_(1.0)


@dataclass
class Finishing(Modifier):
    """It has no hook inside of steps, and keeps tensors that it was given."""

    @property
    def remembers(self):
        return True

    def begin(self, local, memory):
        memory.scratch["kept"] = local.before * 2.0

    def finish(self, local, memory):
        return ClientResult(client={"a": memory.scratch["kept"], "b": local.before})


def test_an_unknown_modifier_is_recorded_only_outside_of_steps():
    assert not can_be_recorded([Watching()])
    assert can_be_recorded([Finishing()])


def test_what_a_modifier_keeps_is_not_written_over():
    made = parts()
    made.unbound.modifiers = {"finishing": Finishing()}
    recorder = ReplayRecorder()
    recorded, ordinary = federation(made, recorder), federation(made, None)
    assert outcome(recorded) == outcome(ordinary)
    assert recorder.replays > 0


# Optimizers


@pytest.mark.parametrize(
    ("momentum", "nesterov", "weight_decay"), [(0.0, False, 0.0), (0.9, False, 0.1), (0.9, True, 0)]
)
def test_a_momentum_buffer_of_zeros_is_that_of_no_steps(momentum, nesterov, weight_decay):
    """Against PyTorch's own, whose buffer starts with the first gradient; zeros of both signs are
    among the gradients. The rate has few digits, because ours is a float32.
    """
    start, gradients = torch.randn(50), torch.randn(5, 50)
    start[:10], gradients[:, 5:20], gradients[:, 20:25] = 0.0, 0.0, -0.0
    own, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = fused_sgd(own, momentum, nesterov, weight_decay)
    for _ in range(2):  # the second time, it is restarted
        own.data.copy_(start)
        theirs.data.copy_(start)
        restart(optimizer, 0.125)
        reference = torch.optim.SGD(
            [theirs],
            lr=0.125,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            fused=True,
        )
        for gradient in gradients:
            own.grad, theirs.grad = gradient.clone(), gradient.clone()
            optimizer.step()
            reference.step()
            assert torch.equal(own, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_fused_adam_is_adam(weight_decay):
    start, gradients = torch.randn(50), torch.randn(5, 50)
    own, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    optimizer = fused_adam(own, weight_decay)
    for _ in range(2):
        own.data.copy_(start)
        theirs.data.copy_(start)
        restart(optimizer, 0.125)
        reference = torch.optim.Adam([theirs], lr=0.125, weight_decay=weight_decay, fused=True)
        for gradient in gradients:
            own.grad, theirs.grad = gradient.clone(), gradient.clone()
            optimizer.step()
            reference.step()
            assert torch.equal(own, theirs)


@pytest.mark.parametrize("words", [STEPS[1], STEPS[2], STEPS[4]])
def test_fused_optimizers_compute_what_ordinary_ones_do(words):
    """Up to rounding."""
    made = parts(*words.split(), "rounds=1")
    ordinary = experiments.assemble(copy.deepcopy(made))
    fused = federation(made, None)
    experiments.final_digest(ordinary)
    experiments.final_digest(fused)
    torch.testing.assert_close(fused.state.w, ordinary.state.w, rtol=1e-3, atol=1e-5)


def test_the_cpu_keeps_its_optimizers():
    assert experiments.assemble(parts()).trainer.fused_optimizer is None


# CUDA's own recorder, with everything of CUDA replaced


@dataclass
class Stream:
    log: list

    def wait_stream(self, other):
        self.log.append(("waits", self, other))


@pytest.fixture
def cuda(monkeypatch):
    """What is called of CUDA, in order."""
    log: list = []
    mode = ["default"]
    current, side = Stream(log), Stream(log)

    class Graph:
        def replay(self):
            log.append("replay")

    @contextmanager
    def stream(which):
        log.append(("on", which))
        yield

    @contextmanager
    def graph(recorded, pool, stream, capture_error_mode):
        log.append(("recording", pool, stream, capture_error_mode))
        yield
        log.append("recorded")

    for name, value in {
        "Stream": lambda device: side,
        "graph_pool_handle": lambda: "pool",
        "current_stream": lambda: current,
        "stream": stream,
        "get_sync_debug_mode": lambda: mode[0],
        "set_sync_debug_mode": lambda new: mode.__setitem__(0, new),
        "CUDAGraph": Graph,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return log, mode, current, side


def test_cuda_rehearses_on_the_stream_of_the_recording(cuda):
    log, mode, current, side = cuda
    recorder = CudaRecorder(torch.device("cuda", 0))

    def step():
        warnings.warn(f"{graph_steps.PROTOTYPE} feature and ...", stacklevel=1)
        log.append(mode[0])

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the notice about the mode is nobody's business
        assert recorder.rehearse(step) == ""
    assert log == [("waits", side, current), ("on", side), "warn", ("waits", current, side)]
    assert mode == ["default"]


def test_cuda_says_what_waits_for_the_gpu(cuda):
    mode = cuda[1]

    def waiting():
        warnings.warn("another thing", stacklevel=1)
        warnings.warn(f"{graph_steps.PROTOTYPE} feature and ...", stacklevel=1)
        warnings.warn(f"{graph_steps.WAITED} (Triggered internally at ...)", stacklevel=1)

    with pytest.warns(UserWarning, match="another thing") as warned:
        reason = CudaRecorder(torch.device("cuda", 0)).rehearse(waiting)
    assert reason == "the step called a synchronizing CUDA operation"
    assert len(warned) == 1
    assert mode == ["default"]


def test_cuda_records_into_one_pool(cuda):
    log, _, _, side = cuda
    replay = CudaRecorder(torch.device("cuda", 0)).record(lambda: log.append("step"))
    # In CUDA's own mode, what another thread does on the GPU would break the recording off.
    assert log == [("recording", "pool", side, "thread_local"), "step", "recorded"]
    replay()
    assert log[-1] == "replay"


def test_the_stand_in_can_tell_a_difference():
    """A step that counts in Python is not the same when it is replayed."""
    total, count = torch.zeros(1), [0]

    def step():
        count[0] += 1
        total.add_(count[0])

    replay = ReplayRecorder().record(step)
    assert total.item() == 0.0  # a recording leaves no trace
    replay()
    replay()
    assert total.item() == 2.0
    assert digest({"total": total}) == digest({"total": torch.tensor([2.0])})

"""bfloat16 is for networks alone, shown on the CPU: PyTorch has it there, too."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from support import experiments
from support.recorded import SMALL, outcome
from support.replay import ReplayRecorder

from fedbench.runs.prepared import PreparedRun
from fedbench.training.federation import Federation


def federation(made: PreparedRun, precision: str) -> Federation:
    """The command line refuses bf16 on the CPU, where it would only be slow."""
    own = copy.deepcopy(made)
    scalars = own.config.scalars
    scalars.runtime = replace(scalars.runtime, precision=precision)
    return experiments.assemble(own)


@pytest.mark.parametrize("words", ["algo=scaffold", "algo=moon", "algo=fedgen", "algo=fedpgvc"])
def test_states_of_methods_stay_in_float32(words):
    made = experiments.parts(*experiments.BATCH_NORM, *SMALL, words, "rounds=2", "client.lr=0.01")
    built, plain = federation(made, "bf16"), federation(made, "float32")
    seen = set()
    built.model.module.fc1.register_forward_hook(lambda *called: seen.add(called[2].dtype))
    bits, numbers = outcome(built)
    assert bits != outcome(plain)[0]
    assert torch.bfloat16 in seen
    tensors = built.state.server_tensors() | built.state.client_tensors()
    kinds = {tensor.dtype for tensor in tensors.values()}
    assert kinds <= {torch.float32, torch.int64}
    assert built.model.g.dtype == torch.float32
    assert all(abs(float(own["train_loss"])) < 100 for own in numbers)


def test_float32_is_the_plain_forward_pass(monkeypatch):
    """Nothing asks for another precision on the way."""
    for name in ("client", "evaluation"):
        monkeypatch.setattr(f"fedbench.training.{name}.autocast", None)
    made = experiments.parts(*experiments.PLAIN, *SMALL, "rounds=1")
    outcome(federation(made, "float32"))
    outcome(federation(made, "tf32"))  # which is a switch of the device, not of the network


def test_steps_in_bfloat16_can_be_recorded():
    made = experiments.parts(*experiments.PLAIN, *SMALL, "rounds=2")
    recorded, ordinary = federation(made, "bf16"), federation(made, "bf16")
    recorder = ReplayRecorder()
    recorded.trainer.record_steps(recorder)
    ordinary.trainer.record_steps(ReplayRecorder())
    ordinary.trainer.graph = None  # the same optimizer
    assert outcome(recorded) == outcome(ordinary)
    assert recorder.replays > 0

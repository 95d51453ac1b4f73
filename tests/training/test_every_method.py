"""What a GPU asks of every method, as far as it shows without one.

No value is read from the device inside of a step, shown on the meta device; and recorded steps have
the bits of ordinary ones, shown with a stand-in for CUDA's graphs, or the method says that they
cannot be recorded.
"""

from __future__ import annotations

import copy

import pytest
import torch
from support import experiments
from support.device_copies import DeviceCopies, on_the_device
from support.methods import METHODS, STEPS
from support.recorded import SMALL, federation, outcome, parts
from support.replay import ReplayRecorder

from fedbench.algorithms.local_phases import Joint
from fedbench.runs.prepared import PreparedRun
from fedbench.training.graph_steps import can_be_recorded

# Vectors that a method copies from the device for every client, in its training and its planning.
COPIES = {"ecgr": 1}  # the products of every two steps
PLANNING = {"gsnr": 2}  # mean and variance
UPLOADS = {"generator": 1}  # the labels that there are; beside the permutations
ALWAYS = ("algo=fedavg", "algo=scaffold", "algo=pfedsim", "algo=fedbn modifier=[prox]")
# test_graph_steps.py shows that they cannot be.
NOT_RECORDED = {"Ecgr", "Generator", "ControlVariate", "Pmvr"}


@pytest.mark.parametrize("words", [*METHODS, *STEPS])
def test_every_method(words):
    made = parts(*words.split())
    check_copies(made)
    check_replays(made)


@pytest.mark.heavy
@pytest.mark.parametrize("words", [*METHODS, *STEPS])
def test_every_method_with_batch_norm(words):
    made = parts(*words.split(), *experiments.BATCH_NORM)
    check_copies(made)
    check_replays(made)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=() if words in ALWAYS else pytest.mark.heavy)
        for words in (*METHODS, *STEPS)
    ],
)
def test_two_whole_rounds_on_a_device(words, monkeypatch):
    """Measuring, planning, starts, surveys, the server's step and evaluation mix no devices.

    What is copied from the device is 1 everywhere: there are labels for FedGen.
    """
    made = experiments.parts(*words.split(), *experiments.BATCH_NORM, *SMALL, "rounds=2")
    built = experiments.assemble(made, "meta")
    # Whether the model is finite is not known there.
    monkeypatch.setattr(built.divergence, "after_training", lambda plan, numbers: None)
    with DeviceCopies(answer=1):
        records = list(built.rounds())
    assert [record.round for record in records] == [1, 2]
    assert all(record.score is not None for record in records)
    assert on_the_device(built.state.w, built.state.b)


def check_copies(made: PreparedRun) -> None:
    """In two rounds, because some methods do nothing in the first: training copies nothing from the
    device but what COPIES says, and the numbers for the record come in one copy.
    """
    built = experiments.assemble(copy.deepcopy(made), "meta")
    methods = set(built.algorithm.modifiers)
    if "generator" in methods:  # FedGen: what the first round's labels would have left
        built.state.server["generator"]["labels"].fill_(1.0)
    for index in (0, 1):
        with DeviceCopies() as planning:
            plan = built.plan_round(index)
        planned = sum(PLANNING.get(name, 0) for name in methods) * len(plan.invited)
        assert len(planning.down) == planned
        client = plan.cohort[0]
        with DeviceCopies() as training:
            before, memories = built.state.receive(client)
            trained = built.trainer(plan, 0, built.shards[client], before, memories)
            built.state.remember(client, trained.results)
        assert len(training.down) == sum(COPIES.get(name, 0) for name in methods)
        assert training.up == 1 + sum(UPLOADS.get(name, 0) for name in methods)
        with DeviceCopies() as recording:
            row = torch.empty(built.client_numbers.width(plan), dtype=torch.float64)
            built.client_numbers.write(row, trained)
        assert len(recording.down) == 1
    assert on_the_device(trained.local.update, built.model.w)
    for memory in built.state.clients.values():
        assert on_the_device(*(value for state in memory.values() for value in state.values()))


def check_replays(made: PreparedRun) -> None:
    recorder = ReplayRecorder()
    recorded, ordinary = federation(made, recorder), federation(made, None)
    modifiers = recorded.algorithm.modifiers.values()
    can_be = can_be_recorded(modifiers)
    assert (recorded.trainer.graph is not None) == can_be
    for modifier in modifiers:
        name = type(modifier).__name__
        words = f"{name}: say `capturable = True`, or show in test_graph_steps.py why it is not"
        assert can_be_recorded([modifier]) or name in NOT_RECORDED, words
    assert outcome(recorded) == outcome(ordinary)
    if recorded.trainer.graph is not None and type(recorded.algorithm.local_train) is Joint:
        assert recorder.replays > 0
        # Only the shapes of batches and memories ask for another recording.
        assert len(recorder.tapes) <= len(recorded.trainer.graph.forms)
    else:
        assert recorder.replays == 0

"""What is copied from a device and to it, shown on the meta device.

test_every_method.py has the training of all methods.
"""

from __future__ import annotations

import pytest
import torch
from support import experiments
from support.device_copies import DeviceCopies, OperatorCount, on_the_device

from fedbench.core.transfer import upload
from fedbench.data.batches import Examples
from fedbench.training.federation import Federation

SMALL = ("client.batch_size=16", "client.epochs=2", "data.subset=100")


def federation(*words: str) -> Federation:
    """Batch norm makes no difference to methods but FedBN."""
    base = (
        experiments.PLAIN if words[0].startswith(("algo", "modifier")) else experiments.BATCH_NORM
    )
    base = experiments.BATCH_NORM if words[0] == "algo=fedbn" else base
    return experiments.federation(*base, *SMALL, *words, device="meta")


def test_what_goes_to_the_device_in_a_round():
    """The permutations of all epochs in one copy, and nothing a step."""
    made = federation("client.epochs=3")
    plan = made.plan_round(0)
    before, memories = made.state.receive(0)
    with DeviceCopies() as copies:
        made.trainer(plan, 0, made.shards[0], before, memories)
    assert plan.steps[0] > 3
    assert copies.up == 1


def test_reading_a_value_is_noticed(monkeypatch):
    made = federation("algo=fedprox")
    plan = made.plan_round(0)
    before, memories = made.state.receive(0)
    prox = made.algorithm.modifiers["prox"]
    monkeypatch.setattr(type(prox), "grad", lambda self, local, memory: float(local.model.g[0]))
    made.trainer.hooks["grad"] = [("prox", prox.grad)]
    with pytest.raises(RuntimeError, match="meta"), DeviceCopies():
        made.trainer(plan, 0, made.shards[0], before, memories)


def test_an_evaluation_copies_once():
    """Predictions and losses, whatever the number of batches."""
    made = federation("eval.batch_size=30")
    assert len(made.evaluator.batches) == 4
    with DeviceCopies() as copies:
        made.evaluator.score()
        assert len(copies.down) == 3  # and, the first time, the labels
        made.evaluator.score()
        assert len(copies.down) == 5
        made.evaluator.score_part(made.trainer.train, made.shards[0])
        assert len(copies.down) == 6
        made.evaluator.softmax()
        assert len(copies.down) == 7


def test_an_evaluation_of_personal_models_copies_once():
    made = federation("algo=local", "eval.batch_size=30")
    counts = [torch.ones(10, dtype=torch.int64)] * len(made.shards)
    with DeviceCopies() as copies:
        made.evaluator.personal(made.state.receive, made.owners, counts, "mean_acc")
    assert len(copies.down) == 3


def test_memory_mapped_inputs_leave_the_device_alone():
    """Inputs and indices are on the CPU, labels and the network on the device."""
    x = torch.zeros(20, 4, 4, 1, dtype=torch.uint8)
    examples = Examples(x, torch.zeros(20, dtype=torch.int64, device="meta"), (0.5,), (0.5,))
    with DeviceCopies() as copies:
        inputs, labels = examples.batch(torch.arange(5), training=True)
    assert on_the_device(inputs, labels)
    assert not copies.down


def test_replaced_inputs_leave_the_device_alone():
    """Choosing them by a mask would wait for the device."""
    x = torch.zeros(20, 4, 4, 1, dtype=torch.uint8, device="meta")
    examples = Examples(x, torch.zeros(20, dtype=torch.int64, device="meta"), (0.5,), (0.5,))
    with DeviceCopies() as copies:
        examples.replace(torch.arange(3, device="meta"), torch.rand(3, 4, 4, 1, device="meta"))
        inputs, labels = examples.batch(torch.arange(5, device="meta"), training=True)
    assert on_the_device(inputs, labels)
    assert inputs.shape == (5, 1, 4, 4)
    assert (copies.down, copies.up) == ([], 0)


def test_upload_pins_for_a_gpu_alone(monkeypatch):
    """`pin_memory` needs CUDA, so a copy to the CPU or to meta must not ask for it."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pytest.fail("pinned"))
    values = torch.arange(3)
    assert upload(values, torch.device("cpu")) is values
    assert on_the_device(upload(values, torch.device("meta")))


class PinnedMemory:
    """Of a GPU that is not there: what `upload` asks of a tensor, with copies that say how."""

    device = torch.device("cpu")

    def __init__(self, error: str = "", pinned: bool = False):
        self.error = error
        self.pinned = pinned

    def pin_memory(self) -> PinnedMemory:
        if self.error:
            raise RuntimeError(self.error)
        return PinnedMemory(pinned=True)

    def to(self, device: torch.device, non_blocking: bool) -> tuple[bool, bool]:
        return self.pinned, non_blocking


def test_upload_does_without_pinned_memory_where_there_is_no_more_of_it():
    gpu = torch.device("cuda", 0)
    assert upload(PinnedMemory(), gpu) == (True, True)
    assert upload(PinnedMemory("CUDA error: out of memory\nCompile with"), gpu) == (False, True)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        upload(PinnedMemory("CUDA error: an illegal memory access was encountered"), gpu)


def test_batch_norm_counters_are_recorded():
    """One copy holds the counters between the fixed numbers and those of methods."""
    made = experiments.federation(
        *experiments.BATCH_NORM, *SMALL, "algo=scaffold", "diagnostics.gradient_norms=true"
    )
    plan = made.plan_round(0)
    before, memories = made.state.receive(plan.cohort[0])
    trained = made.trainer(plan, 0, made.shards[plan.cohort[0]], before, memories)
    row = torch.empty(made.client_numbers.width(plan), dtype=torch.float64)
    made.client_numbers.write(row, trained)
    norm = trained.results["control_variate"].numbers[0]
    assert trained.gradient_norms is not None
    expected = [
        float(trained.loss),
        float(trained.local.raw_update.norm()),
        float(trained.local.update.norm()),  # all of it is sent
        *[-1.0] * 3,  # the layer, the step and its batch that broke the model: none
        *[float(plan.steps[0])] * len(made.model.counters),
        float(norm),
        *trained.gradient_norms.flatten().tolist(),
    ]
    assert row.tolist() == expected


# The operators of a local step, without views, as a GPU would get them: each is a kernel or more.
BUDGET = {
    "model=mlp": 35,
    "model=lenet": 52,
    "model=lenet model.batch_norm=true": 62,
    "model=cnn_bn": 80,
}


@pytest.mark.parametrize("words", BUDGET)
def test_operators_of_a_step(words):
    """A regression shows here before it shows on a GPU; fewer are welcome, and then lower this."""
    counts = []
    for steps in (2, 5):
        settings = (f"client.steps={steps}", "client.batch_size=4", "data.subset=100")
        made = experiments.federation(*words.split(), *settings, device="meta")
        client = max(range(len(made.sizes)), key=made.sizes.__getitem__)
        assert made.sampler.batches_per_epoch(made.sizes[client]) >= 5  # one permutation
        plan = made.plan_round(0)
        before, memories = made.state.receive(client)
        with OperatorCount() as operators:
            made.trainer(plan, plan.cohort.index(client), made.shards[client], before, memories)
        counts.append(operators.count)
    assert (counts[1] - counts[0]) / 3 <= BUDGET[words]

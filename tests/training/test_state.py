"""What lives from round to round: where it is kept, and that all ranks have the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support import experiments
from support.device_copies import DeviceCopies, on_the_device
from support.waiting import LIMIT

from fedbench.parallel.failures import WorkerFault
from fedbench.parallel.group import Group
from fedbench.parallel.processes import launch
from fedbench.training import state as states
from fedbench.training.state import ExperimentState

MEMORIES = ["algo=scaffold", "algo=fedbn", "algo=moon", "algo=pfedsim algo.warmup=0"]


@pytest.mark.parametrize("words", MEMORIES)
def test_memories_in_host_memory_give_the_same_bits(words):
    """As with a GPU, but the copies go from the CPU to the CPU."""
    setting = (*words.split(), "rounds=3", "cohort=3", *experiments.BATCH_NORM)
    digests = []
    for in_host_memory in (False, True):
        made = experiments.federation(*setting)
        made.state.in_host_memory = in_host_memory
        digests.append(experiments.final_digest(made))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("words", MEMORIES)
def test_memories_are_beside_the_device_and_come_to_it(words, monkeypatch):
    """The model is on meta. A memory has one place, which is written over, and is not pinned."""
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(states.torch, name, without_pins(getattr(torch, name)))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pytest.fail("pinned"))
    made = experiments.federation(*words.split(), *experiments.BATCH_NORM, device="meta")
    made.state.in_host_memory = True
    plan, places = made.plan_round(0), []
    client = plan.cohort[0]
    with DeviceCopies() as copies:
        for _ in range(2):
            before, memories = made.state.receive(client)
            trained = made.trainer(plan, 0, made.shards[client], before, memories)
            made.state.remember(client, trained.results)
            places.append([own.data_ptr() for own in made.state.client_tensors().values()])
        assert len(copies.down) == 2 * len(places[0]) > 0
        assert places[0] == places[1]
        _, memories = made.state.receive(client)
    assert {own.device.type for own in made.state.client_tensors().values()} == {"cpu"}
    assert on_the_device(*(own for one in memories.values() for own in one.client.values()))


def without_pins(empty):
    def made(*given: object, pin_memory: bool = False, **named: object) -> torch.Tensor:
        assert not pin_memory
        return empty(*given, **named)

    return made


def test_restored_memories_are_in_host_memory_too():
    made = experiments.federation("algo=scaffold", *experiments.PLAIN, device="meta")
    made.state.in_host_memory = True
    made.state.restore_client("2/control_variate/c", torch.arange(5.0))
    assert torch.equal(made.state.clients[2]["control_variate"]["c"], torch.arange(5.0))


def test_a_state_is_restored_to_the_device_that_it_was_on():
    """pFedSim keeps its similarities on the CPU, where a resumed run must compute with them."""
    made = experiments.federation("algo=pfedsim", *experiments.PLAIN, device="meta")
    (name,) = made.state.server
    before = made.state.server[name]["similarity"]
    made.state.restore_server({f"modifier/{name}/similarity": torch.ones_like(before)})
    after = made.state.server[name]["similarity"]
    assert before.device.type == after.device.type == "cpu"
    assert torch.equal(after, torch.ones_like(before))


def state_of(found: list[str], forked: bool, device: str = "cpu") -> ExperimentState:
    """A state whose ranks send these digests; OWN stands for this rank's."""
    state = object.__new__(ExperimentState)
    state.w, state.b = torch.arange(4.0), torch.zeros(0)
    state.model = SimpleNamespace(device=torch.device(device))
    sent: list[str] = []

    def gather(own: str) -> list[str]:
        sent.append(own)
        return [own if one == "OWN" else one for one in found]

    state.group = SimpleNamespace(size=len(found), forked=forked, gather_text=gather)
    state.sent = sent
    return state


def test_a_rank_with_another_model_is_named():
    state_of(["OWN", "OWN", "OWN"], forked=False).compare_ranks(4)
    words = r"rank 1 of 3 has another global model than the others after round 4; all need"
    with pytest.raises(WorkerFault, match=words):
        state_of(["OWN", "0123", "OWN"], forked=False).compare_ranks(4)
    with pytest.raises(WorkerFault, match="rank 0 of 3 has"):
        state_of(["OWN", "0123", "0123"], forked=False).compare_ranks(4)
    with pytest.raises(WorkerFault, match="rank 1 of 2 has"):
        state_of(["0123", "OWN"], forked=False).compare_ranks(4)
    with pytest.raises(WorkerFault, match="rank 1 of 2 has"):
        state_of(["OWN", "0123"], forked=True, device="cuda").compare_ranks(4)


ON_GPUS = "GPUs of the same model and runtime.deterministic=true, which runtime.workers=1 does not"


@pytest.mark.parametrize(
    ("device", "needed"), [("cpu", "processors of the same model"), ("cuda", ON_GPUS)]
)
def test_ranks_that_differ_are_told_what_they_need(device, needed):
    with pytest.raises(WorkerFault) as differ:
        state_of(["OWN", "0123"], forked=False, device=device).compare_ranks(1)
    assert str(differ.value).endswith(f"; all need {needed}")


def test_ranks_compare_models_before_they_look_into_them(monkeypatch):
    """Also those that are broken: if one rank alone had such a model, the others would wait."""
    made = experiments.federation("client.lr=1e30", "rounds=2", *experiments.PLAIN)
    calls: list[str] = []
    look = made.divergence.after_training
    monkeypatch.setattr(made.state, "compare_ranks", lambda done: calls.append(f"round {done}"))
    monkeypatch.setattr(
        made.divergence, "after_training", lambda *given: calls.append("look") or look(*given)
    )
    (record,) = made.rounds()
    assert record.diverged
    assert calls == ["round 1", "look"]


def test_a_real_rank_that_differs_ends_the_run_with_its_number():
    def work(group: Group) -> None:
        state = state_of([], forked=False)
        state.group = Group()  # as under torchrun: without shared memory
        state.compare_ranks(1)
        state.w[3] += group.rank
        state.compare_ranks(2)

    with pytest.raises(WorkerFault, match="rank 1 of 2 has another global model than the others"):
        launch(work, 2, LIMIT)


def test_the_digest_has_8_bytes_of_all_bits():
    state = state_of(["OWN", "OWN"], forked=False)
    state.compare_ranks(1)
    state.w[2] = -state.w[2]
    state.compare_ranks(2)
    state.b = torch.ones(1)
    state.compare_ranks(3)
    assert len(set(state.sent)) == 3
    assert {len(one) for one in state.sent} == {16}  # in hexadecimal digits


def test_ranks_that_cannot_differ_spend_no_time_on_it():
    alone, forked = state_of(["OWN"], forked=False), state_of(["0123", "OWN"], forked=True)
    alone.compare_ranks(1)
    forked.compare_ranks(1)
    assert alone.sent == forked.sent == []

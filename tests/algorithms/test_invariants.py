"""Mathematical facts about the papers' methods, on random vectors and on real rounds."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import experiments, least_squares, observe

from fedbench.algorithms import ecgr
from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.context import RoundPlan
from fedbench.algorithms.ecgr import select
from fedbench.algorithms.fedncv import LeaveOneOut, LeaveOthersOut
from fedbench.parallel.failures import WorkerFault

ROUNDS = ("rounds=3", "client.epochs=1", "client.lr=0.05", "eval.every=3")
PAIRS = st.tuples(st.integers(2, 9), st.integers(1, 6), st.integers(0, 10**6))


def direct_greedy(steps: np.ndarray, count: int) -> list[int]:
    """ECGR's selection on the vectors themselves."""
    total, chosen = np.zeros(steps.shape[1]), []
    for _ in range(count):
        left = [j for j in range(len(steps)) if j not in chosen]
        chosen.append(min(left, key=lambda j: np.linalg.norm(total + steps[j])))
        total = total + steps[chosen[-1]]
    return chosen


def picked(steps: np.ndarray, count: int, how: str) -> list[int]:
    return select(torch.from_numpy(steps @ steps.T), count, how)


@settings(deadline=None)
@given(PAIRS)
def test_selection_from_inner_products_is_selection_from_the_vectors(shape):
    tau, size, seed = shape
    steps = np.random.default_rng(seed).normal(size=(tau, size))
    for count in range(1, tau + 1):
        assert picked(steps, count, "greedy") == direct_greedy(steps, count)
        if tau > 2:  # two steps minus their mean are of the same length
            assert picked(steps, count, "centred") == direct_greedy(
                steps - steps.mean(axis=0), count
            )
        shortest = sorted(range(tau), key=lambda j: np.linalg.norm(steps[j]))[:count]
        assert picked(steps, count, "norm_topk") == shortest
        length = {
            how: np.linalg.norm(steps[picked(steps, count, how)].sum(axis=0))
            for how in ("greedy", "exact")
        }
        assert length["exact"] <= length["greedy"] + 1e-12


def test_exact_selection_can_be_better_and_ties_go_to_the_first():
    steps = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    assert picked(steps, 2, "greedy") == [0, 1]
    assert picked(steps, 2, "exact") == [1, 2]


def test_ecgr_sends_a_vector_of_the_same_length():
    """And it is the one that the equations give, from the steps as they were taken."""
    path, seen = [], []
    made = observe.every_step(
        lambda local: path.append(local.model.w.double().numpy()),
        "algo=fedecgr",
        *ROUNDS,
        *experiments.PLAIN,
    )

    def look(local, memory, before):
        steps = np.array(
            [after - earlier for earlier, after in pairwise([local.before.double().numpy(), *path])]
        )
        path.clear()
        rest = np.full(len(steps), 0.2)
        rest[direct_greedy(steps, max(1, len(steps) // 2))] = 1.0
        expected = rest @ steps * np.linalg.norm(steps.sum(axis=0)) / np.linalg.norm(rest @ steps)
        assert torch.allclose(local.update, torch.from_numpy(expected).float(), atol=1e-6)
        assert local.update.norm() == pytest.approx(local.raw_update.norm().item(), rel=1e-5)
        seen.append(not torch.equal(local.update, before))

    observe.after(made, "update", "ecgr", look)
    experiments.final_digest(made)
    assert len(seen) == 15
    assert any(seen)


@pytest.mark.parametrize("macos", [False, True])
def test_a_long_trace_lies_in_a_file(monkeypatch, macos):
    if macos:
        monkeypatch.delattr(os, "posix_fallocate")
    opened, from_file = [], torch.from_file
    monkeypatch.setattr(torch, "from_file", lambda *a, **k: opened.append(a) or from_file(*a, **k))
    digests = []
    for memory in ("2.0", "1e-9"):
        digests.append(
            experiments.final_digest(
                experiments.federation(
                    "algo=fedecgr", f"algo.memory={memory}", *ROUNDS, *experiments.PLAIN
                )
            )
        )
        assert bool(opened) == (memory == "1e-9")
    assert digests[0] == digests[1]


@pytest.mark.parametrize("place", ["_matrix", "_weighted_steps"])
def test_a_gpu_without_room_for_the_trace_is_told_how_to_have_it_in_a_file(monkeypatch, place):
    def fails(*given):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")

    monkeypatch.setattr(ecgr, place, fails)
    made = experiments.federation("algo=fedecgr", *ROUNDS, *experiments.PLAIN)
    words = r"not enough memory for 2.00 GiB more; .*; with a smaller algo.memory, ECGR's trace"
    with pytest.raises(WorkerFault, match=words):
        next(made.rounds())


class OnAGpu:
    """A trace of so many steps there, as far as its blocks ask."""

    device = torch.device("cuda")

    def __init__(self, steps: int):
        self.steps = steps

    def __len__(self) -> int:
        return self.steps


def test_a_gpu_takes_few_large_blocks():
    assert ecgr.block_width(torch.zeros(3, 2)) == ecgr.CPU_COLUMNS == 2048
    assert ecgr.block_width(OnAGpu(10)) == 2**20
    assert ecgr.block_width(OnAGpu(2**10)) == 2**16  # 2**26 elements are the most
    assert ecgr.block_width(OnAGpu(2**20)) == 2048


def ncv_weights(p: list[float], server: LeaveOthersOut) -> list[float]:
    count = len(p)
    return server.coefficients(
        RoundPlan(0, list(range(count)), [1] * count, p, p, 0.1, [1] * count, [1.0] * count)
    )


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=12), st.floats(0.0, 0.9))
def test_weights_of_fedncv_sum_to_what_they_should(sizes, beta):
    p = [size / sum(sizes) for size in sizes]
    assert sum(ncv_weights(p, LeaveOthersOut("literal"))) == pytest.approx(0.0, abs=1e-9)
    assert sum(ncv_weights(p, LeaveOthersOut("beta", beta))) == pytest.approx(1.0, abs=1e-9)
    assert sum(ncv_weights(p, LeaveOthersOut("beta", beta, normalise=False))) == pytest.approx(
        1 - beta, abs=1e-9
    )
    equal = [1 / len(p)] * len(p)
    assert ncv_weights(equal, LeaveOthersOut("literal")) == pytest.approx([0.0] * len(p), abs=1e-12)


def test_fedncv_as_printed_does_not_move_clients_of_equal_weight():
    made = experiments.federation(
        *ROUNDS, "algo=fedncv", "algo.variant=literal", "server.weights=uniform", *experiments.PLAIN
    )
    start = made.state.w.clone()
    for record in made.rounds():
        assert record.numbers["client_drift"] > 0.1
    assert torch.allclose(made.state.w, start, atol=1e-7)


def test_leaving_one_out_only_rescales():
    """mean_i (g_i - alpha mean_{j != i} g_j), example by example, is what one step of the engine
    sends.
    """
    made = least_squares.federation(
        Algorithm(modifiers={"loo": LeaveOneOut(0.3, "none")}), rounds=1, client={"steps": 1}
    )
    expected = 0.0
    for own, p in zip(made.shards, (0.2, 0.8), strict=True):
        each = torch.stack([made.trainer.gradient(one) for one in own.split(1)])
        others = (each.sum(dim=0) - each) / (len(each) - 1)
        expected -= 0.1 * p * (each - 0.3 * others).mean(dim=0)
    start = made.state.w.clone()
    for state in least_squares.states(made):
        assert torch.allclose(state.w - start, expected, atol=1e-12)


def test_the_generator_is_asked_for_labels_that_anybody_has_ever_shown():
    """Not only for those of the last cohort: with one client a round, the set of known labels
    grows.
    """
    words = (
        "algo=fedgen",
        "algo.generator_steps=2",
        "cohort=1",
        "rounds=4",
        "client.steps=2",
        *experiments.PLAIN,
    )
    made = experiments.federation(*words, "partition.alpha=0.01")
    shown = set()
    for record in made.rounds():
        for row in record.clients:
            seen = made.trainer.train.y[made.shards[row["client"]]].unique().tolist()
            shown |= set(seen)
        known = made.state.server["generator"]["labels"].nonzero().flatten().tolist()
        assert set(known) <= shown
        assert len(known) >= 2
    assert len(known) > 2

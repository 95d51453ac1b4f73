"""Partitions: exact cover, determinism, the law each one promises, bounded work and refusals that
say why.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.data_settings import refusal

from fedbench.core.errors import BadInput
from fedbench.core.fields import check_fields
from fedbench.core.seeding import numpy_generator
from fedbench.partitions import (
    Dirichlet,
    EcgrProgram,
    Iid,
    Labels,
    NonBalance,
    Pareto,
    Partition,
    heterogeneity,
    partition_hash,
)
from fedbench.partitions.base import TRIES
from fedbench.partitions.dirichlet import MOST_DRAWS
from fedbench.partitions.statistics import class_counts

TEN = np.arange(2000) % 10  # 200 samples of each of ten classes, in turn


def counts_of(
    partition: Partition, labels: np.ndarray = TEN, classes: int = 10, seed: int = 0
) -> np.ndarray:
    return class_counts(labels, classes, partition.draw(labels, classes, seed).client_indices)


def assert_exact_cover(parts: list[np.ndarray], samples: int) -> None:
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(samples))
    for part in parts:
        assert part.dtype == np.int64
        assert (np.diff(part) > 0).all()


KINDS = st.one_of(
    st.builds(Dirichlet, alpha=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e6]), cap=st.booleans()),
    st.builds(Iid),
    st.builds(Labels, per_client=st.integers(1, 6)),
    st.builds(NonBalance),
    st.builds(Pareto, shape=st.sampled_from([1e-3, 0.5, 1.16, 20.0, 1e6])),
)


@settings(max_examples=150, deadline=None)
@given(
    kind=KINDS,
    clients=st.integers(1, 25),
    min_samples=st.integers(1, 4),
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=200).map(np.array),
    seed=st.integers(0, 3),
)
def test_every_index_once_and_the_minimum_kept_or_refused_by_name(
    kind, clients, min_samples, labels, seed
):
    partition = replace(kind, clients=clients, min_samples=min_samples)
    try:
        parts = partition.draw(labels, 7, seed).client_indices
    except BadInput:
        # Dirichlet and iid give everything that fits; sets of labels may share too little to reach
        # a minimum.
        sets_of_labels = isinstance(kind, Labels | NonBalance | Pareto)
        if sets_of_labels or clients * min_samples > len(labels):
            return
        raise
    assert len(parts) == clients
    assert min(map(len, parts)) >= min_samples
    assert_exact_cover(parts, len(labels))


@pytest.mark.parametrize(
    "partition",
    [
        Dirichlet(),
        Dirichlet(alpha=0.01, min_samples=30),
        EcgrProgram(min_samples=30),
        Iid(),
        Labels(),
        NonBalance(),
        Pareto(),
    ],
    ids=str,
)
def test_the_split_is_a_function_of_labels_settings_and_seed(partition):
    first = partition_hash(partition.draw(TEN, 10, 0).client_indices)
    np.random.seed(1)  # the global generator plays no part
    assert partition_hash(partition.draw(TEN.copy(), 10, 0).client_indices) == first
    assert partition_hash(partition.draw(TEN, 10, 1).client_indices) != first
    assert partition_hash(partition.draw(TEN[::-1].copy(), 10, 0).client_indices) != first
    assert partition_hash(replace(partition, clients=11).draw(TEN, 10, 0).client_indices) != first


# Dirichlet and iid


def test_large_alpha_tends_to_iid():
    counts = counts_of(Dirichlet(alpha=1e6))
    assert np.abs(counts - 20).max() <= 1


def test_small_alpha_puts_a_class_on_one_client():
    counts = counts_of(Dirichlet(alpha=1e-3))
    assert (
        counts.max(axis=0) >= 200 - 10
    ).mean() >= 0.9  # up to ten samples may have gone to empty clients


def test_alpha_orders_the_heterogeneity():
    divergences = [
        np.mean(
            [
                heterogeneity(TEN, 10, Dirichlet(alpha=alpha).draw(TEN, 10, seed).client_indices)[
                    "label_divergence"
                ]
                for seed in range(5)
            ]
        )
        for alpha in (0.01, 0.1, 1.0, 10.0)
    ]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[0] > 0.5 > 0.05 > divergences[-1]


def test_dirichlet_shares_have_the_right_mean_and_variance():
    alpha, clients = 0.7, 5
    labels = np.repeat(np.arange(400), 1000)
    shares = counts_of(Dirichlet(clients=clients, alpha=alpha), labels, 400).T / 1000
    mean, concentration = 1 / clients, clients * alpha
    assert shares.mean() == pytest.approx(mean)
    assert shares.var() == pytest.approx(mean * (1 - mean) / (concentration + 1), rel=0.1)


def test_small_clients_are_topped_up_from_the_largest_and_it_is_counted():
    partition = Dirichlet(alpha=0.01, min_samples=64)
    first = partition.draw_counts(np.bincount(TEN), numpy_generator(0, "partition", 0)).counts
    drawn = partition.draw(TEN, 10, 0)
    counts = class_counts(TEN, 10, drawn.client_indices)
    before, after = first.sum(axis=1), counts.sum(axis=1)
    assert drawn.tries == TRIES
    assert drawn.moved == np.maximum(64 - before, 0).sum() > 0
    np.testing.assert_array_equal(after[before < 64], 64)
    gave = after < before
    assert before[gave].min() >= before[~gave].max()
    assert (counts[gave] <= first[gave]).all()


def test_a_draw_that_is_large_enough_is_left_alone():
    drawn = Dirichlet(alpha=100, min_samples=50).draw(TEN, 10, 0)
    assert (drawn.tries, drawn.moved) == (1, 0)


def test_iid_sizes_differ_by_one_and_classes_vary_as_in_a_random_sample():
    counts = counts_of(Iid(clients=30))
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert (
        0.5 < counts.var() / 6 < 1.5
    )  # about Poisson with mean 6.7, not the exact shares of a stratified split


# Sets of labels


@given(clients=st.integers(1, 40), per_client=st.integers(1, 10), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_labels_per_client_and_equal_shares_of_a_class(clients, per_client, seed):
    partition = Labels(clients=clients, per_client=per_client)
    if clients * per_client < 10:
        assert "must hold all 10 classes" in refusal(
            lambda: partition.draw(TEN, 10, seed).client_indices
        )
        return
    counts = counts_of(partition, seed=seed)
    np.testing.assert_array_equal((counts > 0).sum(axis=1), per_client)
    holders = (counts > 0).sum(axis=0)
    assert np.ptp(holders) <= 2
    for label in range(10):
        assert np.ptp(counts[counts[:, label] > 0, label]) <= 1


def test_label_sets_are_random():
    sets = {tuple(np.flatnonzero(counts_of(Labels(), seed=seed)[0])) for seed in range(10)}
    assert len(sets) > 5


@pytest.mark.parametrize(
    ("clients", "groups"),
    [(30, (3, 12, 15)), (10, (1, 4, 5)), (100, (10, 40, 50)), (3, (1, 1, 1)), (1, (1, 0, 0))],
)
@pytest.mark.parametrize(
    ("classes", "held"), [(10, (10, 5, 2)), (100, (100, 50, 20)), (2, (2, 1, 1))]
)
def test_nonbalance_counts(clients, groups, classes, held):
    labels = np.arange(20_000) % classes
    found = (counts_of(NonBalance(clients=clients), labels, classes) > 0).sum(axis=1)
    np.testing.assert_array_equal(found, np.repeat(held, groups))


@pytest.mark.parametrize("shape", [1e-3, 0.3, 1.16, 5.0])
def test_pareto_has_one_full_client_and_at_least_one_label_each(shape):
    found = np.array(
        [
            (counts_of(Pareto(clients=20, shape=shape), seed=seed) > 0).sum(axis=1)
            for seed in range(20)
        ]
    )
    np.testing.assert_array_equal(found.max(axis=1), 10)
    assert found.min() == 1 or shape == 5.0


def test_pareto_follows_its_law():
    # P(x > t) = t^-k above x_min: half of the draws lie below 2^(1/k) times the least possible one.
    labels = np.arange(100_000) % 1000
    numbers = (counts_of(Pareto(clients=41, shape=4.0), labels, 1000) > 0).sum(axis=1) / 1000
    least = numbers.min()
    assert np.median(numbers) / least == pytest.approx(2 ** (1 / 4), rel=0.1)


def test_classes_without_samples_are_dealt_to_nobody():
    labels = np.repeat([1, 4], 50)
    counts = counts_of(Labels(clients=10, per_client=1), labels, 7)
    np.testing.assert_array_equal(counts.sum(axis=1), 10)


def test_topping_up_stays_within_a_clients_labels():
    labels = np.repeat(np.arange(3), (40, 100, 300))
    partition = Labels(clients=30, per_client=2, min_samples=8)
    drawn = partition.draw(labels, 3, 0)
    counts = class_counts(labels, 3, drawn.client_indices)
    assert drawn.moved > 0
    assert counts.sum(axis=1).min() >= 8
    assert (counts > 0).sum(axis=1).max() <= 2
    assert_exact_cover(drawn.client_indices, len(labels))


# Refusals and bounds


@pytest.mark.parametrize(
    ("partition", "line"),
    [
        (Iid(clients=2001), "partition.clients=2001: must be at most 2000"),
        (Iid(min_samples=201), "partition.min_samples=201: must be at most 200"),
        (Labels(per_client=11), "partition.per_client=11: must be at most 10"),
        (Labels(clients=4), "partition.per_client=2: must be at least 3: 4 clients must hold all"),
    ],
    ids=str,
)
def test_impossible_requests_say_why(partition, line):
    assert refusal(lambda: partition.draw(TEN, 10, 0).client_indices).startswith(line)


@pytest.mark.parametrize(
    ("partition", "line"),
    [
        (Dirichlet(clients=0), "partition.clients=0: must be an integer of at least 1"),
        (Pareto(min_samples=0), "partition.min_samples=0: must be an integer of at least 1"),
        (Iid(local_test=1.0), "partition.local_test=1.0: must be at least 0 and below 1"),
        (Dirichlet(alpha=0.0), "partition.alpha=0.0: must be at least 1e-06"),
        (Dirichlet(alpha=float("nan")), "partition.alpha=nan: must be at least 1e-06"),
        (Dirichlet(alpha=float("inf")), "partition.alpha=inf: must be at most 1e+38"),
        (Labels(per_client=0), "partition.per_client=0: must be an integer of at least 1"),
        (Pareto(shape=0.0), "partition.shape=0.0: must be above 0"),
    ],
    ids=str,
)
def test_the_ranges_of_the_settings(partition, line):
    assert refusal(lambda: check_fields(partition, "partition")) == line


def test_a_minimum_that_sets_of_labels_cannot_reach_is_refused():
    labels = np.repeat([0, 1], (1990, 10))
    line = refusal(
        lambda: Labels(clients=10, per_client=1, min_samples=50).draw(labels, 2, 0).client_indices
    )
    assert line.startswith("partition.min_samples=50: ")


@pytest.mark.parametrize(
    "partition",
    [
        Dirichlet(alpha=1e-3),
        Dirichlet(alpha=1e6),
        Iid(min_samples=5),
        Labels(),
        NonBalance(),
        Pareto(),
    ],
    ids=str,
)
def test_ten_times_the_clients_are_at_most_ten_times_the_work(partition):
    parts: dict[int, list[np.ndarray]] = {}

    def draw(clients: int) -> None:
        labels = np.arange(5 * clients) % 10
        parts[clients] = replace(partition, clients=clients).draw(labels, 10, 0).client_indices

    assert calls_of(draw, 10_000) <= 10 * calls_of(draw, 1000)
    assert_exact_cover(parts[10_000], 50_000)


def calls_of(work: Callable[[int], None], argument: int) -> int:
    """How many functions are called: a measure of work that is the same on every machine."""
    calls = 0

    def note(frame: FrameType, event: str, given: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work(argument)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.realdata
def test_ecgr_setting_on_real_cifar(real_data):
    """Ten clients, alpha 0.01 and two batches of 128 each, the paper's hardest request."""
    file = real_data / "cifar10" / "train.npz"
    if not file.exists():
        pytest.skip("cifar10 is not in FEDBENCH_DATA")
    labels = np.load(file)["labels"]
    for seed in (0, 1, 42, 999, 2025):
        parts = (
            Dirichlet(clients=10, alpha=0.01, min_samples=256).draw(labels, 10, seed).client_indices
        )
        assert min(map(len, parts)) >= 256
        assert_exact_cover(parts, 50_000)
        assert heterogeneity(labels, 10, parts)["label_divergence"] > 0.5


# The split of ECGR's released program (github.com/NUDTPingLuo/ECGR, 2032f41): sizes that its own
# function gave, by dataset, alpha and seed. Its samples were compared as well, one by one.
SIZES_OF_THE_PROGRAM = {
    ("mnist", 0.01, 0): [6365, 2345, 9862, 6307, 12144, 256, 15565, 256, 1016, 5874],
    ("mnist", 1, 2025): [7669, 6031, 3719, 8456, 3061, 7893, 4968, 2866, 6244, 9043],
    ("cifar10", 0.01, 1): [256, 256, 5289, 5025, 13949, 13979, 10467, 256, 256, 256],
    ("cifar10", 0.01, 42): [9927, 4772, 9449, 5000, 9747, 567, 4981, 5035, 256, 256],
    ("cifar100", 0.01, 42): [4833, 7346, 5197, 6188, 3995, 4679, 3128, 3768, 5813, 4944],
}


@pytest.mark.realdata
@pytest.mark.parametrize(("case", "sizes"), SIZES_OF_THE_PROGRAM.items(), ids=str)
def test_the_split_of_ecgrs_program(real_data, case, sizes):
    name, alpha, seed = case
    file = real_data / name / "train.npz"
    if not file.exists():
        pytest.skip(f"{name} is not in FEDBENCH_DATA")
    labels = np.load(file)["labels"].astype(np.int64)
    split = EcgrProgram(alpha=alpha).draw(labels, int(labels.max()) + 1, seed)
    assert [len(part) for part in split.client_indices] == sizes


def test_ecgrs_program_fills_small_clients_with_the_first_samples_of_the_largest():
    partition = EcgrProgram(clients=4, alpha=0.05, min_samples=150)
    before = replace(partition, min_samples=1).draw(TEN, 10, 2)
    after = partition.draw(TEN, 10, 2)
    sizes = [len(part) for part in before.client_indices]
    small = [client for client, size in enumerate(sizes) if size < 150]
    assert small
    assert after.moved >= sum(150 - sizes[client] for client in small)
    assert all(len(after.client_indices[client]) == 150 for client in small)
    kept = np.concatenate(after.client_indices)
    assert len(kept) == len(np.unique(kept)) == sum(sizes)  # moved, not lost or repeated
    assert len(TEN) - 4 * 10 <= len(kept) <= len(TEN)  # rounded down, a sample a class and client
    gift = np.setdiff1d(after.client_indices[small[0]], before.client_indices[small[0]])
    assert len(np.unique(TEN[gift])) == 1  # the largest client's first class


def test_ecgrs_program_refuses_what_it_cannot_share():
    too_many = EcgrProgram(clients=10, min_samples=300)
    assert refusal(lambda: too_many.draw(TEN, 10, 0)).startswith(
        "partition.min_samples=300: must be"
    )
    tiny = EcgrProgram(clients=2, alpha=1e-9, min_samples=1)
    assert refusal(lambda: tiny.draw(TEN, 10, 0)).startswith(
        "partition.alpha=1e-09: must be larger"
    )


@given(
    alpha=st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e6]),
    clients=st.integers(1, 25),
    totals=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any),
    seed=st.integers(0, 10**6),
)
def test_a_client_at_the_mean_gets_nothing_of_the_classes_that_follow(alpha, clients, totals, seed):
    counts = np.array(totals)
    table = Dirichlet(clients=clients, alpha=alpha, cap=True).draw_counts(
        counts, numpy_generator(seed, "partition", 0)
    )
    np.testing.assert_array_equal(table.counts.sum(axis=0), counts)
    before = np.cumsum(table.counts, axis=1) - table.counts  # what a client had before each class
    assert not table.counts[before >= counts.sum() / clients].any()


def test_the_cap_takes_from_the_largest_client():
    plain, capped = (
        counts_of(Dirichlet(clients=10, alpha=0.1, cap=cap)).sum(axis=1) for cap in (False, True)
    )
    assert capped.max() < plain.max()
    assert capped.sum() == plain.sum() == len(TEN)


@settings(max_examples=30)
@given(
    alpha=st.sampled_from([0.1, 0.5, 5.0]),
    clients=st.integers(1, 8),
    share=st.sampled_from([0.1, 0.5, 0.8]),
    cap=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_smallest_client_has_its_share_of_the_mean_or_the_split_is_refused(
    alpha, clients, share, cap, seed
):
    partition = Dirichlet(clients=clients, alpha=alpha, least_share=share, cap=cap)
    refused = ""
    try:
        split = partition.draw(TEN, 10, seed)
    except BadInput as error:
        refused = str(error)
    if refused:
        assert f"partition.least_share={share}: must be smaller" in refused
        assert f"of {MOST_DRAWS} draws none" in refused
        return
    assert_exact_cover(split.client_indices, len(TEN))
    assert min(map(len, split.client_indices)) >= share * len(TEN) / clients
    assert split.moved == 0
    # It is the first of the same draws that is large enough.
    loose = replace(partition, least_share=0.0)
    table = loose.draw_counts(np.bincount(TEN), numpy_generator(seed, "partition", split.tries - 1))
    np.testing.assert_array_equal(table.counts, class_counts(TEN, 10, split.client_indices))


def test_a_share_of_nothing_is_the_plain_partition():
    plain = Dirichlet(alpha=0.1).draw(TEN, 10, 3)
    stated = Dirichlet(alpha=0.1, cap=False, least_share=0.0).draw(TEN, 10, 3)
    assert partition_hash(plain.client_indices) == partition_hash(stated.client_indices)


def test_an_impossible_share_is_refused_after_a_bounded_number_of_draws(monkeypatch):
    draws, draw_counts = [], Dirichlet.draw_counts
    monkeypatch.setattr(
        Dirichlet, "draw_counts", lambda *given: draws.append(1) or draw_counts(*given)
    )
    with pytest.raises(BadInput, match="the best gave 0"):
        Dirichlet(clients=100, alpha=1e-3, least_share=1.0).draw(TEN, 10, 0)
    assert len(draws) == MOST_DRAWS

"""What clients send is summed in client order, exactly, by any number of ranks and on both ways."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from support.waiting import LIMIT
from torch import Tensor

from fedbench.parallel import exchange as module
from fedbench.parallel.exchange import VECTOR, Exchange, gather, share_cuts, weighted_sum
from fedbench.parallel.group import Group
from fedbench.parallel.processes import launch

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Nothing, one element, around a vector for each of one to four ranks, and more.
WIDTHS = (0, 1, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 1000, 1024)


def exchange_rows(group: Group, owners: list[int], rows: Tensor) -> tuple[Exchange, list[int]]:
    """An exchange to which every rank has sent its rows, and which rows are this rank's."""
    exchange = Exchange(group, owners, rows.shape[1], rows.dtype)
    mine = [client for client, owner in enumerate(owners) if owner == group.rank]
    exchange.mine.copy_(rows[mine])
    exchange.send()
    return exchange, mine


def serial_sum(total: Tensor, rows: Tensor, weights: list[float]) -> Tensor:
    """The same sum in one process, as plainly as it can be written."""
    result = total.clone()
    for row, weight in zip(rows, weights, strict=True):
        result.add_(row, alpha=weight)
    return result


def check_sums(group: Group, owners: list[int], width: int, dtype: torch.dtype, seed: int) -> None:
    """Sums of some columns, continued in a second exchange, have the bits of one process."""
    chance = random.Random(f"{owners} {width} {dtype} {seed}")
    generator = torch.Generator().manual_seed(chance.getrandbits(32))
    cut = chance.randint(0, width)
    spans = [slice(0, cut), slice(cut, width)]
    initial = torch.randn(width, generator=generator).to(dtype)
    expected, measured = initial.clone(), initial.clone()
    for _ in range(2):
        # Of very different sizes, so that another order of the additions gives other bits.
        scales = torch.tensor([10.0 ** chance.randint(-3, 3) for _ in owners])
        values = torch.randn(len(owners), width, generator=generator)
        rows = (scales.view(-1, 1) * values).to(dtype)
        weights = [chance.uniform(-1, 1) for _ in owners]
        exchange, mine = exchange_rows(group, owners, rows)
        for span in spans:
            exchange.add_to(measured[span], span, weights)
            expected[span] = serial_sum(expected[span], rows[:, span], weights)
        assert torch.equal(measured, expected), (owners, width, dtype, seed)
    assert torch.equal(exchange.rows(), rows)
    assert torch.equal(gather(group, rows[mine], owners), rows)


def many_sums(group: Group) -> None:
    """All widths, all dtypes, ranks without a client; then random cases, equal on all ranks."""
    owners = [client % group.size for client in range(7)]
    for number, width in enumerate(WIDTHS):
        check_sums(group, owners, width, DTYPES[number % len(DTYPES)], seed=0)
    for dtype in DTYPES:
        check_sums(group, owners, 333, dtype, seed=0)
    last = group.size - 1
    for few in ([], [0], [last], [last] * 5, [0, last, 0]):  # ranks without a client
        for width in (3, 300):
            check_sums(group, few, width, torch.float32, seed=1)
    chance = random.Random(group.size)
    for seed in range(12):
        clients = chance.randint(1, 12)
        owners = [chance.randrange(group.size) for _ in range(clients)]
        check_sums(group, owners, chance.randint(1, 3000), chance.choice(DTYPES), seed)


def sums_in_blocks(group: Group) -> None:
    """A weighted sum over blocks of clients."""
    rows = torch.randn(23, 700, generator=torch.Generator().manual_seed(0))
    owners = [client * 5 % 7 % group.size for client in range(23)]
    weights = [0.1 * client for client in range(23)]

    def write(client: int, row: Tensor) -> None:
        assert owners[client] == group.rank
        row.copy_(rows[client])

    measured = weighted_sum(group, owners, weights, 700, torch.float32, write)
    assert torch.equal(measured, serial_sum(torch.zeros(700), rows, weights))


def without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under torchrun, where ranks may be on several machines."""
    monkeypatch.setattr(Group, "shared_tensor", lambda *rest: None)


@pytest.mark.parametrize("workers", [1, 2, 3, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("way", ["memory", "gloo", "gloo in pieces"])
@pytest.mark.parametrize("work", [many_sums, sums_in_blocks])
def test_what_clients_send_is_summed_exactly(
    monkeypatch: pytest.MonkeyPatch, workers: int, way: str, work: Callable[[Group], None]
) -> None:
    monkeypatch.setattr(module, "SUM_ELEMENTS", 5 * 700)  # a weighted sum has several blocks
    if way != "memory":
        without_shared_memory(monkeypatch)
    if way == "gloo in pieces":
        monkeypatch.setattr(module, "PIECE_ELEMENTS", 2000)
    launch(work, workers, timeout=LIMIT)


def test_shares_are_cut_between_vectors_and_cover_all_columns() -> None:
    for ranks in range(1, 20):
        for width in (*WIDTHS, 61_706, 199_210):
            cuts = share_cuts(width, ranks)
            widths = [stop - start for start, stop in pairwise(cuts)]
            assert (len(widths), cuts[0], cuts[-1]) == (ranks, 0, width)
            assert all(cut % VECTOR == 0 or cut == width for cut in cuts)
            assert max(widths) == widths[0] < width / ranks + VECTOR
            assert min(widths) >= 0


def count_received(monkeypatch: pytest.MonkeyPatch, received: list[int]) -> None:
    """Note how many elements of others every collective leaves on this rank."""
    scatter, collect = dist.all_to_all_single, dist.all_gather_single

    def all_to_all_single(
        output: Tensor, given: Tensor, output_split_sizes: list[int], input_split_sizes: list[int]
    ) -> None:
        received.append(len(output) - output_split_sizes[dist.get_rank()])
        scatter(output, given, output_split_sizes, input_split_sizes)

    def all_gather_single(output: Tensor, given: Tensor) -> None:
        received.append(output.numel() - given.numel())
        collect(output, given)

    monkeypatch.setattr(dist, "all_to_all_single", all_to_all_single)
    monkeypatch.setattr(dist, "all_gather_single", all_gather_single)


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("width", [61_706, 199_210], ids=["lenet", "mlp"])
def test_a_rank_receives_its_share_of_the_rows_and_the_sums(
    monkeypatch: pytest.MonkeyPatch, workers: int, width: int
) -> None:
    without_shared_memory(monkeypatch)
    cohort = 10
    received: list[int] = []
    count_received(monkeypatch, received)

    def work(group: Group) -> None:
        owners = [client % group.size for client in range(cohort)]
        exchange, _ = exchange_rows(group, owners, torch.ones(cohort, width))
        exchange.add_to(torch.zeros(width), slice(0, width), [1.0] * cohort)
        assert len(received) == 2
        padding = (cohort + group.size) * VECTOR
        assert sum(received) <= (cohort / group.size + 1) * width + padding
        others = cohort - owners.count(group.rank)  # own rows and sums do not travel
        assert sum(received) <= (others + group.size - 1) / group.size * width + padding

    launch(work, workers, timeout=LIMIT)

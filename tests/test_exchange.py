"""What clients send is summed in client order, exactly, by any number of ranks and on both ways."""

from __future__ import annotations

import pytest
import torch

from fedbench.exchange import Exchange, gather
from fedbench.parallel import Group, launch


def several_sums(group) -> None:
    """Narrow and wide columns, summed one after the other, against the same sums in one process."""
    everything = torch.randn(7, 1000, generator=torch.Generator().manual_seed(0))
    owners = [client % group.size for client in range(7)]
    weights = [0.1 * client for client in range(7)]
    for _ in range(20):
        exchange = Exchange(group, owners, 1000, torch.float32)
        mine = torch.tensor([client for client in range(7) if owners[client] == group.rank], dtype=torch.int64)
        exchange.mine.copy_(everything[mine])
        exchange.send()
        for columns in (slice(0, 3), slice(3, 500), slice(500, 1000)):
            total = torch.zeros(columns.stop - columns.start)
            for row, weight in zip(everything, weights, strict=True):
                total.add_(row[columns], alpha=weight)
            measured = torch.zeros(columns.stop - columns.start)
            exchange.add_to(measured, columns, weights)
            assert torch.equal(measured, total)
        assert torch.equal(gather(group, everything[mine], owners), everything)


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("shared", [True, False], ids=["memory", "gloo"])
def test_what_clients_send_is_summed_exactly(monkeypatch, workers, shared):
    if not shared:
        monkeypatch.setattr(Group, "shared_tensor", lambda *rest: None)
    launch(several_sums, workers, timeout=60)

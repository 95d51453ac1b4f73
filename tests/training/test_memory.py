"""A run that certainly does not fit into memory is refused before anything is written: the kernel
would kill it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedbench.training import memory

GIBIBYTE = 2**30
QUICK = ("rounds=1", "client.epochs=1", "partition.clients=4")
MEMINFO = "MemTotal: 8388608 kB\nMemFree: 1024 kB\nMemAvailable: 4194304 kB\nSwapFree: {} kB\n"


def machine(folder: Path, memberships: str, files: dict[str, str], swap: int = 0) -> int | None:
    """What is available on a machine with 4 GiB left, these control groups and this swap space."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/meminfo").write_text(MEMINFO.format(swap))
    (folder / "proc/self/cgroup").write_text(memberships)
    for name, content in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return memory.available(folder / "proc", folder / "groups")


def second(path: str, limit: str, used: int, cached: int) -> dict[str, str]:
    return {
        f"{path}/memory.max": f"{limit}\n",
        f"{path}/memory.current": f"{used}\n",
        f"{path}/memory.stat": f"anon {used - cached}\nfile {cached}\n",
    }


def test_the_machine_alone(tmp_path):
    assert machine(tmp_path, "0::/\n", {}) == 4 * GIBIBYTE
    assert memory.available(tmp_path / "nowhere", tmp_path) is None


def test_swap_counts(tmp_path):
    assert machine(tmp_path, "0::/\n", {}, swap=1048576) == 5 * GIBIBYTE


def test_the_narrowest_group_of_the_second_version_decides(tmp_path):
    files = second("a/b", "max", 5, 1) | second("a", str(3 * GIBIBYTE), 2 * GIBIBYTE, GIBIBYTE)
    assert machine(tmp_path, "0::/a/b\n", files) == 2 * GIBIBYTE


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    assert machine(tmp_path, "0::/../outer\n", second(".", str(GIBIBYTE), 0, 0)) == GIBIBYTE


def test_a_group_of_the_first_version(tmp_path):
    files = {
        "memory/job/memory.limit_in_bytes": str(2 * GIBIBYTE),
        "memory/job/memory.usage_in_bytes": str(GIBIBYTE),
        "memory/job/memory.stat": "cache 1\ntotal_cache 4096\n",
    }
    assert machine(tmp_path, "5:cpu:/\n4:memory,hugetlb:/job\n0::/\n", files) == GIBIBYTE + 4096


def test_this_machine_has_memory():
    assert memory.available() > 2**20


def test_a_model_that_does_not_fit_is_never_built(fedbench, tmp_path, monkeypatch):
    """The digits' network has 55,210 parameters."""
    built = []
    original = torch.nn.Linear.__init__

    def watched(self, *arguments, **settings):
        original(self, *arguments, **settings)
        built.append(self.weight.device.type)

    monkeypatch.setattr(torch.nn.Linear, "__init__", watched)
    monkeypatch.setattr(memory, "available", lambda: 3 * 4 * 55_210 - 1)
    refused = fedbench(*QUICK)
    assert refused.status == 2
    assert refused.err.count("\n") == 1
    assert (
        "too large for this machine's memory (a model of 55,210 parameters takes at least"
        in refused.err
    )
    assert set(built) == {"meta"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "vectors"), [((), 15), (("client.momentum=0.9",), 18), (("cohort=1",), 11)]
)
def test_workers_that_do_not_fit_are_refused(fedbench, tmp_path, monkeypatch, words, vectors):
    """Each has three vectors of parameters, and one that trains a client two more. A finished run
    is shown anyway.
    """
    setting = (*QUICK, *words, "runtime.workers=3")
    for room, status in (
        (4 * 55_210 * vectors - 1, 2),
        (4 * 55_210 * vectors, 0),
        (4 * 55_210 * 3, 0),
    ):
        monkeypatch.setattr(memory, "available", lambda room=room: room)
        ended = fedbench(*setting)
        assert ended.status == status, ended.err
        if status:
            assert (
                "training 55,210 parameters with 3 workers (runtime.workers) takes at least"
                in ended.err
            )
            assert list(tmp_path.iterdir()) == []
    assert "finished already" in ended.out

"""Two machines under torchrun: the same numbers as one process, and clear ends of what fails."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Outcome
from support import inject
from support.faulty_runs import SETTING, result
from support.two_machines import Node, NotPossible, TwoMachines, show, wait_until

from fedbench.data.arrays import write_npz

pytestmark = pytest.mark.heavy
LONG = 300  # seconds: how long a busy machine may take for something short


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[TwoMachines]:
    """Two machines with a cable between them."""
    pair = TwoMachines(tmp_path / "logs")
    try:
        try:
            pair.create()
        except NotPossible as reason:
            pytest.skip(f"no network namespaces: {reason}")
        yield pair
    finally:
        pair.remove()


@pytest.mark.parametrize(("rendezvous", "ranks"), [("static", 1), ("c10d", 1), ("static", 2)])
def test_two_machines_have_the_numbers_of_one_process(
    machines: TwoMachines,
    fedbench: Callable[..., Outcome],
    tmp_path: Path,
    data_root: Path,
    rendezvous: str,
    ranks: int,
) -> None:
    words = (*SETTING, "algo=scaffold")
    nodes = machines.start(
        *words,
        "results=both",
        ranks=ranks,
        rendezvous=rendezvous,
        folders=(tmp_path, tmp_path),
        data=(data_root, data_root),
    )
    machines.end(nodes, LONG)
    assert [node.process.returncode for node in nodes] == [0, 0], show(nodes)
    (folder,) = (tmp_path / "both").glob("runs/*/*/")
    assert json.loads((folder / "summary.json").read_text())["workers"] == 2 * ranks
    serial = fedbench(*words, "runtime.workers=1", "results=serial")
    assert result(folder) == result(serial.folder)


def only_message(node: Node) -> str:
    """The only line with which fedbench ended on a machine."""
    lines = [line for line in node.err.splitlines() if line.startswith("fedbench: ")]
    assert len(lines) == 1, f"{len(lines)} messages\n{node}"
    assert "Traceback" not in node.err, str(node)
    return lines[0]


def worker_statuses(node: Node) -> set[str]:
    """The exit statuses of a node's ranks, as its agent reports them; its own is always 1."""
    return set(re.findall(r"^ *exitcode *: (-?\d+)", node.agent, re.MULTILINE))


def tiny_mnist(root: Path) -> Path:
    """A data root with an MNIST of 40 training and 20 test images."""
    for name, size in (("train", 40), ("test", 20)):
        images = np.random.default_rng(size).integers(0, 256, (size, 28, 28), dtype=np.uint8)
        (root / "mnist").mkdir(parents=True, exist_ok=True)
        write_npz(root / "mnist" / f"{name}.npz", images=images, labels=np.arange(size) % 10)
    return root


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_a_cut_cable_ends_both_machines_after_the_timeout(
    machines: TwoMachines, tmp_path: Path, data_root: Path, rendezvous: str
) -> None:
    """It is cut while both ranks train, and only then does the limit count."""
    fault = {"place": "training", "call": 1, "rank": "every", "kind": "until cut"}
    nodes = machines.start(
        *SETTING,
        "algo=scaffold",
        "runtime.timeout=5",
        program=(inject.__file__, json.dumps(fault)),
        rendezvous=rendezvous,
        folders=(tmp_path, tmp_path),
        data=(data_root, data_root),
    )

    def both_train() -> bool:
        assert all([node.running() for node in nodes]), show(nodes)  # noqa: C419
        return len(list(tmp_path.glob("here-*"))) == 2

    assert wait_until(both_train, LONG), show(nodes)
    machines.cut()
    (tmp_path / "cut").touch()
    machines.end_ranks(nodes, LONG)
    for node in nodes:
        line = only_message(node)
        assert "runtime.timeout=5: " in line or "lost" in line, show(nodes)
    machines.end(nodes, LONG)
    for node in nodes:
        assert node.process.returncode != 0, show(nodes)
        if rendezvous == "static":  # an agent of c10d that lost the other one forgets its ranks
            assert worker_statuses(node) == {"1"}, show(nodes)


def test_missing_data_is_reported_on_both_machines(machines: TwoMachines, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    data = (tiny_mnist(tmp_path / "data"), empty)
    words = ("data=mnist", "model=lenet", "partition.clients=4", "rounds=2", "runtime.timeout=600")
    nodes = machines.start(*words, folders=(tmp_path, tmp_path), data=data)
    machines.end(nodes, LONG)  # half of the timeout
    for node in nodes:
        assert node.process.returncode != 0, show(nodes)
        assert worker_statuses(node) == {"2"}, show(nodes)
        line = only_message(node)
        for word in ("data=mnist", "rank 1", "machine-2", str(empty)):
            assert word in line, show(nodes)
    assert not (tmp_path / "results").exists()


def test_results_in_different_folders_are_refused(
    machines: TwoMachines,
    tmp_path: Path,
    data_root: Path,
) -> None:
    folders = (tmp_path / "first", tmp_path / "second")
    for folder in folders:
        folder.mkdir()
    words = (*SETTING, "algo=scaffold", "results=mine", "runtime.timeout=600")
    nodes = machines.start(*words, folders=folders, data=(data_root, data_root))
    machines.end(nodes, LONG)
    for node in nodes:
        assert node.process.returncode != 0, show(nodes)
        assert worker_statuses(node) == {"2"}, show(nodes)
        line = only_message(node)
        assert line.startswith("fedbench: rank 1 on host machine-2: results="), show(nodes)
        assert "all machines must see the same folder" in line, show(nodes)
    left = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert not left, left

"""Two machines under torchrun: the same numbers as one process, and clear ends when one is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Outcome
from faults_helper import SETTING, result
from two_machines import NotPossible, TwoMachines, show

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

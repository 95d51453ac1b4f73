"""A rank ends with torchrun, from its first moment on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.faulty_runs import members
from support.waiting import wait_until

from fedbench.core import caller

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
# An agent starts a rank in a process group of its own, as torchrun does, and waits.
AGENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-m", "fedbench"], start_new_session=True).wait()
"""
# In place of the first package that takes long to import.
SLOW = """
import os, pathlib, time
pathlib.Path("rank.part").write_text(str(os.getpid()))
os.rename("rank.part", "rank")
time.sleep(3600)
"""


def test_a_rank_that_is_still_importing_ends_with_torchrun(tmp_path):
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").write_text(SLOW)
    path = os.pathsep.join([str(tmp_path), *sys.path])
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT],
        cwd=tmp_path,
        env={**os.environ, **TORCHRUN, "PYTHONPATH": path},
    )
    file = Path(tmp_path / "rank")
    wait_until(lambda: file.exists() or agent.poll() is not None)
    rank = int(file.read_text())
    try:
        agent.kill()
        agent.wait()
        wait_until(lambda: not members(rank), seconds=60)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(rank, signal.SIGKILL)


@pytest.mark.parametrize(("parents", "status"), [([7, 7], None), ([7, 1], 1)])
def test_a_rank_whose_torchrun_died_before_it_could_ask_ends(monkeypatch, parents, status):
    ended: list[int] = []
    asked = []

    class Library:
        def prctl(self, *arguments: int) -> None:
            asked.append(arguments)

    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(caller.ctypes, "CDLL", lambda name: Library())
    monkeypatch.setattr(caller.os, "getppid", lambda: parents.pop(0))
    monkeypatch.setattr(caller.os, "_exit", ended.append)
    caller.end_with_torchrun()
    assert asked == [(1, signal.SIGKILL)]
    assert ended == ([] if status is None else [status])


def test_any_other_process_is_left_alone(monkeypatch):
    monkeypatch.setattr(caller.ctypes, "CDLL", None)  # whoever called it would fail
    caller.end_with_torchrun()

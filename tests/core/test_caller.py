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
        wait_until(lambda: not members(rank))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(rank, signal.SIGKILL)


@pytest.mark.parametrize(("parents", "status"), [([7, 7], None), ([7, 1], 1)])
def test_a_rank_whose_torchrun_died_before_it_could_ask_ends(monkeypatch, capfd, parents, status):
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
    line = "torchrun has ended before this rank began: the rank ends, too\n"
    assert capfd.readouterr().err == ("" if status is None else line)


# A process to which orphans go, as they go to init elsewhere, starts an agent with torchrun's
# variables; that starts a rank in a session of its own, which is Python once there is a line to
# read. The agent is no Python: the variables alone show that it stands between torchrun and a rank.
REAPER = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
subprocess.Popen(["env", *sys.argv[2:], "sh", "-c", sys.argv[1]])
sys.stdin.read()
"""
AGENT_OF_A_LATE_RANK = f"""
setsid sh -c 'read line < go; exec {sys.executable} -m fedbench' &
echo $$ $!
wait
"""


@pytest.mark.parametrize("dies", [True, False])
def test_a_rank_whose_torchrun_died_before_its_first_look_ends(tmp_path, dies):
    """`hydra` shows whether it got past that look."""
    (tmp_path / "hydra").mkdir()
    (tmp_path / "hydra" / "__init__.py").write_text(SLOW)
    os.mkfifo(tmp_path / "go")
    variables = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "run"}
    words = [AGENT_OF_A_LATE_RANK, *(f"{name}={value}" for name, value in variables.items())]
    reaper = subprocess.Popen(
        [sys.executable, "-c", REAPER, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    agent, rank = map(int, reaper.stdout.readline().split())
    try:
        if dies:
            os.kill(agent, signal.SIGKILL)
            wait_until(lambda: parent_of(rank) == reaper.pid)
        (tmp_path / "go").write_text("\n")
        wait_until(lambda: (tmp_path / "rank").exists() or not members(rank))
        assert (tmp_path / "rank").exists() != dies
    finally:
        for process in (rank, agent):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        reaper.communicate()


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_who_takes_over_from_torchrun_is_recognised(monkeypatch):
    """This process has loaded PyTorch as torchrun has; `sleep` has not, as init has not."""
    sleeping = subprocess.Popen(["sleep", "3600"])
    try:
        assert not caller.took_over_from_torchrun(sleeping.pid)  # mpirun may have started it
        monkeypatch.setenv(caller._RUN_ID, "run")
        assert caller.took_over_from_torchrun(sleeping.pid)
        assert not caller.took_over_from_torchrun(os.getpid())
    finally:
        sleeping.kill()
        sleeping.wait()
    assert not caller.took_over_from_torchrun(sleeping.pid)  # nothing is known of it


def test_any_other_process_is_left_alone(monkeypatch):
    monkeypatch.setattr(caller.ctypes, "CDLL", None)  # whoever called it would fail
    caller.end_with_torchrun()

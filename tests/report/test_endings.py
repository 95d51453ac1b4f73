"""Commands that make tables and cannot go on: one line, the status of its kind, and no process that
waits for ever.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest
from support import study_small

from fedbench.core.errors import BadInput
from fedbench.report import cli

PLANNED = ("--only", "small/table1", "--results", "results")


@pytest.fixture(autouse=True)
def small_studies(tmp_path, monkeypatch):
    study_small.use(study_small.write_configuration(tmp_path / "conf"), monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})  # a pool needs two


def be_killed(*given: object, **named: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def one_line(capfd) -> str:
    (line,) = capfd.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("place", ["running.plan.settle_jobs", "output.render.render"])
def test_a_process_that_is_killed_ends_it(place, monkeypatch, capfd):
    monkeypatch.setattr(f"fedbench.report.{place}", be_killed)
    monkeypatch.setattr("fedbench.report.engine.run_missing", lambda *_: None)
    assert study_small.reproduce(*PLANNED) == 1
    assert (
        one_line(capfd)
        == "fedbench-tables: a process was ended by the system (it does that when memory runs"
        " out); the same command goes on"
    )


def full_disk(*_) -> None:
    raise OSError(28, os.strerror(28), "results/tables/x.md")


def terminated(*_) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def refused(*_) -> None:
    raise BadInput("--only=x: no such experiment")


ENDINGS = [
    (full_disk, 1, "the disk is full (No space left on device, results/tables/x.md)"),
    (terminated, 130, "interrupted; the same command goes on"),
    (refused, 2, "--only=x: no such experiment"),
]


@pytest.mark.parametrize(("what", "status", "line"), ENDINGS)
def test_both_commands_say_why_in_one_line(what, status, line, monkeypatch, capfd):
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("fedbench.report.engine.make_plans", what)
    assert study_small.reproduce(*PLANNED) == status
    assert line in one_line(capfd)
    monkeypatch.setattr("fedbench.report.cli.kept_plans", what)
    monkeypatch.setattr(sys, "argv", ["fedbench-tables", "render", "results"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == status
    assert line in one_line(capfd)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert not os.path.exists("results")


def test_what_nobody_expected_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("fedbench.report.engine.make_plans", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        study_small.reproduce(*PLANNED)

"""What a person sees: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys

import pytest
import torch
from support.run_files import rows, summary

from fedbench import cli as program
from fedbench.runs import console
from fedbench.runs.console import Progress
from fedbench.training.evaluation import Score
from fedbench.training.round_metrics import Record

QUICK = ("logger=none", "client.epochs=1", "partition.clients=4")


def on_a_terminal(arguments: tuple[str, ...], interrupt_at: str = "") -> tuple[int, str]:
    """Run the command in a forked process with a terminal of its own; exit status and everything it
    printed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  (pytest has replaced the real one)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["fedbench", *arguments]
        try:
            program.main()
        except SystemExit as ended:
            sys.stdout.flush()
            os._exit(ended.code)
        finally:
            os._exit(99)
    printed = ""
    while True:
        try:
            printed += os.read(terminal, 4096).decode(errors="replace")
        except OSError:  # the other side has closed it
            break
        if interrupt_at and interrupt_at in printed:
            os.kill(pid, signal.SIGINT)
            interrupt_at = ""
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), printed


def test_a_terminal_gets_a_bar(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    status, printed = on_a_terminal((*QUICK, "rounds=5", "runtime.workers=2"))
    assert status == 0, printed
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed)
    assert "5/5" in plain
    assert re.search(r"accuracy \d+\.\d\d %  [\d,]+ samples/s", plain)
    assert re.search(r"\d:\d\d:\d\d", plain)
    assert plain.strip().splitlines()[-1].startswith("run: results/runs/")


def test_an_interruption_gives_the_cursor_back(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    status, printed = on_a_terminal(
        (*QUICK, "rounds=100000", "runtime.workers=2"), interrupt_at="samples/s"
    )
    assert status == 130, printed
    assert printed.rindex("\x1b[?25h") > printed.rindex("\x1b[?25l")
    assert "resumes from the last checkpoint" in printed


@pytest.mark.parametrize(("every", "done"), [(1, 0), (3, 0), (3, 6)])
def test_the_rate_is_that_of_all_rounds_of_this_process(monkeypatch, capsys, every, done):
    """Also where not all of them are evaluated, and after a resume."""
    clock = [100.0]
    monkeypatch.setattr(console.time, "perf_counter", lambda: clock[0])
    progress = Progress(12, done, 50 * done)
    for number in range(done + 1, 13):
        clock[0] += 2.0
        score = Score(0.5, 1.0, torch.zeros(1)) if number % every == 0 else None
        progress.show(Record(number, {"gradients": 50 * number, "train_loss": 1.0}, score=score))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == (12 - done) // every
    assert all("  25 samples/s  " in line for line in lines)
    assert lines[-1].endswith("0:00:00 left")


def test_the_clients_own_tests_are_reported(fedbench):
    run = fedbench(*QUICK, "rounds=2", "partition.local_test=0.3", "data.subset=60")
    facts, last = summary(run.folder), rows(run.folder)[-1]
    for stage in ("before", "after"):
        for name in (f"local_{stage}_accuracy", f"local_{stage}_accuracy_weighted"):
            assert facts[name] == float(last[name])
    before, after = (100 * facts[f"local_{stage}_accuracy"] for stage in ("before", "after"))
    told = f"clients' own tests: {before:.2f} % as received, {after:.2f} % after local training"
    assert f"{told} (client mean)\n" in run.out


def test_elsewhere_plain_lines(fedbench):
    run = fedbench(*QUICK, "rounds=3")
    lines = [line for line in run.out.splitlines() if line.startswith("round ")]
    assert len(lines) == 3
    assert re.fullmatch(
        r"round 3/3  accuracy [\d.]+ %  train loss [\d.]+  [\d,]+ samples/s  0:00:00 left",
        lines[-1],
    )
    assert "\x1b" not in run.out

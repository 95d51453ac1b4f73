"""What a person sees: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import signal
import sys

from fedbench import cli as program

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


def test_elsewhere_plain_lines(fedbench):
    run = fedbench(*QUICK, "rounds=3")
    lines = [line for line in run.out.splitlines() if line.startswith("round ")]
    assert len(lines) == 3
    assert re.fullmatch(
        r"round 3/3  accuracy [\d.]+ %  train loss [\d.]+  [\d,]+ samples/s  0:00:00 left",
        lines[-1],
    )
    assert "\x1b" not in run.out

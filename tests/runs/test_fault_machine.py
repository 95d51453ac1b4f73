"""What a machine may lack beside room on its disk: open files, memory, a folder that somebody
removed, an output.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted

from fedbench.parallel.failures import Ended, describe, reason

METHOD = (*SETTING, "algo=scaffold", "results=broken")
SHORT = (*SETTING, "rounds=1", "runtime.workers=1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("ENOMEM", "there is not enough memory"),
        ("EMFILE", "this process may not open more files (ulimit -n)"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_the_system_refuses(kind, words, workers):
    failed = run(*METHOD, f"runtime.workers={workers}", place="aggregation", call=4, kind=kind)
    assert failed.status == 1
    assert words in one_line(failed.err)
    assert "the same command" in failed.err


def test_a_low_limit_of_open_files_is_raised_as_far_as_allowed():
    many = (*METHOD, "runtime.workers=8")
    failed = run(*many, open_files=[30, 30])
    assert failed.status == 1
    assert "this process may not open more files (ulimit -n)" in one_line(failed.err)
    ended = run(*many, open_files=[30, 4096])
    assert ended.status == 0, ended.err
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


@pytest.mark.parametrize(
    ("place", "call", "workers"),
    [
        ("metrics", 2, 1),
        ("training", 8, 2),
        ("checkpoint-tensors", 1, 2),
        ("final", 1, 1),
        ("evaluation", 5, 2),
    ],
)
def test_a_results_folder_that_somebody_removes_does_not_come_back_in_part(place, call, workers):
    setting = (*METHOD, f"runtime.workers={workers}")
    failed = run(*setting, place=place, call=call, kind="remove")
    assert failed.status == 1, failed.out
    line = one_line(failed.err)
    assert line.startswith(
        "fedbench: results=broken: the folder was removed while the run went on ("
    )
    assert line.endswith("; the same command goes on from what is left")
    assert not list(Path("broken").glob("runs/*/*/summary.json"))
    again = run(*setting)
    assert again.status == 0, again.err
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_a_name_that_the_output_cannot_show_is_escaped():
    ended = run(*SHORT, 'results="ä"', encoding="ascii")
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1].startswith("run: \\xe4/runs/")
    assert folder_of("ä").is_dir()


def test_only_what_the_machine_did_is_told_in_one_line(tmp_path):
    def missing(path: Path) -> str:
        return describe(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)))

    assert "was removed" in missing(tmp_path / "gone" / "file")
    assert missing(tmp_path / "file") == ""  # a file that was never there is a fault of the program
    assert describe(FileNotFoundError("no name")) == ""


def test_a_missing_folder_is_the_last_of_several_reasons(tmp_path):
    """Who fails in a checkpoint removes it, and the others miss it."""
    missed = Ended.of(
        0, FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "unfinished" / "file"))
    )
    full, raised = (
        Ended.of(1, OSError(errno.ENOSPC, "No space left on device")),
        Ended.of(1, KeyError("planted")),
    )
    lost = Ended.of(1, RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"))
    assert "the disk is full" in str(reason([missed, full], [], 2, 9))
    assert "KeyError" in str(reason([missed, raised], [], 2, 9))
    assert "was removed" in str(reason([lost, missed], [], 2, 9))


def test_a_library_that_gets_no_open_files_is_the_cause_and_no_consequence():
    refused = Ended.of(
        1, RuntimeError("[gloo/transport/tcp/device.cc] socket: Too many open files")
    )
    lost = Ended.of(0, RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"))
    assert not refused.lost
    assert "ulimit -n" in str(reason([lost, refused], [], 2, 9))
    assert "ulimit -n" in str(reason([lost, Ended(1, signal=signal.SIGABRT)], [], 2, 9))

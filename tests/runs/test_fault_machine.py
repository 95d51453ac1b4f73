"""What a machine may lack beside room on its disk: open files, memory, a folder that is gone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted

from fedbench.parallel.failures import describe

METHOD = (*SETTING, "algo=scaffold", "results=broken")
SHORT = (*SETTING, "rounds=1", "runtime.workers=1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "file")


@pytest.mark.parametrize(
    ("error", "described"),
    [
        (os_error(errno.ENOSPC), "the disk is full (No space left on device, file)"),
        (os_error(errno.EDQUOT), "the disk is full (Disk quota exceeded, file)"),
        (os_error(errno.EROFS), "the folder cannot be written (Read-only file system, file)"),
        (os_error(errno.ENOMEM), "there is not enough memory"),
        (MemoryError(), "there is not enough memory"),
        (torch.OutOfMemoryError("CUDA"), "there is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "there is not enough memory"),
        (os_error(errno.ENOENT), ""),  # errors of the program keep their traceback
        (RuntimeError("shapes do not match"), ""),
        (ValueError("out of memory"), ""),
    ],
)
def test_what_the_machine_did_is_described(error, described):
    assert describe(error) == described


def test_a_low_limit_of_open_files_is_raised():
    ended = run(*SHORT, "runtime.workers=8", open_files=[30, 4096])
    assert ended.status == 0, ended.err


@pytest.mark.parametrize(
    ("place", "call", "workers"), [("metrics", 2, 1), ("training", 8, 2), ("final", 1, 1)]
)
def test_a_removed_folder_does_not_come_back_as_a_finished_run(place, call, workers):
    setting = (*METHOD, f"runtime.workers={workers}")
    failed = run(*setting, place=place, call=call, kind="remove")
    assert failed.status == 1, failed.out
    line = one_line(failed.err)
    assert line.startswith("fedbench: results=broken: the run's folder was removed while it ran (")
    assert not list(Path("broken").glob("runs/*/*/summary.json"))
    again = run(*setting)
    assert again.status == 0, again.err
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_a_name_that_the_output_cannot_show_is_escaped():
    ended = run(*SHORT, 'results="ä"', encoding="ascii")
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-1].startswith("run: \\xe4/runs/")
    assert folder_of("ä").is_dir()

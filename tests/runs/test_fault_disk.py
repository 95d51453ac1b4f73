"""A full disk, or a folder that turns read-only: one line, the last good checkpoint stays, the same
command goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from safetensors import safe_open
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted

from fedbench.core.files import append, write_atomically

pytestmark = pytest.mark.heavy  # a minute and more

METHOD = (*SETTING, "algo=scaffold")
heavy = pytest.mark.heavy


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


def check_goes_on(setting: tuple[str, ...], least: int) -> None:
    """Every checkpoint that is there is whole, and the same command ends as if nothing had
    happened.
    """
    for manifest in folder_of("broken").glob("checkpoint-*/manifest.json"):
        for name in json.loads(manifest.read_text())["files"]:
            with safe_open(manifest.parent / name, framework="pt") as stored:
                assert stored.keys() is not None
    resumed = run(*setting)
    assert resumed.status == 0, resumed.err
    assert resumed.resumed_after >= least
    assert "is not used" not in resumed.out
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")
    assert not [file for file in folder_of("broken").rglob("*") if file.name.endswith(".part")]


# Where the disk is full: at which call of a place, in which of how many workers; after which round
# the run goes on.
PLACES = [
    pytest.param("checkpoint-tensors", 3, 0, 1, 2, id="a checkpoint"),
    pytest.param("checkpoint-tensors", 2, 1, 2, 2, id="another worker's part of it"),
    pytest.param("checkpoint-manifest", 1, 0, 2, 0, id="the first manifest", marks=heavy),
    pytest.param("metrics", 4, 0, 2, 2, id="metrics", marks=heavy),
    pytest.param("final", 1, 0, 2, 4, id="the final files", marks=heavy),
    pytest.param("rename", 2, 0, 1, 0, id="the first files", marks=heavy),
]


@pytest.mark.parametrize(("place", "call", "rank", "workers", "least"), PLACES)
@pytest.mark.parametrize("kind", ["ENOSPC", pytest.param("EROFS", marks=heavy)])
def test_a_disk_that_refuses(place, call, rank, workers, least, kind):
    setting = (*METHOD, "results=broken", f"runtime.workers={workers}")
    stopped = run(*setting, place=place, call=call, rank=rank, kind=kind)
    assert stopped.status == 1, stopped.out
    line = one_line(stopped.err)
    words = {
        "ENOSPC": "the disk is full (No space left on device",
        "EROFS": "the folder cannot be written (Read-only file system",
    }[kind]
    assert line.startswith(f"fedbench: results=broken: {words}")
    assert "the last checkpoint is kept; the same command (without force=true) resumes" in line
    assert stopped.err.strip() == line
    check_goes_on(setting, least)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=heavy)])
def test_real_writes_that_fail(workers):
    """With a limit on the size of files every layer meets the system's own error, safetensors'
    among them.
    """
    setting = (*METHOD, "results=broken", f"runtime.workers={workers}")
    stopped = run(*setting, file_size=60_000)
    assert stopped.status == 1
    assert stopped.err.strip() == one_line(stopped.err)
    assert "the disk is full (File too large" in stopped.err
    assert ".safetensors" in stopped.err
    check_goes_on(setting, 0)


def test_the_trace_of_ecgr_on_a_full_disk(monkeypatch):
    words = (
        "modifier=[ecgr]",
        "algo.modifiers.ecgr.memory=1e-6",
        "results=broken",
        "runtime.workers=2",
    )
    stopped = run(*SETTING, *words, file_size=30_000)
    assert stopped.status == 1
    assert "ECGR's trace in " in one_line(stopped.err)
    assert "TMPDIR names another folder" in stopped.err
    assert run(*SETTING, *words).status == 0


def test_a_real_file_system_without_room(tmp_path):
    """On a small memory file system, where that can be mounted."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2600k", "tmpfs", str(small)],
        capture_output=True,
        check=False,
    )
    if not mounted or mounted.returncode:
        pytest.skip("a file system can be mounted only by root with CAP_SYS_ADMIN")
    try:
        setting = (*METHOD, f"results={small}/results", "runtime.workers=2")
        stopped = run(*setting)
        assert stopped.status == 1, stopped.out
        assert "the disk is full (No space left on device" in one_line(stopped.err)
        assert list(folder_of(f"{small}/results").glob("checkpoint-*"))
        subprocess.run(["mount", "-o", "remount,size=50m", str(small)], check=True)
        resumed = run(*setting)
        assert resumed.status == 0, resumed.err
        assert resumed.resumed_after > 0
        assert result(folder_of(f"{small}/results")) == uninterrupted("algo=scaffold")
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        refused = run(*setting, "seed=1")
        assert refused.status == 2
        assert "must be a folder that can be written (Read-only file system)" in one_line(
            refused.err
        )
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_in_the_way_of_a_sweep():
    Path("taken").write_text("a file")
    refused = run(*SETTING, "-m", "seed=0,1", "results=taken")
    assert refused.status == 2
    assert "must be a folder that can be written" in one_line(refused.err)
    assert Path("taken").read_text() == "a file"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old\n")
    original = os.write

    def half(file, data):
        if len(data) < 4:
            raise OSError(28, os.strerror(28))
        return original(file, data[: len(data) // 2])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(OSError, match="No space left"):
        append(path, "a,b,c\nd,e,f\n")
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, os.strerror(28)))
    )
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]

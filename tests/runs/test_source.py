"""Which code ran: its hash and its commit are those of the moment when the program began."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support import inject
from support.faulty_runs import SETTING
from support.run_files import QUICK, summary
from support.waiting import wait_until

import fedbench
from fedbench.config.validate import config_folder
from fedbench.runs import console
from fedbench.runs.identity import commit_of, hash_of, source_commit, source_hash


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    command = ["git", "-C", str(folder), *identity, *words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with one commit."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "code.py").write_text("1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    return folder


def manifest_at_work(results: Path, marker: Path) -> tuple[Path, dict]:
    """Of the run that waits after its first checkpoint: its folder, and the manifest."""
    wait_until(marker.exists)
    (file,) = results.glob("runs/*/*/checkpoint-*/manifest.json")
    return file.parents[1], json.loads(file.read_text())


def test_a_file_that_is_edited_during_a_sweep_does_not_change_what_checkpoints_say(
    tmp_path, data_root
):
    """The second job still runs the code that was loaded before the edit; new code must not go on
    from it.
    """
    copy = tmp_path / "src" / "fedbench"
    shutil.copytree(
        Path(fedbench.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__")
    )
    if not (copy / "conf").exists():
        shutil.copytree(config_folder(), tmp_path / "conf")
    shutil.copytree(
        Path(fedbench.__file__).parents[1] / "hydra_plugins", tmp_path / "src" / "hydra_plugins"
    )
    words = (*SETTING, "-m", "seed=0,1", "rounds=2", "checkpoint.every=1", "results=broken")
    words += ("runtime.workers=2",)
    marker = tmp_path / "written"
    pause = {"place": "checkpoint", "after": True, "kind": "pause", "marker": str(marker)}
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path / "src"),
        "FEDBENCH_DATA": str(data_root),
    }
    sweep = subprocess.Popen(
        [sys.executable, inject.__file__, json.dumps(pause), *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        first, _ = manifest_at_work(tmp_path / "broken", marker)
        loaded = hash_of(copy)
        edited = copy / "training" / "client.py"
        edited.write_text(edited.read_text() + "# edited\n")
        assert hash_of(copy) != loaded
        marker.unlink()
        second, manifest = manifest_at_work(tmp_path / "broken", marker)
        assert second != first  # whose checkpoints went when it was finished
    finally:
        os.killpg(sweep.pid, signal.SIGKILL)
        sweep.wait()
    assert manifest["origin"]["source code"] == loaded


def test_the_hash_is_that_of_the_program_but_for_studies(tmp_path):
    assert source_hash() == hash_of(Path(fedbench.__file__).parent)
    for name in ("a.py", "report/b.py", "data/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1\n")
    before = hash_of(tmp_path)
    (tmp_path / "report/b.py").write_text("2\n")
    assert hash_of(tmp_path) == before
    (tmp_path / "data/c.py").write_text("2\n")
    assert hash_of(tmp_path) != before


def test_the_commit_and_whether_there_are_changes(checkout):
    commit = git(checkout, "rev-parse", "HEAD")
    assert commit_of(checkout) == {"commit": commit, "dirty": False}
    (checkout / "code.py").write_text("2\n")
    assert commit_of(checkout) == {"commit": commit, "dirty": True}


def test_the_environment_names_no_other_repository(checkout, tmp_path, monkeypatch):
    other = tmp_path / "other"
    shutil.copytree(checkout, other)
    git(other, "commit", "-q", "--allow-empty", "-m", "two")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert commit_of(checkout)["commit"] == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("failing", ["wheel", "no git", "not trusted", "no commit", "status fails"])
def test_what_git_does_not_say_is_unknown(checkout, tmp_path, monkeypatch, failing):
    """Never clean, and never the empty name of a commit."""
    expected = {"commit": None, "dirty": None}
    if failing == "wheel":
        shutil.rmtree(checkout / ".git")
    elif failing == "no git":
        monkeypatch.setenv("PATH", "")
    elif failing == "no commit":
        shutil.rmtree(checkout / ".git")
        git(checkout, "init", "-q")
        expected["dirty"] = True
    else:
        only = (
            ""
            if failing == "not trusted"
            else 'case "$*" in *rev-parse*) echo c0ffee; exit 0;; esac\n'
        )
        stub = tmp_path / "bin" / "git"
        stub.parent.mkdir()
        stub.write_text(
            f"#!/bin/sh\n{only}echo 'fatal: detected dubious ownership' >&2\nexit 128\n"
        )
        stub.chmod(0o755)
        monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
        expected["commit"] = "c0ffee" if only else None
    assert commit_of(checkout) == expected


@pytest.mark.parametrize(
    ("commit", "dirty", "shown"),
    [
        ("c0ffee" * 6, True, "commit c0ffeec0ff with uncommitted changes"),
        ("c0ffee" * 6, False, "commit c0ffeec0ff"),
        ("c0ffee" * 6, None, "commit c0ffeec0ff (uncommitted changes: unknown)"),
        (None, None, "no commit known"),
    ],
)
def test_the_header_says_what_is_known(monkeypatch, commit, dirty, shown):
    monkeypatch.setattr(console, "source_commit", lambda: {"commit": commit, "dirty": dirty})
    assert console._software().endswith(f", {shown}")


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_states_the_code_with_which_it_began(fedbench, monkeypatch, checkout, workers):
    """A commit that is made while it trains is not the code in memory."""
    from fedbench.training.federation import Federation

    monkeypatch.setattr("fedbench.runs.identity.PACKAGE", checkout / "src" / "fedbench")
    server_step = Federation.server_step

    def edited(*arguments):
        (checkout / "code.py").write_text("2\n")
        return server_step(*arguments)

    monkeypatch.setattr(Federation, "server_step", edited)
    source_commit.cache_clear()
    try:
        run = fedbench(*QUICK, "data.subset=100", f"runtime.workers={workers}")
    finally:
        source_commit.cache_clear()
    facts = summary(run.folder)
    assert (facts["git_commit"], facts["git_dirty"]) == (git(checkout, "rev-parse", "HEAD"), False)
    assert (checkout / "code.py").read_text() == "2\n"


def test_a_study_takes_the_commit_before_it_plans_and_forks(monkeypatch):
    from fedbench.report import cli, engine

    known = []

    def plan(*arguments: object) -> None:
        known.append(source_commit.cache_info().currsize)
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "make_plans", plan)
    source_commit.cache_clear()
    with pytest.raises(KeyboardInterrupt):
        cli.run(cli.parse(["run", "--only", "digits/methods"]), Console(file=io.StringIO()))
    assert known == [1]

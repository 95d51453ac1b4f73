"""A finished run whose files are not what was written is reported, and run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faulty_runs import SETTING, folder_of, one_line, result, run, uninterrupted

from fedbench.runs.folder import RunFolder

FINISHED = (*SETTING, "algo=scaffold", "results=done", "runtime.workers=1")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A finished run, as far as its folder is asked."""
    (tmp_path / "metrics.csv").write_text("round,test_accuracy\n1,0.5\n2,0.75\n")
    (tmp_path / "model.safetensors").write_bytes(bytes(100))
    summary = RunFolder(tmp_path).with_checksums({"status": "finished", "final_accuracy": 0.75})
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_a_run_is_finished_when_it_has_a_summary(folder):
    for by_content in (False, True):
        summary, damage = RunFolder(folder).examine(by_content)
        assert summary["final_accuracy"] == 0.75
        assert damage == ""
    (folder / "summary.json").unlink()
    assert RunFolder(folder).examine(by_content=True) == (None, "")


def replace(name: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text((folder / name).read_text().replace(old, new))


DAMAGES = {  # what is done to the folder, what is reported, whether sizes show it
    "a cut table": (
        replace("metrics.csv", "2,0.75\n", ""),
        "metrics.csv has 26 bytes instead of 33",
        True,
    ),
    "a better accuracy": (
        replace("metrics.csv", "0.75", "0.95"),
        "metrics.csv is not what was written",
        False,
    ),
    "no model": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors is missing",
        True,
    ),
    "a better summary": (
        replace("summary.json", "0.75", "0.95"),
        "summary.json is not what was written",
        True,
    ),
    "no checksums": (
        lambda folder: (folder / "summary.json").write_text('{"status": "finished"}'),
        "summary.json cannot be read (KeyError)",
        True,
    ),
    "half a summary": (
        lambda folder: (folder / "summary.json").write_text('{"status": "fin'),
        "summary.json cannot be read (JSONDecodeError)",
        True,
    ),
    "a nested summary": (
        lambda folder: (folder / "summary.json").write_text("[" * 100_000),
        "summary.json cannot be read (RecursionError)",
        True,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed(folder, damage):
    do, reported, by_size = DAMAGES[damage]
    do(folder)
    assert RunFolder(folder).examine(by_content=True) == (None, reported)
    assert (RunFolder(folder).finished() is None) == by_size


@pytest.fixture
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


def test_a_damaged_run_is_reported_and_run_again(own_folder):
    assert run(*FINISHED).status == 0
    done = folder_of("done")
    files = {file.name for file in done.iterdir()}
    content = bytearray((done / "predictions.npz").read_bytes())
    content[len(content) // 2] ^= 1
    (done / "predictions.npz").write_bytes(content)
    ended = run(*FINISHED)
    assert ended.status == 0, ended.err
    line = "this run was finished, but predictions.npz is not what was written; it is run again: "
    assert ended.out.count(line) == 1
    assert result(done) == uninterrupted("algo=scaffold")
    assert {file.name for file in done.iterdir()} == files
    assert "finished already" in run(*FINISHED).out


def test_a_finished_run_is_reported_from_a_folder_that_may_not_be_written(own_folder):
    assert run(*FINISHED).status == 0
    for place in [Path("done"), *Path("done").rglob("*")]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    ended = run(*FINISHED, obedient=True)
    assert ended.status == 0, ended.err
    assert "finished already" in ended.out
    forced = run(*FINISHED, "force=true", obedient=True)
    (folder_of("done") / "model.safetensors").unlink()
    damaged = run(*FINISHED, obedient=True)
    for refused in (forced, damaged):
        assert refused.status == 2
        assert "must be a folder that can be written" in one_line(refused.err)


def test_nothing_of_an_unfinished_run_is_cleaned_away(tmp_path):
    folder = RunFolder(tmp_path)
    kept = [tmp_path / "checkpoint-000002", tmp_path / "unfinished-000003"]
    for one in kept:
        one.mkdir()
    (tmp_path / ".metrics.csv.1.part").touch()
    folder.clean()
    assert sorted(tmp_path.iterdir()) == sorted([*kept, tmp_path / ".metrics.csv.1.part"])

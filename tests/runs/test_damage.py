"""What a run's folder holds is not what was written: somebody's entries beside it, damage to a
finished run.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from support.faulty_runs import (
    SETTING,
    checkpoints,
    folder_of,
    one_line,
    result,
    run,
    two_checkpoints,
    uninterrupted,
)

from fedbench.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


ODD = [
    "copy",
    "word",
    "file",
    "link",
    "dangling",
    "file of the next",
    "link of the next",
    "unfinished",
    "part",
]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(odd, marks=() if odd in ("copy", "link of the next") else pytest.mark.heavy)
        for odd in ODD
    ],
)
def test_odd_entries_in_a_run_s_folder_are_left_alone(odd):
    """Somebody's copies and links, and files where a checkpoint is to be: the run goes on and
    ends.
    """
    setting = two_checkpoints()
    newest = checkpoints("broken")[4]
    folder, tag = newest.parent, newest.name[:-6]
    place = folder / {
        "copy": f"{newest.name}.bak",
        "word": f"{tag}last",
        "part": ".metrics.csv.part",
    }.get(odd, "")
    if odd in ("copy", "word", "part"):
        shutil.copytree(newest, place)
    elif odd == "unfinished":
        place = folder / "unfinished-notes.txt"
        place.write_text("mine")
    elif odd in ("file", "link", "dangling"):
        place = folder / f"{tag}000003"
        (
            place.write_text("mine")
            if odd == "file"
            else place.symlink_to(newest if odd == "link" else "nowhere")
        )
    else:  # where the next attempt has to write
        for number in (2, 4):
            shutil.move(checkpoints("broken")[number], f"moved-{number}")
        for name in (f"{tag}000002", "unfinished-000002"):
            place = folder / name
            (
                place.write_text("mine")
                if odd.startswith("file")
                else place.symlink_to(Path("moved-2").absolute())
            )
    ended = run(*setting)
    assert ended.status == 0, ended.out + ended.err
    assert ended.resumed_after == (0 if odd.endswith("next") else 4)
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")
    assert (place.is_symlink() or place.exists()) != odd.endswith("next")
    assert (
        not odd.endswith("next") or (Path("moved-2") / "manifest.json").exists()
    )  # not what the link led to
    assert "finished already" in run(*setting).out


FINISHED = ("algo=scaffold", "results=done", "runtime.workers=1")


def change_summary(folder: Path, **values: object) -> None:
    """As somebody would who makes it fit: without the checksums."""
    known = json.loads((folder / "summary.json").read_text())
    kept = {key: value for key, value in known.items() if key not in ("files", "checksum")}
    (folder / "summary.json").write_text(json.dumps(kept | values))


def cut(folder: Path) -> None:
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    (folder / "metrics.csv").write_text("".join(lines[:-1]))


def flip(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)


def retell(folder: Path) -> None:
    text = (folder / "summary.json").read_text()
    (folder / "summary.json").write_text(
        re.sub(r'"final_accuracy": 0\.\d', '"final_accuracy": 0.9', text)
    )


DAMAGES = {  # what is done to the folder, what is said of it, whether the sizes tell
    "metrics cut at a line": (cut, "metrics.csv has ", True),
    "no model": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "model.safetensors is missing",
        True,
    ),
    "other predictions": (
        lambda folder: flip(folder, "predictions.npz"),
        "predictions.npz is not what was",
        False,
    ),
    "a bit of the model": (
        lambda folder: flip(folder, "model.safetensors"),
        "model.safetensors is not what",
        False,
    ),
    "a better accuracy": (retell, "summary.json is not what was written", True),
    "status only": (
        lambda folder: (folder / "summary.json").write_text('{"status":"finished"}'),
        "read (Key",
        True,
    ),
    "half a summary": (
        lambda folder: (folder / "summary.json").write_text('{"stat'),
        "summary.json cannot be",
        True,
    ),
    "nested": (
        lambda folder: (folder / "summary.json").write_text("[" * 100_000),
        "summary.json cannot be",
        True,
    ),
    "accuracy of 2": (
        lambda folder: change_summary(folder, best_accuracy=2.0),
        "values that cannot be",
        True,
    ),
    "accuracy in words": (
        lambda folder: change_summary(folder, final_accuracy="high"),
        "values that cannot",
        True,
    ),
    "accuracy not a number": (
        lambda folder: change_summary(folder, final_accuracy=np.nan),
        "values that",
        True,
    ),
    "no accuracy": (
        lambda folder: change_summary(folder, final_accuracy=None),
        "values that cannot be",
        True,
    ),
}
FAST_DAMAGES = ("metrics cut at a line", "other predictions", "status only")


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(name, marks=() if name in FAST_DAMAGES else pytest.mark.heavy)
        for name in DAMAGES
    ],
)
def test_a_damaged_finished_run_is_told_and_run_again(damage):
    do, told, by_size = DAMAGES[damage]
    assert run(*SETTING, *FINISHED).status == 0
    folder = folder_of("done")
    files = {file.name for file in folder.iterdir()}
    do(folder)
    assert (RunFolder(folder).finished() is None) == by_size  # so that a study counts it as missing
    ended = run(*SETTING, *FINISHED)
    assert ended.status == 0, ended.err
    lines = [line for line in ended.out.splitlines() if "this run was finished, but " in line]
    assert len(lines) == 1
    assert told in lines[0]
    assert result(folder) == uninterrupted("algo=scaffold")
    assert {file.name for file in folder.iterdir()} == files
    assert "finished already" in run(*SETTING, *FINISHED).out


def test_the_files_of_a_damaged_run_stay_until_new_ones_are_whole():
    assert run(*SETTING, *FINISHED).status == 0
    folder = folder_of("done")
    (folder / "model.safetensors").unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert run(*SETTING, *FINISHED, place="final", kind="kill").status == -signal.SIGKILL
    assert {file.name: file.read_bytes() for file in (folder / ".damaged").iterdir()} == before
    ended = run(*SETTING, *FINISHED)
    assert (ended.status, ended.resumed_after) == (0, 4)
    assert result(folder) == uninterrupted("algo=scaffold")
    assert not (folder / ".damaged").exists()


@pytest.mark.parametrize(
    "values", [{}, {"best_accuracy": 1.0000000000000002, "final_accuracy": 0.0}]
)
def test_a_run_of_an_earlier_version_has_no_checksums_and_is_finished(values):
    """A mean of ones may be a last bit above one: running that again would not help."""
    assert run(*SETTING, *FINISHED).status == 0
    change_summary(folder_of("done"), **values)
    assert "finished already" in run(*SETTING, *FINISHED).out


def test_a_finished_run_is_reported_from_a_folder_that_may_not_be_written():
    assert run(*SETTING, *FINISHED).status == 0
    for place in [Path("done"), *Path("done").rglob("*")]:
        place.chmod(0o555 if place.is_dir() else 0o444)
    ended = run(*SETTING, *FINISHED, obedient=True)
    assert ended.status == 0, ended.err
    assert "finished already" in ended.out
    forced = run(*SETTING, *FINISHED, "force=true", obedient=True)
    (folder_of("done") / "model.safetensors").unlink()
    damaged = run(*SETTING, *FINISHED, obedient=True)
    for refused in (forced, damaged):
        assert refused.status == 2
        assert "a folder that can be written is allowed" in one_line(refused.err)

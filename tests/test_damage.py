"""What a run's folder holds is not what was written: somebody's entries beside it, damage to a finished run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faults_helper import checkpoints, folder_of, result, run, two_checkpoints, uninterrupted


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


ODD = ["copy", "word", "file", "link", "dangling", "file of the next", "link of the next", "unfinished", "part"]


@pytest.mark.parametrize(
    "odd", [pytest.param(odd, marks=() if odd in ("copy", "link of the next") else pytest.mark.heavy) for odd in ODD]
)
def test_odd_entries_in_a_run_s_folder_are_left_alone(odd):
    """Somebody's copies and links, and files where a checkpoint is to be: the run goes on and ends."""
    setting = two_checkpoints()
    newest = checkpoints("broken")[4]
    folder, tag = newest.parent, newest.name[:-6]
    place = folder / {"copy": f"{newest.name}.bak", "word": f"{tag}last", "part": ".metrics.csv.part"}.get(odd, "")
    if odd in ("copy", "word", "part"):
        shutil.copytree(newest, place)
    elif odd == "unfinished":
        place = folder / "unfinished-notes.txt"
        place.write_text("mine")
    elif odd in ("file", "link", "dangling"):
        place = folder / f"{tag}000003"
        place.write_text("mine") if odd == "file" else place.symlink_to(newest if odd == "link" else "nowhere")
    else:  # where the next attempt has to write
        for number in (2, 4):
            shutil.move(checkpoints("broken")[number], f"moved-{number}")
        for name in (f"{tag}000002", "unfinished-000002"):
            place = folder / name
            place.write_text("mine") if odd.startswith("file") else place.symlink_to(Path("moved-2").absolute())
    ended = run(*setting)
    assert ended.status == 0, ended.out + ended.err
    assert ended.resumed_after == (0 if odd.endswith("next") else 4)
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")
    assert (place.is_symlink() or place.exists()) != odd.endswith("next")
    assert not odd.endswith("next") or (Path("moved-2") / "manifest.json").exists()  # not what the link led to
    assert "finished already" in run(*setting).out

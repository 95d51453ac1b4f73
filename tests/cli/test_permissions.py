"""Files and folders that may not be read or written: one line that names them, status 2, nothing
written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.faulty_runs import SETTING, one_line, run

WORDS = (*SETTING, "runtime.workers=1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


def refuse(*words: str, results: bool = False) -> str:
    ended = run(*words, obedient=True)
    assert ended.status == 2, ended.out + ended.err
    assert Path("results").exists() == results
    return one_line(ended.err)


@pytest.mark.parametrize("unreadable", ["root", "root/mnist", "root/mnist/train.npz"])
def test_a_data_root_that_may_not_be_read(unreadable):
    Path("root/mnist").mkdir(parents=True)
    for name in ("train", "test"):
        images = np.zeros((20, 28, 28), np.uint8)
        np.savez(f"root/mnist/{name}.npz", images=images, labels=np.arange(20) % 10)
    Path(unreadable).chmod(0)
    line = refuse("data=mnist", "data.root=root", "logger=none")
    assert line.startswith("fedbench: data")
    assert f" {unreadable}: permission denied" in line


@pytest.mark.parametrize("key", ["data.path", "partition.path", "model.weights"])
def test_a_file_that_may_not_be_read(key):
    groups = {
        "data.path": "data=npz",
        "partition.path": "partition=file",
        "model.weights": "model=resnet18_pretrained",
    }
    Path("secret").write_bytes(b"anything")
    Path("secret").chmod(0)
    line = refuse(groups[key], f"{key}=secret", "logger=none")
    assert line.startswith(f"fedbench: {key}=secret: permission denied")


def test_a_results_folder_that_may_not_be_written():
    Path("results").mkdir(mode=0o555)
    line = refuse(*WORDS, results=True)
    assert (
        line
        == "fedbench: results=results: must be a folder that can be written (Permission denied)"
    )
    assert list(Path("results").iterdir()) == []

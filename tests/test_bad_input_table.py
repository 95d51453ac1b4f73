"""A table of bad input: each case ends in status 2 and one line that says what is allowed, and writes nothing."""

from __future__ import annotations

from pathlib import Path

import bad_files
import bad_words
import pytest

QUICK = ("rounds=1", "client.epochs=1", "partition.clients=4", "runtime.workers=1")


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "files"
    bad_files.write_all(folder)
    return folder


def test_the_table_is_long():
    assert len(bad_words.TABLE) >= 80


@pytest.mark.parametrize("words", bad_words.TABLE)
def test_one_line_status_2_and_nothing_written(fedbench, files, words):
    before = sorted(files.rglob("*"))
    run = fedbench(*QUICK, *words.replace("FILES", str(files)).split())
    assert run.status == 2, run.out + run.err
    assert bad_words.TABLE[words] in run.err
    assert run.err.startswith("fedbench: ")
    assert run.err.endswith("\n")
    assert run.err.count("\n") == 1, run.err
    assert run.out == ""
    assert list(Path().iterdir()) == []
    assert sorted(files.rglob("*")) == before


def test_a_sweep_of_bad_jobs_tells_each_and_leaves_nothing(fedbench):
    run = fedbench("-m", *QUICK, "seed=0,1", "client.lr=-1,-2")
    assert run.status == 2
    assert [line.split(":")[1] for line in run.err.splitlines()] == [" client.lr=-1.0", " client.lr=-2.0"] * 2
    assert list(Path().iterdir()) == []


def test_a_sweep_keeps_its_list_when_a_job_was_run(fedbench):
    run = fedbench("-m", *QUICK, "data.subset=60", "client.lr=0.1,-2")
    assert run.status == 2
    assert run.err.count("\n") == 1
    assert len(list(Path("results/sweeps").glob("*/multirun.yaml"))) == 1
    assert len(list(Path("results/runs").glob("*/*/summary.json"))) == 1

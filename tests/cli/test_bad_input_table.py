"""A table of bad input: each case ends in status 2 and one line that says what is allowed, and
writes nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest
from support import bad_files, bad_words

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


def test_signs_that_begin_a_line_are_spelled_out(fedbench):
    """A value is told as it is, but on one line, and it cannot paint the terminal."""
    for value, told in (
        ("a\nb", r"a\nb"),
        ("a\x1b[1mb", r"a\x1b[1mb"),
        ("a\rb\x85c\u2028", r"a\rb\x85c\u2028"),
    ):
        run = fedbench(*QUICK, f"model.weights='{value}'")
        assert (run.status, run.err) == (
            2,
            f"fedbench: model.weights={told}: no such file or directory\n",
        )


def test_a_rank_without_torchrun_speaks(fedbench, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert fedbench("rounds=-1").err == "fedbench: rounds=-1: an integer of at least 1 is allowed\n"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {},
            (
                "MASTER_PORT=: torchrun sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; a"
                " number is allowed here"
            ),
        ),
        ({"MASTER_PORT": "29500", "RANK": "x"}, "RANK=x: torchrun sets"),
        ({"MASTER_PORT": "29500", "RANK": "2"}, "RANK=2: a number below WORLD_SIZE, 2, is allowed"),
    ],
)
def test_half_of_torchruns_environment(fedbench, monkeypatch, more, told):
    for key, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", **more}.items():
        monkeypatch.setenv(key, value)
    run = fedbench(*QUICK)
    assert run.status == 2
    assert run.err.startswith(f"fedbench: environment: {told}")
    assert run.err.count("\n") == 1
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EROFS])
@pytest.mark.parametrize("there", [False, True])
def test_a_file_system_without_locks(fedbench, monkeypatch, number, there):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    if there:
        Path("results").mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    run = fedbench(*QUICK)
    kind = (
        "that can be written" if number == errno.EROFS else r"on a file system with locks (flock)"
    )
    told = f"fedbench: results=results: a folder {kind} is allowed ({os.strerror(number)})\n"
    assert (run.status, run.err) == (2, told)
    assert [str(place) for place in Path().rglob("*")] == ["results"] * there


def test_a_sweep_of_bad_jobs_tells_each_and_leaves_nothing(fedbench):
    run = fedbench("-m", *QUICK, "seed=0,1", "client.lr=-1,-2")
    assert run.status == 2
    said = [line.split(": ")[1:3] for line in run.err.splitlines()]
    rates = ["client.lr=-1.0", "client.lr=-2.0"] * 2
    assert said[:4] == [[f"job {number}", rate] for number, rate in enumerate(rates)]
    assert (
        said[4][0] == "job 0 (seed=0 client.lr=-1) was refused"
    )  # all of them again, when all have ended
    assert said[8:] == [["4 of 4 jobs did not finish"]]
    assert list(Path().iterdir()) == []


def test_a_sweep_keeps_its_list_when_a_job_was_run(fedbench):
    run = fedbench("-m", *QUICK, "data.subset=60", "client.lr=0.1,-2")
    assert run.status == 2
    assert run.err.count("\n") == 3
    assert len(list(Path("results/sweeps").glob("*/multirun.yaml"))) == 1
    assert len(list(Path("results/runs").glob("*/*/summary.json"))) == 1

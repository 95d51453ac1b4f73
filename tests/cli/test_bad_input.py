"""Bad input: one line that says what is wrong and what it must be, status 2, nothing written."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from pathlib import Path

import pytest
import torch
from support import bad_files, bad_input

from fedbench import cli
from fedbench.data.prepare import cli as data_cli
from fedbench.report import cli as tables_cli

QUICK = ("rounds=1", "client.epochs=1", "partition.clients=4", "runtime.workers=1")
PROGRAMS = {
    "fedbench": (cli, ("logger=none", *QUICK), bad_input.OVERRIDES),
    "fedbench-tables": (tables_cli, (), bad_input.TABLES),
    "fedbench-data": (data_cli, (), bad_input.PREPARE),
}
CASES = [(program, words) for program, (_, _, table) in PROGRAMS.items() for words in table]


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "files"
    bad_files.write_all(folder)
    return folder


@pytest.mark.parametrize(("program", "words"), CASES)
def test_one_line_status_2_and_nothing_written(program, words, files, tmp_path, monkeypatch, capfd):
    if words == "runtime.device=cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    module, before, table = PROGRAMS[program]
    given = sorted(files.rglob("*"))
    arguments = [word.replace("FILES", str(files)) for word in words.split()]
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # which the program sets for itself: not for others
    monkeypatch.delenv("PYTHONPATH", raising=False)  # a message names the folders in it
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "argv", [program, *before, *arguments])
    with pytest.raises(SystemExit) as ended:
        module.main()
    out, err = capfd.readouterr()
    assert ended.value.code == 2, out + err
    assert err.startswith(f"{program}: ")
    assert err.endswith("\n")
    assert err.count("\n") == 1, err
    assert table[words] in err
    assert out == ""
    assert list(Path().iterdir()) == []
    assert {file.name for file in tmp_path.rglob("*") if file.is_file()} <= {".lock"}
    assert sorted(files.rglob("*")) == given


def test_control_characters_are_escaped(fedbench):
    """A value is shown as it is, but on one line, and it cannot paint the terminal."""
    for value, shown in (
        ("a\nb", r"a\nb"),
        ("a\x1b[1mb", r"a\x1b[1mb"),
        ("a\rb\x85c\u2028", r"a\rb\x85c\u2028"),
    ):
        run = fedbench(*QUICK, f"model.weights='{value}'")
        line = f"fedbench: model.weights={shown}: no such file or directory\n"
        assert (run.status, run.err) == (2, line)


def test_a_rank_without_torchrun_speaks(fedbench, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert fedbench("rounds=-1").err == "fedbench: rounds=-1: must be an integer of at least 1\n"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EROFS])
@pytest.mark.parametrize("there", [False, True])
def test_a_file_system_without_locks(fedbench, monkeypatch, number, there):
    def refuse(*arguments):
        raise OSError(number, os.strerror(number))

    if there:
        Path("results").mkdir()
    monkeypatch.setattr(fcntl, "flock", refuse)
    run = fedbench(*QUICK)
    assert run.status == 2
    assert run.err.startswith("fedbench: results=results: ")
    assert run.err.endswith(f"({os.strerror(number)})\n")
    assert run.err.count("\n") == 1
    assert [str(place) for place in Path().rglob("*")] == ["results"] * there


def test_a_sweep_of_bad_jobs_reports_each_and_leaves_nothing(fedbench):
    run = fedbench("-m", *QUICK, "seed=0,1", "client.lr=-1,-2")
    assert run.status == 2
    said = [line.split(": ")[1:3] for line in run.err.splitlines()]
    rates = ["client.lr=-1.0", "client.lr=-2.0"] * 2
    assert said[:4] == [[f"job {number}", rate] for number, rate in enumerate(rates)]
    # All of them are listed again when all have ended.
    assert said[4][0] == "job 0 (seed=0 client.lr=-1) was refused"
    assert said[8:] == [["4 of 4 jobs did not finish"]]
    assert list(Path().iterdir()) == []


def test_a_sweep_keeps_its_list_when_a_job_was_run(fedbench):
    run = fedbench("-m", *QUICK, "data.subset=60", "client.lr=0.1,-2")
    assert run.status == 2
    assert run.err.count("\n") == 3
    assert len(list(Path("results/sweeps").glob("*/multirun.yaml"))) == 1
    assert len(list(Path("results/runs").glob("*/*/summary.json"))) == 1

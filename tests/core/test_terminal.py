"""A program whose output nobody reads any more goes on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support.made_runs import write_run
from support.run_files import QUICK
from support.waiting import LIMIT

from fedbench.core.terminal import streams_without_readers


def closed_pipe() -> int:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_nobody_reads_is_dropped(monkeypatch, name):
    with open(closed_pipe(), "w") as stream:
        monkeypatch.setattr(sys, name, stream)
        with streams_without_readers():
            assert getattr(sys, name).isatty() is False
            for _ in range(3):
                print("x" * 100_000, file=getattr(sys, name), flush=True)
        assert getattr(sys, name) is stream
        print("after it", flush=True)


def test_without_it_the_program_would_end(monkeypatch):
    stream = open(closed_pipe(), "w")  # noqa: SIM115  (closing it would fail as well)
    with pytest.raises(BrokenPipeError):
        print("x", file=stream, flush=True)
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("fedbench.data.prepare.cli", ["list"]),
        ("fedbench.report.cli", ["--help"]),
        pytest.param(
            *("fedbench.report.cli", ["render", "results", "--by", "algo"]),
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_the_other_programs_end_well_when_nobody_reads(tmp_path, module, words):
    write_run(tmp_path / "results" / "runs" / "label" / "0", "fedavg", 0.1, 0, 0.5)
    program = [sys.executable, "-c", f"from {module} import main; main()", *words]
    ended = subprocess.run(
        program,
        cwd=tmp_path,
        env={**os.environ, "FEDBENCH_DATA": str(tmp_path)},
        stdout=closed_pipe(),
        stderr=subprocess.PIPE,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.heavy
def test_a_sweep_is_finished_after_its_reader_has_gone(tmp_path, data_root):
    words = ["-m", "logger=none", *QUICK, "data.subset=60", "seed=0,1"]
    program = subprocess.Popen(
        [sys.executable, "-m", "fedbench", *words],
        cwd=tmp_path,
        env={**os.environ, "FEDBENCH_DATA": str(data_root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout.readline()
    program.stdout.close()
    _, errors = program.communicate(timeout=LIMIT)
    assert (program.returncode, errors) == (0, b"")
    assert len(list(tmp_path.glob("results/runs/*/*/summary.json"))) == 2
    (table,) = tmp_path.glob("results/sweeps/*/summary.csv")
    assert table.read_text().count(",finished,") == 2


@pytest.mark.heavy
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_is_finished_after_its_reader_has_gone(tmp_path, data_root, workers):
    words = ["logger=none", *QUICK, "data.subset=60", f"runtime.workers={workers}"]
    program = subprocess.Popen(
        [sys.executable, "-m", "fedbench", *words],
        cwd=tmp_path,
        env={**os.environ, "FEDBENCH_DATA": str(data_root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout.readline()
    program.stdout.close()
    _, errors = program.communicate(timeout=LIMIT)
    assert (program.returncode, errors) == (0, b"")
    assert len(list(tmp_path.glob("results/runs/*/*/summary.json"))) == 1

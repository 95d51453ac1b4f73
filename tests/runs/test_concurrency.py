"""Several processes on one results folder: every run is done once, and readers never see half a
file.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.faulty_runs import SETTING, folder_of, result, run, start, uninterrupted
from support.waiting import wait_until

pytestmark = pytest.mark.heavy  # a minute and more

SWEEP = (*SETTING, "-m", "seed=0,1,2", "rounds=3", "runtime.workers=1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


def test_sweeps_over_the_same_folder_do_every_run_once():
    sweeps = [start({}, *SWEEP, "results=shared") for _ in range(3)]
    ended = [sweep.end() for sweep in sweeps]
    assert [one.status for one in ended] == [0, 0, 0], ended
    output = "".join(one.out for one in ended)
    assert output.count("run: ") == 9
    assert output.count("running on cpu") == 3  # the others waited, or came later
    assert output.count("finished already") == 6
    assert output.count("round 3/3") == 3
    assert len(list(Path().glob("shared/sweeps/*/multirun.yaml"))) == 3
    alone = run(*SWEEP, "results=alone")
    assert alone.status == 0
    for folder in Path("alone").glob("runs/*/*/"):
        assert result(folder) == result(Path("shared", *folder.parts[1:]))


def test_a_sweep_takes_over_from_one_that_was_killed():
    """The kernel releases the lock of a dead process; the one that waited goes on from its
    checkpoint.
    """
    setting = (*SETTING, "algo=scaffold", "results=shared")
    fault = {"place": "evaluation", "call": 4, "kind": "pause", "marker": "holding"}
    holder = start(fault, *setting, "runtime.workers=2")
    wait_until(Path("holding").exists)
    waiting = start({}, *setting, "runtime.workers=1")
    wait_until(lambda: waiting.said("waiting for it"))
    os.kill(holder.pid, signal.SIGKILL)  # the parent alone: its workers must not keep the lock
    assert holder.end().status == -signal.SIGKILL
    ended = waiting.end()
    assert ended.status == 0, ended.err
    assert ended.resumed_after == 2
    assert result(folder_of("shared")) == uninterrupted("algo=scaffold")


def check_files(results: Path) -> int:
    """Read everything as another program would; returns how many files there were."""
    seen = 0
    for file in [*results.glob("runs/*/*/*"), *results.glob("runs/*/*/checkpoint-*/manifest.json")]:
        try:
            content = file.read_bytes() if file.is_file() else None
        except FileNotFoundError:  # replaced or removed in the meantime
            continue
        if content is None or file.name.startswith("."):
            continue
        seen += 1
        if file.suffix == ".json":
            assert json.loads(content) is not None
        elif file.name == "metrics.csv" and content:
            assert content.endswith(b"\n"), content
            rows = list(csv.reader(io.StringIO(content.decode())))
            assert {len(row) for row in rows} == {len(rows[0])}
            assert [row[0] for row in rows] == ["round", *map(str, range(1, len(rows)))]
        elif file.suffix == ".png":
            assert content.endswith(b"IEND\xaeB`\x82")
    return seen


def test_a_reader_never_sees_half_a_file():
    """The writer waits after every row until the reader begins to read: neither runs away."""
    plain = [word for word in SWEEP if not word.startswith("model")]
    words = (*plain, "model=linear", "results=shared", "checkpoint.every=1", "rounds=40")
    pace = {"place": "metrics", "every": True, "after": True, "kind": "pause", "marker": "written"}
    writer, seen, reads = start(pace, *words), 0, 0
    while not writer.ended():
        Path("written").unlink(missing_ok=True)
        seen += check_files(Path("shared"))
        reads += 1
    assert writer.end().status == 0
    assert reads >= 3 * 40
    assert seen > 200
    assert len(list(Path().glob("shared/runs/*/*/summary.json"))) == 3


@pytest.mark.heavy
def test_tables_while_runs_go_on():
    """`fedbench-tables` between the runs of a study shows what is finished, and never fails."""
    program = "from fedbench.report.cli import main; main()"
    tables = [sys.executable, "-c", program, "render", "results"]
    study = [
        sys.executable,
        "-m",
        "fedbench",
        "experiment=digits/methods",
        "scale=smoke",
        "logger=none",
    ]
    going = subprocess.Popen(
        study, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        finished = lambda: list(Path().glob("results/runs/*/*/summary.json"))  # noqa: E731
        wait_until(lambda: finished() or going.poll() is not None)
        assert finished()
        for _ in range(2):
            shown = subprocess.run(tables, capture_output=True, text=True, check=False)
            assert shown.returncode == 0, shown.stdout + shown.stderr
            assert "Traceback" not in shown.stderr
    finally:
        os.killpg(going.pid, signal.SIGKILL)
        going.wait()

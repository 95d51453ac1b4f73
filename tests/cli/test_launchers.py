"""Hydra's launchers: jobs in other processes report, and Ctrl-C leaves runs that can go on."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import faulty_dataset, own_files
from support.faulty_runs import session
from support.waiting import LIMIT
from support.waiting import wait_until as wait_for

pytestmark = pytest.mark.heavy  # half a minute each on a busy machine

PLUGINS = {
    "joblib": "hydra_joblib_launcher",
    "submitit_local": "hydra_submitit_launcher",
    "ray": "hydra_ray_launcher",
}
LOGGED = ("submitit_local", "ray")  # each job has a log of its own
RAY = pytest.param("ray", marks=pytest.mark.by_hand)  # it is in no other extra: `[ray]`
QUICK = ("rounds=2", "client.epochs=1", "partition.clients=4", "data.subset=60", "logger=none")


def need(launcher: str) -> None:
    """Skip without the plugin."""
    if (
        launcher in PLUGINS
        and importlib.util.find_spec(f"hydra_plugins.{PLUGINS[launcher]}") is None
    ):
        pytest.skip(f"{PLUGINS[launcher]} is not installed")


@dataclass
class Ended:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """What the parent says of the jobs, without the paths of logs and sweeps, which have times
        in them.
        """
        found = [
            line for line in self.err.splitlines() if re.match(r"fedbench: (job \d+ |\d+ of)", line)
        ]
        return [re.sub(r"(log: |; )(results|/tmp/ray)/.*", r"\1...", line) for line in found]


@pytest.fixture
def start(tmp_path, data_root):
    """Start a sweep as a session of its own, as in a terminal of its own."""
    faulty_dataset.write(tmp_path / "own")
    started: list[subprocess.Popen] = []
    path = os.pathsep.join(
        [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    )

    def call(launcher: str, *words: str, **environment: str) -> subprocess.Popen:
        need(launcher)
        command = [sys.executable, "-m", "fedbench", "--config-dir", "own", "-m"]
        with open(tmp_path / "out.txt", "w") as out, open(tmp_path / "err.txt", "w") as err:
            process = subprocess.Popen(
                [*command, f"hydra/launcher={launcher}", *QUICK, *words],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "FEDBENCH_DATA": str(data_root),
                    "PYTHONPATH": path,
                    **environment,
                },
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        started.append(process)
        return process

    yield call
    for process in started:
        members = session(process.pid)
        for pid in members:
            os.kill(pid, signal.SIGKILL)
        process.wait()


def end(process: subprocess.Popen, folder: Path) -> Ended:
    status = process.wait(LIMIT)
    return Ended(status, (folder / "out.txt").read_text(), (folder / "err.txt").read_text())


def wait_until(condition, process: subprocess.Popen, folder: Path) -> None:
    """Poll for an event; a process that ends before it is an error."""
    limit = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, (folder / "err.txt").read_text()
        assert time.monotonic() < limit
        time.sleep(0.05)


def outcomes(folder: Path) -> dict[int, dict]:
    files = folder.glob("results/sweeps/*/*/outcome.json")
    return {int(file.parent.name): json.loads(file.read_text()) for file in files}


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_local", RAY])
def test_refused_and_failed_jobs_are_named_and_the_others_run(start, tmp_path, launcher, workers):
    """What a job reports does not depend on its workers; with two of them, jobs finish below."""
    words = ("data=faulty", "seed=0,1", "cohort=3,1000", f"runtime.workers={workers}")
    ended = end(start(launcher, *words), tmp_path)
    assert ended.status == 1, ended.err
    log = "..." if launcher in LOGGED else "above"
    told = "cohort=1000: must be at most 4, the number of clients"
    assert ended.lines == [
        f"fedbench: job 1 (seed=0 cohort=1000) was refused: {told}; log: {log}",
        f"fedbench: job 2 (seed=1 cohort=3) failed: RuntimeError: planted fault; log: {log}",
        f"fedbench: job 3 (seed=1 cohort=1000) failed: RuntimeError: planted fault; log: {log}",
        "fedbench: 3 of 4 jobs did not finish; ...",
    ]
    assert len(re.findall("^run: results/runs/", ended.out, flags=re.M)) == 1
    (table,) = tmp_path.glob("results/sweeps/*/summary.csv")
    rows = [row.split(",")[:4] for row in table.read_text().splitlines()]
    endings = ("finished", "refused", "failed", "failed")
    assert rows == [
        ["job", "seed", "cohort", "status"],
        *([str(job), str(job // 2), ("3", "1000")[job % 2], endings[job]] for job in range(4)),
    ]
    assert re.search(r"^  0  0     3       finished +[\d.]+ %", ended.out, flags=re.M), ended.out
    assert re.search("^sweep: results/sweeps/", ended.out, flags=re.M)
    assert (table.parent / "comparison.png").is_file()
    found = outcomes(tmp_path)
    assert [found[number]["status"] for number in range(4)] == [0, 2, 1, 1]
    summary = json.loads((tmp_path / found[0]["run"] / "summary.json").read_text())
    assert found[0]["objective"] == summary["best_accuracy"]
    assert summary["workers"] == workers
    if launcher in LOGGED:
        logs = [Path(found[number]["log"]).read_text() for number in (1, 2)]
        assert told in logs[0]
        assert "Traceback" in logs[1]
    if launcher == "submitit_local":  # Ray shows what is in the logs
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_own_classes_are_found_in_every_job(start, tmp_path, launcher):
    own_files.write(
        tmp_path / "own",
        mydata="from fedbench.data import Digits as Mine",
        data__mine="""
            defaults: [digits, _self_]
            _target_: mydata.Mine
        """,
    )
    ended = end(start(launcher, "data=mine", "seed=0,1", "runtime.workers=2"), tmp_path)
    assert ended.status == 0, ended.err
    assert ended.out.count("run: results/runs/mine-") == 2


@pytest.mark.parametrize(
    "launcher",
    [
        "basic",
        pytest.param("joblib", marks=pytest.mark.by_hand),
        pytest.param("submitit_local", marks=pytest.mark.by_hand),
        RAY,
    ],
)
def test_a_refused_job_alone_is_status_2(start, tmp_path, launcher):
    ended = end(start(launcher, "cohort=3,1000", "runtime.workers=1"), tmp_path)
    assert ended.status == 2, ended.err
    assert len(ended.lines) == 2
    assert "Traceback" not in ended.err
    assert len(re.findall("^run: results/runs/", ended.out, flags=re.M)) == 1


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", RAY])
def test_no_value_of_the_environment_is_in_a_launchers_files(start, tmp_path, launcher):
    """submitit pickles configurations and results."""
    words = ("data=faulty", "seed=0,1", "data.root=${oc.env:MY_TOKEN}/data", "runtime.workers=1")
    token = "token-that-nobody-may-see"
    ended = end(start(launcher, *words, MY_TOKEN=token, PLANTED_TOKEN=token), tmp_path)
    assert ended.status == 1, ended.err
    assert "job 1 (seed=1) failed: RuntimeError: planted ${oc.env:MY_TOKEN}; log: " in ended.err
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) > 10
    assert [file for file in files if token.encode() in file.read_bytes()] == []


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_job_whose_process_is_killed_is_named(start, tmp_path, launcher):
    ended = end(
        start(launcher, "data=faulty", "data.fault=kill", "seed=1,0", "runtime.workers=1"), tmp_path
    )
    assert ended.status == 1, ended.err
    log = "..." if launcher == "submitit_local" else "above"
    # The other job may not have begun by then: all words name the only one.
    line = rf"fedbench: job 0 [(].*seed=1.*[)] did not report its end; log: {re.escape(log)}"
    assert re.fullmatch(line, ended.lines[0] if ended.lines else ""), ended.err
    assert " failed: " in ended.err
    assert "Traceback" not in ended.err
    wait_for(lambda: no_job_goes_on(tmp_path))


def no_job_goes_on(folder: Path) -> bool:
    """Whether all jobs have ended with the parent. The kernel may take a moment to end them."""
    return not any(
        one["status"] is None and Path(f"/proc/{one['pid']}").exists()
        for one in outcomes(folder).values()
    )


@pytest.mark.parametrize(
    ("launcher", "number", "whom"),
    [
        *(("joblib", signal.SIGINT, "all"), ("submitit_local", signal.SIGINT, "all")),
        *(
            pytest.param(launcher, signal.SIGTERM, "parent", marks=pytest.mark.by_hand)
            for launcher in ("joblib", "submitit_local")  # as in the test that follows
        ),
        pytest.param("ray", signal.SIGINT, "parent", marks=pytest.mark.by_hand),
    ],
)
def test_an_interrupted_sweep_leaves_runs_that_go_on(start, tmp_path, launcher, number, whom):
    """Ctrl-C in a terminal goes to every process of its foreground group, `kill` to the parent
    alone.
    """
    two = ("hydra.launcher.n_jobs=2",) if launcher == "joblib" else ()
    words = ("seed=0,1", "rounds=100000", "checkpoint.every=100000", "runtime.workers=1", *two)
    process = start(launcher, *words)

    def both_train() -> bool:
        files = list(tmp_path.glob("results/runs/*/*/metrics.csv"))
        return len(files) == 2 and all(len(file.read_text().splitlines()) > 2 for file in files)

    wait_until(both_train, process, tmp_path)
    if whom == "all":
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    ended = end(process, tmp_path)
    assert ended.status == 130, ended.err
    assert "Traceback" not in ended.err
    told = (
        "fedbench: interrupted; the same command (without force=true) resumes from the last"
        " checkpoint"
    )
    assert [line for line in ended.err.splitlines() if line.startswith("fedbench: ")] == [told]
    assert [outcomes(tmp_path)[job]["status"] for job in (0, 1)] == [130, 130]
    saved = list(tmp_path.glob("results/runs/*/*/checkpoint-*"))
    assert len(saved) == 2
    rounds = min(int(folder.name.rpartition("-")[2]) for folder in saved)
    assert rounds >= 2
    # The same command with fewer rounds would be another run: go on until a later round is seen.
    process = start("basic", *(word for word in words if word not in two))
    wait_until(
        lambda: "resuming after round" in (tmp_path / "out.txt").read_text(), process, tmp_path
    )


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_a_stopped_sweep_does_not_begin_its_other_jobs(start, tmp_path, launcher):
    """Those that wait for a process, and those that are still being started."""
    one = ("hydra.launcher.n_jobs=1",) if launcher == "joblib" else ()
    process = start(launcher, "seed=0,1,2,3", "rounds=100000", "runtime.workers=1", *one)
    wait_until(lambda: bool(outcomes(tmp_path)), process, tmp_path)
    os.kill(process.pid, signal.SIGTERM)
    ended = end(process, tmp_path)
    assert ended.status == 130, ended.err
    assert all(one["status"] == 130 for one in outcomes(tmp_path).values())

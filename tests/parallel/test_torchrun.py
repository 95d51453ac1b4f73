"""Ranks that torchrun started: the same bits, one way to refuse, to fail, to go on after a restart,
and to end.

Most tests fork the ranks from this process and keep torchrun's store here, as its agent does: that
takes a second where torchrun takes ten. The heavy ones start torchrun itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch.distributed as dist
from filelock import FileLock
from support import faulty_runs, inject
from support.faulty_runs import SETTING, Ended, folder_of, members, result, uninterrupted
from support.waiting import LIMIT, wait_until

from fedbench import train
from fedbench.parallel import ranks

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
INJECT = Path(inject.__file__)
SCAFFOLD = (*SETTING, "algo=scaffold")


class Agent:
    """What torchrun is to its ranks: a store that outlives them, and their environment."""

    def __init__(self, size: int = 2):
        self.size, self.attempts = size, 0
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def environment(self, rank: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": str(self.attempts),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def attempt(
        self, *words: str, fault: dict | None = None, only: dict[int, list[str]] | None = None
    ) -> list[Ended]:
        """All ranks, once. The fault names its rank; `only` gives a rank words of its own."""
        started, board = [], inject.Board()
        for rank in range(self.size):
            own = [*words, *(only or {}).get(rank, [])]
            environment = self.environment(rank)
            started.append(
                faulty_runs.start(fault or {}, *own, environment=environment, board=board)
            )
        self.attempts += 1
        if fault and fault.get("kind") == "hang":  # nobody else ends it
            others = [process for rank, process in enumerate(started) if rank != fault["rank"]]
            ended = {process.pid: process.end() for process in others}
            started[fault["rank"]].kill()
            return [ended.get(process.pid) or process.end() for process in started]
        return [process.end() for process in started]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)
    for name in ("GRACE_SECONDS", "LAST_WORDS_SECONDS"):  # a slow machine is no broken one
        monkeypatch.setattr(ranks, name, LIMIT)
    monkeypatch.setattr(ranks, "NETWORK_FILE_SECONDS", 0)  # this is none, and shows files at once


def lines(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith("fedbench: ")]


def test_torchrun_gives_the_bits_of_one_process(start_fedbench):
    expected = uninterrupted("algo=scaffold")
    process = start_fedbench(*SCAFFOLD, "results=torchrun", launcher=TORCHRUN)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("run: ") == 1
    assert result(folder_of("torchrun")) == expected
    assert json.loads((folder_of("torchrun") / "summary.json").read_text())["workers"] == 2


@pytest.mark.parametrize("size", [3, pytest.param(2, marks=pytest.mark.heavy)])
def test_forked_ranks_give_the_bits_of_one_process(size):
    ended = Agent(size).attempt(*SCAFFOLD, "results=ranks")
    assert [one.status for one in ended] == [0] * size, ended[0].err
    assert result(folder_of("ranks")) == uninterrupted("algo=scaffold")


def test_other_data_on_one_machine_is_refused(tmp_path):
    """The seed decides which stand-in it is: what another file under the same name would be."""
    ended = Agent().attempt(*SCAFFOLD, "results=ranks", only={1: ["data.subset=100"]})
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])  # one rank of each machine speaks
    assert lines(ended[1]) == []
    assert line.startswith("fedbench: rank 1 on host ")
    assert "has another dataset than rank 0" in line
    assert not Path("ranks").exists()


def test_a_refusal_on_one_machine_ends_all(tmp_path):
    ended = Agent().attempt(
        *SCAFFOLD, "results=ranks", only={1: ["data.source=real", f"data.root={tmp_path}"]}
    )
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])
    assert line.startswith("fedbench: rank 1 on host ")
    assert "data=mnist: not in" in line
    assert not Path("ranks").exists()


def test_a_word_that_one_machine_does_not_know_ends_all():
    ended = Agent().attempt(*SCAFFOLD, "results=ranks", only={1: ["roundz=3"]})
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])
    assert line.startswith("fedbench: rank 1 on host ")
    assert line.endswith("unknown key 'roundz': did you mean 'rounds'?")
    assert not Path("ranks").exists()


def test_a_refused_job_does_not_end_a_sweep_whose_files_the_leader_writes():
    folders = {0: ["hydra.sweep.dir=leader"], 1: ["hydra.sweep.dir=follower"]}
    words = ("-m", *SCAFFOLD, "results=ranks", "rounds=1", "cohort=2,1000,3")
    ended = Agent().attempt(*words, "hydra.output_subdir=.hydra", only=folders)
    assert [one.status for one in ended] == [2, 2]
    assert ended[0].out.count("run: ") == 2
    assert any("job 1: cohort=1000: must be at most" in line for line in lines(ended[0]))
    made = {"multirun.yaml", "summary.csv", "comparison.png", "0", "1", "2"}
    assert {file.name for file in Path("leader").iterdir()} == made
    assert not Path("follower").exists()


EXPERIMENT = """# @package _global_
defaults:
  - /experiment/_grid
rounds: 1
client: {epochs: 1}
partition: {clients: 3}
study:
  title: Two methods of mine
  axes:
    method:
      FedAvg: algo=fedavg
      FedProx: algo=fedprox
  seeds: [0]
  show:
    form: table
    rows: [method]
    measures: {Best: best_accuracy}
"""


def test_the_plan_of_a_table_is_made_and_told_by_the_leader():
    own = Path("own", "experiment")
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text(EXPERIMENT)
    words = ("--config-dir", "own", "experiment=mine", "logger=none")
    ended = Agent().attempt(*words, only={0: ["results=here"], 1: ["results=there"]})
    assert [one.status for one in ended] == [2, 2]
    assert lines(ended[0])[0].endswith("and this one does not see rank 0's files")
    assert [file.name for file in Path("here").rglob("*") if file.is_file()] == ["mine.paper.json"]
    assert not Path("there").exists()
    assert ended[0].out.startswith("2 runs; afterwards")
    assert ended[1].out == ""


def test_machines_with_folders_of_their_own_are_refused():
    ended = Agent().attempt(*SCAFFOLD, only={0: ["results=here"], 1: ["results=there"]})
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])
    assert "results=there: all machines must see the same folder" in line
    assert not Path("here").exists()
    assert not Path("there").exists()


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_killed_rank_resumes_at_the_first_restart(rank):
    agent = Agent()
    fault = {"place": "checkpoint", "call": 2, "rank": rank, "kind": "kill"}
    first = agent.attempt(*SCAFFOLD, "results=ranks", fault=fault)
    assert first[rank].status == -signal.SIGKILL
    other = first[1 - rank]
    assert other.status == 1
    assert "Traceback" not in other.err
    second = agent.attempt(*SCAFFOLD, "results=ranks")
    assert [one.status for one in second] == [0, 0], second[0].err
    assert second[0].resumed_after == 2
    assert result(folder_of("ranks")) == uninterrupted("algo=scaffold")


def test_a_lost_rank_is_one_line():
    ended = Agent().attempt(
        *SCAFFOLD, fault={"place": "training", "call": 2, "rank": 1, "kind": "kill"}
    )
    (line,) = lines(ended[0])
    assert "lost another rank" in line
    assert "the last checkpoint is kept" in line


def test_the_others_name_the_rank_that_failed_and_why():
    fault = {"place": "training", "call": 2, "rank": 1, "kind": "ENOSPC"}
    ended = Agent().attempt(*SCAFFOLD, fault=fault)
    assert [one.status for one in ended] == [1, 1]
    (line,) = lines(ended[0])
    assert line.startswith("fedbench: rank 1 on host ")
    assert "the disk is full" in line
    (own,) = lines(ended[1])
    assert "the disk is full" in own


def test_a_silent_rank_is_waited_for_as_long_as_said():
    fault = {"place": "training", "call": 2, "rank": 1, "kind": "hang"}
    ended = Agent().attempt(*SCAFFOLD, "runtime.timeout=2", fault=fault)
    assert ended[0].status == 1
    assert ended[1].status == -signal.SIGKILL
    (line,) = lines(ended[0])
    told = "fedbench: runtime.timeout=2: rank 0 on host "
    assert line.startswith(told)
    assert "waited 2 seconds for another rank; the last checkpoint is kept" in line


def test_joining_ends_with_the_time_limit(monkeypatch):
    connect = ranks._open_store
    monkeypatch.setattr(ranks, "_open_store", lambda rank, timeout: connect(rank, LIMIT))
    agent = Agent()
    ended = faulty_runs.start(
        {}, *SCAFFOLD, "runtime.timeout=2", environment=agent.environment(0)
    ).end()
    assert ended.status == 1
    (line,) = lines(ended)
    assert line.startswith("fedbench: runtime.timeout=2: rank 0 on host ")
    assert line.endswith("waited 2 seconds for rank 1 of 2")


@pytest.mark.parametrize(
    ("kind", "rank"),
    [
        ("own SIGTERM", 0),
        ("own SIGINT", 1),
        pytest.param("own SIGTERM", 1, marks=pytest.mark.heavy),
        pytest.param("own SIGINT", 0, marks=pytest.mark.heavy),
    ],
)
def test_a_signal_to_one_rank_stops_all_with_a_checkpoint(kind, rank):
    """Also when it comes twice, to the rank itself and through torchrun."""
    agent = Agent()
    fault = {"place": "training", "call": 5, "rank": rank, "kind": kind, "times": 2}
    setting = (*SCAFFOLD, "results=ranks", "checkpoint.every=1000")
    ended = agent.attempt(*setting, fault=fault)
    assert [one.status for one in ended] == [130, 130], ended[0].err + ended[1].err
    assert "Traceback" not in ended[0].err + ended[1].err
    assert "Ctrl-C again" not in ended[0].err + ended[1].err  # it would do nothing
    (stopped_after,) = faulty_runs.checkpoints("ranks")
    assert 0 < stopped_after < 5
    resumed = agent.attempt(*setting)
    assert [one.status for one in resumed] == [0, 0], resumed[0].err
    assert resumed[0].resumed_after == stopped_after
    assert result(folder_of("ranks")) == uninterrupted("algo=scaffold")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_in_the_last_round_ends_a_sweep_on_all_ranks(rank):
    """The job is finished, so no rank may begin the next one and wait for the others."""
    fault = {"place": "evaluation", "call": 1, "rank": rank, "kind": "own SIGTERM"}
    words = ("-m", *SCAFFOLD, "results=ranks", "rounds=1", "seed=0,1")
    ended = Agent().attempt(*words, fault=fault)
    assert [one.status for one in ended] == [130, 130], ended[0].err + ended[1].err
    assert "was interrupted" not in ended[0].err + ended[1].err  # no rank waited for another
    assert len(list(Path("ranks").glob("runs/*/*/summary.json"))) == 1
    assert len(list(Path("ranks").glob("runs/*/*/"))) == 1


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("checkpoint.every=3", "another checkpoint.every than rank 0 on host {host} (3, not 2)"),
        (
            "checkpoint.keep=true",
            "another checkpoint.keep than rank 0 on host {host} (true, not false)",
        ),
    ],
)
def test_settings_by_which_ranks_wait_for_each_other_must_be_equal(word, told):
    ended = Agent().attempt(*SCAFFOLD, "results=ranks", only={1: [word]})
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])
    assert told.format(host=socket.gethostname()) in line
    assert not Path("ranks").exists()


def test_a_rank_with_fewer_jobs_ends_all():
    """Rank 1 has done its only job, and rank 0 would wait for it in its second one."""
    words = (*SCAFFOLD, "results=ranks", "rounds=1")
    ended = Agent().attempt(*words, only={0: ["-m", "seed=0,1"], 1: ["seed=0"]})
    assert [one.status for one in ended] == [2, 0], ended[0].err
    line = lines(ended[0])[0]
    assert "rank 1 on host" in line
    assert "all ranks must be started with the same words" in line


def test_a_results_folder_that_one_machine_may_not_read_is_refused():
    Path("locked").mkdir(mode=0)
    only = {0: ["results=here"], 1: [f"results={Path('locked').absolute()}/there"]}
    ended = Agent().attempt(*SCAFFOLD, fault={"obedient": True}, only=only)
    Path("locked").chmod(0o700)
    assert [one.status for one in ended] == [2, 2], ended[1].err
    (line,) = lines(ended[0])
    assert line.startswith("fedbench: rank 1 on host ")
    assert "must be a folder that can be read on all machines (Permission denied)" in line
    assert not Path("here").exists()


def test_ranks_wait_together_for_another_program(monkeypatch):
    """The leader waits for the lock; the others learn now and then that it is still there."""
    monkeypatch.setattr(train, "LONGEST_WAIT", 0.01)
    whole = Agent()
    setting = (*SCAFFOLD, "results=ranks")
    assert whole.attempt(*setting)[0].status == 0
    file = folder_of("ranks").parent / f".{folder_of('ranks').name}.lock"
    lock = FileLock(file)
    lock.acquire()
    try:
        agent = Agent()
        started = [
            faulty_runs.start(
                {}, *setting, "runtime.timeout=600", environment=agent.environment(rank)
            )
            for rank in range(2)
        ]
        wait_until(lambda: started[0].said("waiting for it"))
    finally:
        lock.release()
    ended = [one.end() for one in started]
    assert [one.status for one in ended] == [0, 0], ended[0].err
    assert ended[0].out.count("waiting for it") == 1


def test_no_secret_of_one_machine_is_printed_by_another(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "token-that-nobody-may-see")
    words = ["data.source=real", "data.root=${oc.env:MY_TOKEN}/x"]
    ended = Agent().attempt(*SCAFFOLD, "results=ranks", only={1: words})
    assert [one.status for one in ended] == [2, 2]
    (line,) = lines(ended[0])
    assert "${oc.env:MY_TOKEN}/x" in line
    assert not any("token-that" in one.out + one.err for one in ended)


def test_a_follower_that_fails_leaves_no_folder(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where it was found before
    fault = {"place": "training", "call": 2, "rank": 1, "kind": "ENOSPC"}
    ended = Agent().attempt(*SCAFFOLD, fault=fault)
    assert [one.status for one in ended] == [1, 1]
    assert list(scratch.glob("fedbench-*")) == []


def test_a_working_directory_of_each_job_is_refused():
    """Relative results would be in another folder on every rank."""
    words = ("-m", *SCAFFOLD, "hydra.job.chdir=true", "seed=0,1")
    ended = Agent().attempt(*words)
    assert [one.status for one in ended] == [2, 2], ended[0].err
    told = "hydra.job.chdir=true: must be false under torchrun, unless results is an absolute path"
    assert told in lines(ended[0])[0]


def test_a_refusal_waits_for_the_others_no_longer_than_asked(monkeypatch):
    connect = ranks._open_store
    monkeypatch.setattr(ranks, "_open_store", lambda rank, timeout: connect(rank, LIMIT))
    agent = Agent()
    ended = faulty_runs.start(
        {}, *SCAFFOLD, "roundz=1", "runtime.timeout=1", environment=agent.environment(0)
    ).end()
    assert ended.status == 2
    (line,) = lines(ended)
    assert line.endswith("unknown key 'roundz': did you mean 'rounds'?")


def test_force_does_not_start_over_at_a_restart():
    agent = Agent()
    assert agent.attempt(*SCAFFOLD, "results=ranks")[0].status == 0
    agent = Agent()
    fault = {"place": "training", "call": 1, "rank": 1, "kind": "kill"}
    setting = (*SCAFFOLD, "results=ranks", "force=true", "checkpoint.every=1")
    agent.attempt(*setting, fault={**fault, "place": "checkpoint", "call": 3})
    second = agent.attempt(*setting)
    assert [one.status for one in second] == [0, 0], second[0].err
    assert second[0].resumed_after == 2
    assert result(folder_of("ranks")) == uninterrupted("algo=scaffold")


def test_force_still_counts_when_the_first_attempt_did_nothing():
    """It failed before it removed what an earlier run had left: that run must not pass for the new
    one.
    """
    assert Agent().attempt(*SCAFFOLD, "results=ranks")[0].status == 0
    before = (folder_of("ranks") / "summary.json").stat().st_mtime_ns
    agent = Agent()
    setting = (*SCAFFOLD, "results=ranks", "force=true")
    assert agent.attempt(*setting, only={1: ["roundz=3"]})[0].status == 2
    assert (folder_of("ranks") / "summary.json").stat().st_mtime_ns == before
    second = agent.attempt(*setting)
    assert [one.status for one in second] == [0, 0], second[0].err
    assert (folder_of("ranks") / "summary.json").stat().st_mtime_ns > before
    assert second[0].rounds == 5


def test_a_checkpoint_without_the_file_of_a_rank_is_not_whole():
    """A listing of the folder may be stale on a network file system, so the manifest says how many
    ranks there were.
    """
    agent = Agent()
    fault = {"place": "final", "kind": "kill"}
    agent.attempt(*SCAFFOLD, "results=broken", fault=fault)
    newest = max(faulty_runs.checkpoints("broken").items())[1]
    manifest = json.loads((newest / "manifest.json").read_text())
    assert manifest["ranks"] == 2
    assert set(manifest["files"]) == {
        "server.safetensors",
        "clients-0.safetensors",
        "clients-1.safetensors",
    }
    del manifest["files"]["clients-1.safetensors"], manifest["checksum"]
    from fedbench.core.files import checksum_of

    manifest["checksum"] = checksum_of(manifest)
    (newest / "manifest.json").write_text(json.dumps(manifest))
    resumed = agent.attempt(*SCAFFOLD, "results=broken")
    assert "files of some ranks are missing" in resumed[0].out
    assert resumed[0].resumed_after == 2
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


@contextmanager
def busy_loops(number: int = 2) -> Iterator[None]:
    """Keep the processors busy: what is right only on an idle machine fails here."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def torchrun(
    *words: str, fault: dict | None = None, restarts: int = 0
) -> subprocess.CompletedProcess:
    command = [sys.executable, *TORCHRUN, f"--max-restarts={restarts}"]
    target = ["-m", "fedbench"] if fault is None else [str(INJECT), json.dumps(fault)]
    return subprocess.run([*command, *target, *words], capture_output=True, text=True, check=False)


@pytest.mark.heavy
@pytest.mark.parametrize("sweep", [(), ("-m", "seed=0,1")], ids=["run", "sweep"])
def test_finished_runs_end_well_on_a_busy_machine(sweep):
    with busy_loops():
        for attempt in range(1 if sweep else 2):
            ended = torchrun(*sweep, *SCAFFOLD, "rounds=2", f"results=results{attempt}")
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout.count("run: ") == (2 if sweep else 1)


@pytest.mark.heavy
@pytest.mark.parametrize("rank", [0, 1])
def test_torchrun_resumes_at_the_first_restart(rank):
    """The store that torchrun keeps still holds what the dead ranks wrote."""
    fault = {"place": "checkpoint", "call": 2, "rank": rank, "kind": "kill"}
    with busy_loops():
        ended = torchrun(*SCAFFOLD, "results=broken", fault=fault, restarts=1)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("resuming after round 2") == 1
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


@pytest.mark.heavy
def test_no_rank_outlives_torchrun(start_fedbench):
    process = start_fedbench(*SCAFFOLD, "rounds=1000000", launcher=TORCHRUN)

    def begun() -> bool:
        return bool(list(Path().glob("results/runs/*/*/metrics.csv")))

    wait_until(lambda: begun() or process.poll() is not None)
    assert begun()
    ranks = [
        int(child)
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ]
    assert len(ranks) == 2
    groups = [os.getpgid(rank) for rank in ranks]
    process.kill()
    process.communicate()
    for group in groups:
        assert faulty_runs.wait_until_empty(group) == []
    assert not any(members(group) for group in groups)

"""W&B mirrors the run folder: the offline file is read back and compared with it."""

from __future__ import annotations

import csv
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from fedbench.parallel.interrupt import StopRequest
from fedbench.runs import wandb as tracking
from fedbench.runs.wandb import Wandb, has_credentials

QUICK = ("rounds=3", "client.epochs=1", "partition.clients=4", "runtime.workers=2")
KEY = "0123456789abcdef0123456789abcdef01234567"
BLOCK = 32768  # the file is a LevelDB log: blocks of records, each with checksum, length and type


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch, tmp_path):
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


def read_records(path: Path) -> list:
    from wandb.proto import wandb_internal_pb2

    content, position, pieces, records = path.read_bytes(), 7, b"", []
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        if BLOCK - position % BLOCK < 7:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + 7])
        pieces += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            records.append(record)
            pieces = b""
    return records


def items(entries) -> dict:
    return {
        (entry.key or "/".join(entry.nested_key)): json.loads(entry.value_json) for entry in entries
    }


def test_the_offline_file_holds_config_metrics_summary_and_picture(fedbench):
    run = fedbench(*QUICK, quiet=False)
    assert run.status == 0, run.err
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    records = read_records(file)
    history = [
        items(record.history.item)
        for record in records
        if record.WhichOneof("record_type") == "history"
    ]
    with open(run.folder / "metrics.csv") as stream:
        expected = list(csv.DictReader(stream))
    logged = [row for row in history if "test_accuracy" in row]
    assert len(logged) == 3
    for row, wanted in zip(logged, expected, strict=True):
        assert row["_step"] == int(wanted["round"])
        for key in ("test_accuracy", "test_loss", "train_loss", "bytes_up"):
            assert row[key] == pytest.approx(float(wanted[key]))
    assert any(row.get("partition/_type") == "image-file" for row in history)
    assert list(run.folder.glob("wandb/offline-run-*/files/media/images/partition*.png"))
    runs = [record.run for record in records if record.WhichOneof("record_type") == "run"]
    config = items(runs[0].config.update)
    assert config["rounds"] == 3
    assert config["algo"]["name"] == "fedavg"
    assert runs[0].run_id == run.folder.name
    summary = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            summary |= items(record.summary.update)
    assert summary["digest"] == json.loads((run.folder / "summary.json").read_text())["digest"]


def test_logging_does_not_change_the_numbers_and_none_writes_nothing(fedbench):
    logged = fedbench(*QUICK, quiet=False)
    silent = fedbench(*QUICK, "results=silent")
    digests = [
        json.loads((run.folder / "summary.json").read_text())["digest"] for run in (logged, silent)
    ]
    assert digests[0] == digests[1]
    assert logged.folder.name == silent.folder.name
    assert not (silent.folder / "wandb").exists()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine on which nobody listens, and which no other program can get."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def asked(monkeypatch, tmp_path) -> Path:
    """A file to which every call of wandb.init adds a line, in this process and in forked ones."""
    import wandb

    file, original = tmp_path / "asked.txt", wandb.init

    def init(mode: str, settings: wandb.Settings, **arguments):
        with open(file, "a") as lines:
            lines.write(f"{mode} {settings.init_timeout:g}\n")
        return original(mode=mode, settings=settings, **arguments)

    monkeypatch.setattr(wandb, "init", init)
    return file


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_without_a_network_a_sweep_waits_once_and_logs_offline(
    fedbench, monkeypatch, tmp_path, closed_port, workers, asked
):
    """Only the server has little time to answer: a busy machine may be slow to log offline."""
    monkeypatch.setattr(tracking, "INIT_SECONDS", 1)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://user:hidden-password@127.0.0.1:{closed_port}")
    run = fedbench("-m", *QUICK, f"runtime.workers={workers}", "seed=0,1", quiet=False)
    assert run.status == 0, run.err
    assert run.out.count("W&B cannot be used") == 1, run.out
    where = re.findall(r"^W&B: offline; wandb sync results/runs/\S+ sends it$", run.out, re.M)
    assert len(where) == 2
    assert asked.read_text().splitlines() == ["online 1", "offline 90", "offline 90"]
    assert run.out.count("logging offline") == 1
    files = list(Path("results").glob("runs/*/*/wandb/offline-run-*/*.wandb"))
    assert len(files) == 2
    for file in files:
        history = [items(record.history.item) for record in read_records(file)]
        assert len([row for row in history if "test_accuracy" in row]) == 3
    texts = [
        (run.out + run.err).encode(),
        *(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()),
    ]
    assert not [text for text in texts if b"hidden-password" in text or KEY.encode() in text]


def test_a_run_is_closed_when_wandbs_service_has_written_everything(monkeypatch, tmp_path):
    """To finish a run only asks the service; it is done when it has ended."""
    import wandb

    called = []
    run = SimpleNamespace(
        finish=lambda: called.append("finish"), offline=True, dir=str(tmp_path / "own" / "files")
    )
    monkeypatch.setattr(tracking, "start", lambda *_, **arguments: run)
    monkeypatch.setattr(wandb, "teardown", lambda: called.append("teardown"))
    Wandb(mode="offline").start("id", "label", {}, tmp_path).close()
    assert called == ["finish", "teardown"]


def test_one_offline_folder_is_left_of_a_resumed_run(monkeypatch, tmp_path, capsys):
    """W&B opens another one for each attempt; other runs' folders are not touched."""
    for name in ("offline-run-1-id", "offline-run-2-id", "offline-run-1-other", "run-1-id"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    own = tmp_path / "wandb" / "offline-run-2-id"
    run = SimpleNamespace(offline=True, dir=str(own / "files"))
    monkeypatch.setattr(tracking, "start", lambda *_, **arguments: run)
    Wandb(mode="offline").start("id", "label", {}, tmp_path)
    left = {folder.name for folder in (tmp_path / "wandb").iterdir()}
    assert left == {"offline-run-2-id", "offline-run-1-other", "run-1-id"}
    assert capsys.readouterr().out == f"W&B: offline; wandb sync {own} sends it\n"


@pytest.mark.heavy
def test_the_offline_folder_of_a_resumed_run_has_all_rounds(fedbench, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "requested", True)  # after the first round
        stopped = fedbench(*QUICK, quiet=False)
    assert stopped.status == 130, stopped.err
    (first,) = Path("results").glob("runs/*/*/wandb/offline-run-*")
    second = first.name[: len("offline-run-YYYYMMDD_hhmmss")]  # W&B names a folder by its second
    wait_until(lambda: time.strftime("offline-run-%Y%m%d_%H%M%S") > second)
    run = fedbench(*QUICK, quiet=False)
    assert "resuming after round 1" in run.out
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    assert file.parent.name != first.name
    history = [items(record.history.item) for record in read_records(file)]
    assert [row["_step"] for row in history if "test_accuracy" in row] == [1, 2, 3]


def test_one_line_says_where_a_run_is_logged(monkeypatch, tmp_path, capsys):
    run = SimpleNamespace(offline=False, url="https://user:secret@host/fedbench/runs/id")
    monkeypatch.setattr(tracking, "start", lambda *_, **arguments: run)
    Wandb(mode="online").start("id", "label", {}, tmp_path)
    assert capsys.readouterr().out == "W&B: https://***@host/fedbench/runs/id\n"


def test_an_address_is_printed_without_its_password(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    error = RuntimeError(f'Post "http://user:p@ss@host:8080/graphql?key={KEY}": refused\nmore')
    assert tracking._first_line(error) == 'Post "http://***@host:8080/graphql?key=***": refused'


@pytest.mark.parametrize("place", ["environment", "netrc", "nowhere"])
def test_credentials_are_found_where_wandb_looks(monkeypatch, tmp_path, place):
    if place == "environment":
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    elif place == "netrc":
        (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password " + "x" * 40)
        (tmp_path / ".netrc").chmod(0o600)
    assert has_credentials() == (place != "nowhere")


@pytest.mark.parametrize(("key", "expected"), [(True, "online"), (False, "offline")])
def test_online_with_credentials_and_offline_without(monkeypatch, tmp_path, key, expected):
    seen = {}
    monkeypatch.setattr(
        tracking, "_WandbRun", lambda settings, mode, *rest: seen.setdefault("mode", mode)
    )
    if key:
        monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    Wandb().start("id", "label", {}, tmp_path)
    assert seen["mode"] == expected

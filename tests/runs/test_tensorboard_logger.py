"""TensorBoard's files are read back and compared with the run's folder."""

from __future__ import annotations

import importlib.util
import json
import os
import signal

import pytest
from support.run_files import QUICK, rows, summary

from fedbench.runs.tensorboard import TensorBoard


def read(folder):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = loader.EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def test_the_files_hold_config_metrics_summary_and_picture(fedbench):
    run = fedbench("logger=tensorboard", *QUICK, "data.subset=60", quiet=False)
    assert run.status == 0, run.err
    assert f"TensorBoard: tensorboard --logdir {run.folder}/tensorboard\n" in run.out
    events, table = read(run.folder), rows(run.folder)
    names = set(events.Tags()["scalars"])
    assert names == set(table[0]) - {"round"}
    for name in names:
        logged = [(event.step, event.value) for event in events.Scalars(name)]
        expected = [(int(row["round"]), float(row[name])) for row in table]
        assert logged == [(step, pytest.approx(value)) for step, value in expected]
    assert events.Tags()["images"] == ["partition"]
    (text,) = events.Tensors("summary/text_summary")
    stored = json.loads(text.tensor_proto.string_val[0])
    assert stored["digest"] == summary(run.folder)["digest"]
    (text,) = events.Tensors("config/text_summary")
    assert json.loads(text.tensor_proto.string_val[0])["rounds"] == 2


def test_a_resumed_run_has_every_round_once(fedbench, monkeypatch):
    from fedbench.runs.writer import RunWriter

    words = ("logger=tensorboard", *QUICK, "data.subset=60", "rounds=4", "checkpoint.every=100")
    add = RunWriter.add

    def interrupt(writer, record):
        add(writer, record)
        if record.round == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(RunWriter, "add", interrupt)
    assert fedbench(*words, quiet=False).status == 130
    monkeypatch.setattr(RunWriter, "add", add)
    run = fedbench(*words, quiet=False)
    assert "resuming after round 2" in run.out
    steps = [event.step for event in read(run.folder).Scalars("test_accuracy")]
    assert steps == [1, 2, 3, 4]


def test_without_the_package_one_line_names_the_extra(monkeypatch, fedbench):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    run = fedbench("logger=tensorboard", quiet=False)
    told = "logger=tensorboard: not installed; pip install 'fedbench-lab[tensorboard]'"
    assert (run.status, run.err) == (2, f"fedbench: {told}\n")


def test_a_run_continues_without_a_tensorboard_that_fails(monkeypatch, tmp_path, capsys):
    from torch.utils import tensorboard

    def refuse(folder: str) -> None:
        raise RuntimeError("no files today")

    monkeypatch.setattr(tensorboard, "SummaryWriter", refuse)
    logger = TensorBoard().start("id", "label", {}, tmp_path)
    logger.log({"round": 1, "test_accuracy": 0.5})
    logger.finish({}, tmp_path / "partition.png")
    told = "TensorBoard failed (no files today); the run's folder has everything\n"
    assert capsys.readouterr().out == told

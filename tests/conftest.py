"""Shared fixtures: an isolated results folder and data root, and the command line called in this
process.
"""

from __future__ import annotations

import mmap
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra._internal.hydra import Hydra
from hydra.types import RunMode
from hypothesis import HealthCheck, settings
from support import quick_configuration

torch.set_num_threads(1)  # ranks are forked from this process: no thread pool may be running
# How long an example takes, or takes to be drawn, depends on what else the machine does.
settings.register_profile("any pace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any pace")
os.environ["WANDB_ERROR_REPORTING"] = "false"  # nothing is sent to W&B's makers


def pytest_configure(config: pytest.Config) -> None:
    """No test may have a GPU but those that are marked so: results on one have other bits."""
    selected = re.sub(r"\bnot\s+gpu\b", "", config.option.markexpr)
    if not re.search(r"\bgpu\b", selected):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def signals_that_end_a_program():
    """Ctrl-C and SIGTERM end what a test starts: children inherit a signal that is ignored.

    A shell without job control ignores Ctrl-C in its background jobs, and a program that leaves
    (`Ranks.leave`) ignores both: in a test that is the process of all later tests.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


compose_to_find_the_mode = Hydra.get_mode


def find_the_mode(hydra: Hydra, config_name: str | None, overrides: list[str]) -> RunMode | None:
    """Hydra composes everything twice, first only to read `hydra.mode`. Few words can set that."""
    if "--config-dir" in sys.argv or any(
        "experiment" in word or "hydra" in word for word in overrides
    ):
        return compose_to_find_the_mode(hydra, config_name, overrides)
    return None


Hydra.get_mode = find_the_mode
quick_configuration.install()


def written_at_once(file: int) -> None:
    """In place of `os.fsync`: no test cuts the power, and a disk takes longer than a small run."""


os.fsync = written_at_once


@dataclass
class Outcome:
    status: int
    out: str
    err: str

    @property
    def folder(self) -> Path:
        last = self.out.strip().splitlines()[-1]
        assert last.startswith("run: "), self.out + self.err
        return Path(last.removeprefix("run: "))


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty data root, for tests that need no real dataset."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="session")
def draw_once() -> Callable:
    """The partition's picture takes as long as a small run: each is drawn once, and then copied."""
    from fedbench.partitions import save_picture

    drawn: dict[tuple, bytes] = {}

    def save(path: Path, counts: np.ndarray, title: str) -> None:
        key = (counts.shape, counts.tobytes(), title)
        if key in drawn:
            path.write_bytes(drawn[key])
            return
        save_picture(path, counts, title)
        drawn[key] = path.read_bytes()

    return save


def draw_nothing(path: Path, *arguments: object) -> None:
    """In place of curves, which differ from run to run: tests/runs/test_curves.py draws some."""
    path.write_bytes(b"\x89PNG")


@pytest.fixture
def fedbench(tmp_path, monkeypatch, capfd, data_root, draw_once):
    """Call `fedbench ...` in this process; results go to a temporary folder."""
    from fedbench import cli as program
    from fedbench.config import own_code
    from fedbench.runs import wandb as tracking

    monkeypatch.setattr(own_code, "_folders", [])  # `--config-dir` adds some
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # which the program sets for itself: not for others
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedbench.runs.writer.save_picture", draw_once)
    monkeypatch.setattr("fedbench.runs.writer.save_curves", draw_nothing)
    monkeypatch.setattr("fedbench.runs.sweep_report.save_comparison", draw_nothing)
    monkeypatch.setattr(tracking, "unreachable", mmap.mmap(-1, 1))  # what another test found out

    def call(*arguments: str, quiet: bool = True) -> Outcome:
        words = ["fedbench", *(["logger=none"] if quiet else []), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            program.main()
        captured = capfd.readouterr()
        return Outcome(ended.value.code, captured.out, captured.err)

    return call


@pytest.fixture
def own_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A user's own folder, `--config-dir own` for `fedbench`, of which nothing stays in memory."""
    from support import own_files

    from fedbench.config import own_code

    monkeypatch.setattr(own_code, "_folders", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "own"
    folder.mkdir()
    yield folder
    own_files.forget(folder)


@pytest.fixture
def fedbench_data(tmp_path, monkeypatch, capfd):
    """Call `fedbench-data ...` in this process, on an own data root: status, standard output,
    standard error.
    """
    from fedbench.data.prepare import cli as command

    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "root"))

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedbench-data", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            command.main()
        return ended.value.code, *capfd.readouterr()

    return call


@pytest.fixture
def start_fedbench(tmp_path, data_root):
    """Start `fedbench ...` as a process of its own."""
    started = []

    def start(*arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
        command = [sys.executable, *launcher, "-m", "fedbench", *arguments]
        environment = {**os.environ, "FEDBENCH_DATA": str(data_root)}
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.fixture(scope="session")
def real_data() -> Path:
    root = os.environ.get("FEDBENCH_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("FEDBENCH_DATA does not point to the datasets")
    return Path(root)


@pytest.fixture
def small_vit(monkeypatch):
    """torchvision's ViT-B/32 in all but depth and width."""
    from fedbench.core.torchvision_operators import import_torchvision

    models = import_torchvision().models
    small = partial(
        models.VisionTransformer,
        patch_size=32,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=24,
        num_classes=10,
    )
    monkeypatch.setattr(models, "vit_b_32", small)
    return small

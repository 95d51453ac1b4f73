"""The program that checks a GPU, as far as it runs without one."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedbench.parallel.devices import Gpu, Gpus

SCRIPTS = Path(__file__).parents[1] / "scripts"


@pytest.fixture
def script(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("gpu_check")


def call(script: ModuleType, monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", *words])
    return script.main()


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Gpus(), "no GPU: there is none here; nothing was checked\n"),
        (Gpus(problem="its driver is too old"), "no GPU: its driver is too old; nothing was"),
    ],
)
def test_without_a_gpu_it_says_so(script, monkeypatch, capfd, found, line):
    monkeypatch.setattr(script.devices, "gpus", lambda: found)
    assert call(script, monkeypatch) == 0
    printed = capfd.readouterr().out
    assert printed.startswith(line)
    assert printed.count("\n") == 1


def test_the_table_compares_with_and_without_recorded_steps(script):
    speeds = [
        script.Speed("W1", "off", 0.5, 1000.0, 3 * 2**20),
        script.Speed("W1", "auto", 0.2, 2500.0, 5 * 2**20),
        script.Speed("W2", "auto", 0.1, 10.0, 0.0),
    ]
    lines = script.table(speeds, "a GPU").splitlines()
    assert lines[0].startswith("Measured by `make gpu-check` on a GPU, torch ")
    assert lines[4:] == [
        "| W1 | off | 500.0 ms | 1,000 | 1.00 | 3 MiB |",
        "| W1 | auto | 200.0 ms | 2,500 | 2.50 | 5 MiB |",
        "| W2 | auto | 100.0 ms | 10 | unknown | 0 MiB |",
    ]


def answers(monkeypatch, script: ModuleType, *found: str) -> None:
    """What runs of the command line end with, one after the other."""
    left = iter(found)
    monkeypatch.setattr(script.Runs, "digest", lambda *given, **named: next(left))


def test_bits_that_differ_are_a_failure(script, monkeypatch, tmp_path):
    runs = script.Runs("cpu", True, tmp_path)
    answers(monkeypatch, script, *"aaaa", *"aaab", *["status 1: broken"] * 4)
    assert script.check_ranks(runs, "algo=fedavg").good
    different = script.check_ranks(runs, "algo=fedavg")
    assert not different.good
    assert "'no graph': 'b'" in str(different)
    assert not script.check_ranks(runs, "algo=fedavg").good


@pytest.mark.parametrize(("killed", "resumed", "good"), [(1, "a", 1), (0, "a", 0), (1, "b", 0)])
def test_a_kill_that_came_too_late_is_a_failure(
    script, monkeypatch, tmp_path, killed, resumed, good
):
    answers(monkeypatch, script, "a", resumed)
    monkeypatch.setattr(script.Runs, "killed", lambda *given: bool(killed))
    assert script.check_kill(script.Runs("cpu", True, tmp_path), "algo=fedavg").good == bool(good)


@pytest.mark.parametrize(
    ("status", "text", "good"),
    [
        (1, "GPU 0 has not enough memory; a smaller client.batch_size\nneeds less", True),
        (1, "Traceback (most recent call last):\n client.batch_size", False),
        (1, "there is not enough memory", False),
        (0, "client.batch_size", False),
    ],
)
def test_out_of_memory_must_be_told_well(script, monkeypatch, tmp_path, status, text, good):
    done = subprocess.CompletedProcess([], status, "", text)
    monkeypatch.setattr(script.subprocess, "run", lambda *given, **named: done)
    assert script.check_out_of_memory(script.Runs("cuda", False, tmp_path)).good == good


def test_a_gpu_is_checked_and_a_failure_is_the_status(script, monkeypatch, capfd):
    gpus = Gpus((Gpu("Some GPU", "9.0", 2**34),), {"driver": "1.2"})
    monkeypatch.setattr(script.devices, "gpus", lambda: gpus)
    bad = script.Check("bits", False, "differ")
    monkeypatch.setattr(script, "checks", lambda runs: [lambda: bad])
    monkeypatch.setattr(
        script, "measured", lambda name, *rest: script.Speed(name, rest[1], 1, 1, 1)
    )
    assert call(script, monkeypatch) == 1
    printed = capfd.readouterr().out
    assert "FAILED  bits: differ" in printed
    assert "on Some GPU, 16 GiB, driver 1.2, torch" in printed
    for name in ("W1", "W2", "W3", "ResNet-18"):
        assert f"| {name} | auto |" in printed


@pytest.mark.heavy
def test_a_rehearsal_on_the_cpu(script, monkeypatch, capfd, data_root):
    """All of it but CUDA, with the smallest workload."""
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.setattr(script, "LOADS", {"W3": script.LOADS["W3"]})
    assert call(script, monkeypatch, "--device", "cpu", "--quick") == 0
    printed = capfd.readouterr().out
    assert "FAILED" not in printed
    assert printed.count("ok    ") == 4
    assert "| W3 | auto |" in printed


@pytest.mark.heavy
def test_resnet_is_measured_as_torchvision_has_it(script):
    """The bench does not know it."""
    load = script.small(script.RESNET)
    built = script.federation_on(load, torch.device("meta"), "off")
    assert 11e6 < built.model.size < 12e6
    assert built.settings.runtime.graph == "off"

"""The program that checks a GPU, as far as it runs without one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import conftest
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


TOLD = "GPU 0 (Some GPU, 80 GiB) has not enough memory; a smaller client.batch_size\nneeds less"


@pytest.mark.parametrize(
    ("status", "text", "good"),
    [
        (1, TOLD, True),
        (0, TOLD, False),
        (1, f"Traceback (most recent call last):\n {TOLD}", False),
        (1, TOLD.replace("GPU 0 (Some GPU, 80 GiB)", "the GPU"), False),
        (1, TOLD.replace("not enough memory", "something else"), False),
        (1, TOLD.replace("client.batch_size", "rounds"), False),
    ],
)
def test_out_of_memory_must_be_told_well(script, monkeypatch, tmp_path, status, text, good):
    see(monkeypatch, script, "Some GPU")
    done, order = subprocess.CompletedProcess([], status, "", text), []

    @contextmanager
    def held(environment: dict[str, str]) -> Iterator[str]:
        order.append("held")
        yield "some bytes"
        order.append("free")

    monkeypatch.setattr(script, "memory_held", held)
    monkeypatch.setattr(script.subprocess, "run", lambda *given, **named: order.append("") or done)
    assert script.check_out_of_memory(script.Runs("cuda", False, tmp_path)).good == good
    assert order == ["held", "", "free"]  # the run has little memory while it runs


def test_all_memory_but_a_little_is_held_until_the_run_has_ended(script, monkeypatch, tmp_path):
    """By a process with a PyTorch whose GPU is not there."""
    program = tmp_path / "holds.py"
    program.write_text(
        f"import sys, torch\nsys.path.insert(0, {str(SCRIPTS)!r})\nimport gpu_check\n"
        "torch.cuda.mem_get_info = lambda: (80 * 2**30, 81 * 2**30)\n"
        "empty = torch.empty\n"
        "torch.empty = lambda size, dtype, device: empty(size, dtype=dtype, device='meta')\n"
        "sys.argv = ['gpu_check.py', '--hold']\ngpu_check.main()\n"
        f"open({str(tmp_path / 'ended')!r}, 'w')\n"
    )
    monkeypatch.setattr(script, "__file__", str(program))
    with script.memory_held(dict(os.environ)) as said:
        assert said == f"{78 * 2**30} bytes\n"
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists()


def test_a_process_that_cannot_hold_memory_is_a_failure(script, monkeypatch, tmp_path):
    see(monkeypatch, script, "Some GPU")
    program = tmp_path / "dies.py"
    program.write_text("raise SystemExit(1)")
    monkeypatch.setattr(script, "__file__", str(program))
    found = script.check_out_of_memory(script.Runs("cuda", False, tmp_path))
    assert (found.good, found.detail) == (
        False,
        "the process that was to hold the GPU's memory died",
    )


def see(monkeypatch, script: ModuleType, *names: str, visible: str | None = None) -> None:
    """GPUs of these models are here; `visible` is what CUDA_VISIBLE_DEVICES says."""
    found = Gpus(tuple(Gpu(name, "9.0", 2**34) for name in names), {"driver": "1.2"})
    monkeypatch.setattr(script.devices, "gpus", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


@pytest.mark.parametrize(
    ("visible", "gpus", "own"), [(None, 1, "0"), (None, 2, "0,1"), ("5,3,4", 1, "5")]
)
def test_runs_see_as_many_gpus_as_they_should(script, monkeypatch, tmp_path, visible, gpus, own):
    """Otherwise ranks that are to share a GPU get one each."""
    see(monkeypatch, script, *["Some GPU"] * 3, visible=visible)
    runs, seen = script.Runs("cuda", True, tmp_path, gpus), []

    def start(*given: object, env: dict[str, str], **named: object) -> subprocess.CompletedProcess:
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        return subprocess.CompletedProcess([], 1, "", "")

    class Process:
        def __init__(self, *given: object, **named: object):
            start(**named)

        def poll(self) -> int:
            return 1

        wait = poll

    monkeypatch.setattr(script.subprocess, "run", start)
    monkeypatch.setattr(script.subprocess, "Popen", Process)
    runs.digest()
    runs.killed(tmp_path)
    script.check_tests(runs)
    script.measured(runs, "W1", "off")
    assert seen == [own] * 4
    see(monkeypatch, script, visible=visible)
    cpu = script.Runs("cpu", True, tmp_path).environment()
    assert cpu.get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("names", "workers"),
    [("AAA", ["1", "3"]), ("AAB", ["1", "2"]), ("ABA", []), ("A", [])],
)
def test_equal_gpus_are_tried_with_a_rank_on_each(script, monkeypatch, tmp_path, names, workers):
    see(monkeypatch, script, *names)
    asked: list[tuple[int, str]] = []

    def digest(runs, *words: str) -> str:
        asked.append((runs.gpus, words[-1].removeprefix("runtime.workers=")))
        return "a"

    monkeypatch.setattr(script.Runs, "digest", digest)
    runs = script.Runs("cuda", True, tmp_path)
    extra = len(list(script.checks(runs))) - len(list(script.checks(script.Runs("cpu", 1, "x"))))
    assert extra == bool(workers)
    if workers:
        assert script.check_gpus(runs, "algo=scaffold").good
        assert asked == [(int(count), count) for count in workers]
        monkeypatch.setattr(script.Runs, "digest", lambda runs, *words: str(runs.gpus))
        assert not script.check_gpus(runs, "algo=scaffold").good


@pytest.mark.parametrize(
    ("device", "status", "text", "good"),
    [
        ("cuda", 0, "68 passed, 1200 deselected in 90.00s", True),
        ("cuda", 0, "68 skipped, 1200 deselected in 1.00s", False),
        ("cuda", 0, "67 passed, 1 skipped in 90.00s", False),
        ("cuda", 0, "", False),
        ("cuda", 1, "1 failed, 67 passed in 90.00s", False),
        ("cpu", 0, "68 skipped, 1200 deselected in 1.00s", True),
    ],
)
def test_tests_that_were_skipped_show_nothing(
    script, monkeypatch, tmp_path, device, status, text, good
):
    see(monkeypatch, script, "Some GPU")
    done = subprocess.CompletedProcess([], status, f"....\n{text}\n", "")
    monkeypatch.setattr(script.subprocess, "run", lambda *given, **named: done)
    assert script.check_tests(script.Runs(device, False, tmp_path)).good == good


def test_the_tests_of_a_gpu_end_with_their_numbers(script, monkeypatch, tmp_path):
    """pytest leaves that line out when it is to be quiet, which its settings ask for already."""
    asked, start = [], subprocess.run
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\n@pytest.mark.gpu\ndef test_one():\n    pass\n"
    )

    def run(command: list[str], **named: object) -> subprocess.CompletedProcess:
        asked.append(command)
        assert command[-1] == str(script.ROOT / "tests")
        settings = ["-p", "no:cacheprovider", "-c", str(script.ROOT / "pyproject.toml")]
        return start([*command[:-1], *settings, str(tmp_path)], **named)

    monkeypatch.setattr(script.subprocess, "run", run)
    found = script.check_tests(script.Runs("cpu", True, tmp_path))
    assert found.good
    assert found.detail.startswith("1 passed in ")
    assert len(asked) == 1


def test_a_gpu_is_checked_and_a_failure_is_the_status(script, monkeypatch, capfd):
    see(monkeypatch, script, "Some GPU")
    bad = script.Check("bits", False, "differ")
    monkeypatch.setattr(script, "checks", lambda runs: [lambda: bad])
    monkeypatch.setattr(
        script, "measured", lambda runs, name, graph: script.Speed(name, graph, 1, 1, 1)
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


@pytest.mark.parametrize(
    ("selected", "visible"),
    [("not heavy and not gpu", ""), ("heavy", ""), ("", ""), ("gpu", "3"), ("gpu and heavy", "3")],
)
def test_no_other_test_sees_a_gpu(monkeypatch, selected, visible):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    conftest.pytest_configure(SimpleNamespace(option=SimpleNamespace(markexpr=selected)))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == visible

"""`make reproduce-tables` as a command: what fails or is refused is listed, and the report has
everything.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import fake_cuda, study_small


@pytest.fixture
def small(tmp_path, monkeypatch, fedbench):
    """The small experiments, in an empty folder with an empty data root."""
    study_small.use(
        study_small.write_configuration(tmp_path / "conf", mixed=study_small.MIXED), monkeypatch
    )


def test_a_fault_of_the_program_is_a_failure_that_is_listed_and_tried_again(
    small, monkeypatch, capfd
):
    def fail(config, *_):
        raise ZeroDivisionError("why ever")

    words = ("--only", "small/table1", "--scale", "smoke")
    with monkeypatch.context() as patch:
        patch.setattr("fedbench.train.prepare", fail)
        assert study_small.reproduce(*words) == 1
    out = capfd.readouterr().out
    assert out.count("failed: fedbench experiment=small/table1") == 4
    assert "  ZeroDivisionError: why ever\n" in out
    assert "4 runs failed, 0 refused" in out
    page = Path("results/report/index.html").read_text()
    assert "ZeroDivisionError: why ever" in page
    assert study_small.reproduce(*words) == 0  # a kept plan does not keep what went wrong
    assert "0 runs failed, 0 refused" in capfd.readouterr().out


def test_what_is_refused_is_listed_and_at_smoke_it_is_a_fault(small, capfd):
    assert study_small.reproduce("--only", "small/mixed", "--scale", "smoke") == 1
    out = capfd.readouterr().out
    assert "refused, 1 run: client.momentum=0.9: must be 0 with pgvc" in out
    assert "0 runs failed, 3 refused" in out


def test_a_report_after_one_experiment_still_has_the_others_which_are_not_sent_again(
    small, capfd, monkeypatch
):
    sent = []
    monkeypatch.setattr(
        "fedbench.report.output.render.publish", lambda entry, results: sent.append(entry.name)
    )
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("small/figure1", "small/table1"):
        assert study_small.reproduce("--only", name, "--scale", "smoke", "--wandb") == 0
    assert sent == ["small/figure1", "small/table1"]
    assert "2 experiments in the report" in capfd.readouterr().out
    page = Path("results/report/index.html").read_text()
    assert page.index("small/table1") < page.index("small/figure1")


def test_it_touches_no_gpu_itself_and_gives_each_run_one(small, capfd, monkeypatch, tmp_path):
    """Plans, calibrates, runs and renders with two GPUs, which are not there: ranks compute on the
    CPU.
    """
    cuda = fake_cuda.install(monkeypatch, tmp_path, ["NVIDIA A100", "NVIDIA A100"])
    fake_cuda.compute_on_the_cpu(monkeypatch)
    words = ("--only", "small/table1", "--scale", "smoke", "--ranks-per-gpu", "2")
    assert study_small.reproduce(*words) == 0
    assert "0 runs failed, 0 refused" in capfd.readouterr().out
    assert cuda.calls_here() == []
    assert {what for _, what in cuda.calls() if what.startswith("set_device")} == {"set_device 0"}
    summaries = list(Path("results/runs").glob("*/*/summary.json"))
    found = [json.loads(file.read_text()) for file in summaries]
    assert {(one["device"], one["workers"]) for one in found} == {("cuda", 2)}


def test_ranks_a_gpu_must_be_a_number_above_0(small, capfd):
    assert study_small.reproduce("--ranks-per-gpu", "0") == 2
    assert "--ranks-per-gpu=0: must be an integer of at least 1" in capfd.readouterr().err


def test_it_runs_what_is_missing_and_renders_it(small, capfd):
    words = ("--only", "small/table1", "--scale", "decisive", "--jobs", "1")
    told = []
    for _ in range(2):
        assert study_small.reproduce(*words) == 0
        told.append(capfd.readouterr().out)
    assert "0 runs done, 2 to do; about " in told[0]
    assert "[2/2] finished in " in told[0]
    assert "2 runs done, 0 to do\n" in told[1]
    assert "finished in" not in told[1]

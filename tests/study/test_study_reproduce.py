"""`make reproduce-tables` as a command: what fails or is refused is listed, and the report has
everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support import study_small


@pytest.fixture
def small(tmp_path, monkeypatch, fedbench):
    """The small experiments, in an empty folder with an empty data root."""
    study_small.use(
        study_small.write_configuration(tmp_path / "conf", mixed=study_small.MIXED), monkeypatch
    )


def test_a_fault_of_the_program_is_a_failure_that_is_listed_and_tried_again(
    small, monkeypatch, capfd
):
    def fail(config):
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
    assert "refused, 1 runs: algo=fedaverage: did you mean 'fedavg'?\n" in out
    assert "0 runs failed, 3 refused" in out


def test_a_report_after_one_experiment_still_has_the_others_which_are_not_sent_again(
    small, capfd, monkeypatch
):
    sent = []
    monkeypatch.setattr(
        "fedbench.study.wandb.publish", lambda entry, results: sent.append(entry.name)
    )
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("small/figure1", "small/table1"):
        assert study_small.reproduce("--only", name, "--scale", "smoke", "--wandb") == 0
    assert sent == ["small/figure1", "small/table1"]
    assert "2 experiments in the report" in capfd.readouterr().out
    page = Path("results/report/index.html").read_text()
    assert page.index("small/table1") < page.index("small/figure1")

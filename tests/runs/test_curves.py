"""Pictures and tables that nobody has to ask for: curves.png, and what a sweep leaves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from support.run_files import QUICK, summary

from fedbench.runs import curves, sweep_report
from fedbench.runs.curves import MOST_LINES, save_comparison, save_curves
from fedbench.runs.sweep_report import report_sweep, varied_settings
from fedbench.runs.sweeps import Outcome


@pytest.fixture
def drawn(monkeypatch) -> list:
    """The figures that are drawn, in place of their files."""
    figures: list = []
    monkeypatch.setattr(curves, "_save", lambda figure, path: figures.append(figure))
    return figures


def curve(*accuracies: float) -> dict[int, float]:
    return dict(enumerate(accuracies, start=1))


def test_a_runs_curves_are_its_numbers(drawn):
    rows = [
        {"round": 1, "test_accuracy": 0.25, "test_loss": 2.0, "train_loss": 2.5},
        {"round": 3, "test_accuracy": 0.5, "test_loss": 1.0, "train_loss": 1.5},
    ]
    save_curves(Path("curves.png"), rows, "a run")
    accuracy, loss = drawn[0].axes
    assert [line.get_xydata().tolist() for line in accuracy.lines] == [[[1, 25], [3, 50]]]
    lines = {line.get_label(): line.get_ydata().tolist() for line in loss.lines}
    assert lines == {"test": [2.0, 1.0], "training": [2.5, 1.5]}
    assert (accuracy.get_xlabel(), accuracy.get_ylabel()) == ("round", "accuracy (%)")
    assert (loss.get_xlabel(), loss.get_ylabel()) == ("round", "loss")


def test_a_comparison_has_mean_and_range_over_seeds(drawn):
    groups = {"a": [curve(0.1, 0.5), curve(0.3, 0.7)], "b": [curve(0.2, 0.4, 0.9)]}
    save_comparison(Path("comparison.png"), groups)
    (axes,) = drawn[0].axes
    lines = {line.get_label(): line.get_ydata() for line in axes.lines}
    np.testing.assert_allclose(lines["a"], [20, 60])
    np.testing.assert_allclose(lines["b"], [20, 40, 90])
    band = axes.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((10, 70))
    assert axes.get_title() == "mean and range of up to 2 seeds"
    assert len({line.get_color() for line in axes.lines}) == 2


def test_of_many_groups_the_best_are_shown(drawn):
    save_comparison(Path("c.png"), {f"rate {n}": [curve(0.0, n / 20)] for n in range(15)})
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines] == [f"rate {n}" for n in range(5, 15)]
    assert axes.get_title() == f"one seed each, the best {MOST_LINES} of 15"
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == MOST_LINES


def test_a_name_may_be_anything_and_runs_may_have_no_round_in_common(drawn, tmp_path):
    groups = {r"data.name=$\x$ {": [curve(0.1)], "apart": [{1: 0.5}, {2: 0.5}]}
    save_comparison(Path("c.png"), groups)
    save_curves(Path("c.png"), [dict.fromkeys(("round", "test_accuracy", "test_loss"), 1)], r"$\x$")
    assert [line.get_label() for line in drawn[0].axes[0].lines] == [r"data.name=$\x$ {"]
    for figure in drawn:
        figure.savefig(tmp_path / "c.png")
    save_comparison(Path("c.png"), {"apart": groups["apart"]})
    assert len(drawn) == 2


def test_a_picture_never_ends_a_run_or_a_sweep(fedbench, monkeypatch):
    def fail(*arguments: object) -> None:
        raise RuntimeError("no\nfont")

    for place in ("writer.save_picture", "writer.save_curves", "sweep_report.save_comparison"):
        monkeypatch.setattr(f"fedbench.runs.{place}", fail)
    run = fedbench("-m", *QUICK, "data.subset=60", "seed=0,1")
    assert (run.status, run.err) == (0, "")
    for name, times in (("partition.png", 2), ("curves.png", 2), ("comparison.png", 1)):
        assert run.out.count(f"note: {name} was not drawn (no font)\n") == times
    (table,) = Path("results/sweeps").glob("*/summary.csv")
    assert pd.read_csv(table).status.tolist() == ["finished", "finished"]
    assert "sweep: results/sweeps/" in run.out


def test_what_varies_is_what_not_all_jobs_have():
    jobs = [
        ["algo=fedavg", "seed=0", "rounds=2"],
        ["algo=scaffold", "seed=0", "+x=a=b", "rounds=2"],
    ]
    assert varied_settings(jobs) == [{"algo": "fedavg"}, {"algo": "scaffold", "x": "a=b"}]
    assert varied_settings([["seed=0"]]) == [{}]


def test_a_long_table_is_cut_on_the_terminal_alone(tmp_path):
    outcomes = [Outcome(number, [f"seed={number}"], 2) for number in range(50)]
    outcomes[1] = Outcome(1, ["seed=1"], 0, run="removed")
    lines = report_sweep(tmp_path, outcomes).splitlines()
    assert lines[0].split() == ["job", "seed", "status", "final", "best", "round", "seconds"]
    assert lines[1].split() == ["0", "0", "refused"]
    assert lines[2].split() == ["1", "1", "missing"]
    assert lines[-1] == "and 10 more in summary.csv"
    assert len(lines) == 1 + 40 + 1
    assert len(pd.read_csv(tmp_path / "summary.csv")) == 50
    assert not (tmp_path / "comparison.png").exists()


def test_a_sweep_ends_with_its_table_and_pictures(fedbench, monkeypatch):
    monkeypatch.setattr(sweep_report, "save_comparison", save_comparison)
    monkeypatch.setattr("fedbench.runs.writer.save_curves", save_curves)
    words = ("data.subset=60", "client.lr=0.1,1e18", "seed=0,1")
    run = fedbench("-m", *QUICK, *words)
    assert run.status == 0, run.err
    *_, last = run.out.splitlines()
    assert last.startswith("sweep: results/sweeps/")
    folder = Path(last.removeprefix("sweep: "))
    table = pd.read_csv(folder / "summary.csv")
    assert table.status.tolist() == ["finished", "finished", "diverged", "diverged"]
    assert table["client.lr"].tolist() == [0.1, 0.1, 1e18, 1e18]
    assert table.seed.tolist() == [0, 1, 0, 1]
    for _, row in table[:2].iterrows():
        facts = summary(Path(row.run))
        assert (row.final_accuracy, row.best_round) == (
            facts["final_accuracy"],
            facts["best_round"],
        )
        assert f"{100 * facts['final_accuracy']:.2f} %" in run.out.split("job  ")[1]
    assert table.final_accuracy[2:].isna().all()
    own = Path(table.run[0]) / "curves.png"
    for picture in (folder / "comparison.png", own):
        with Image.open(picture) as image:
            assert image.width > 700
            assert len(image.convert("RGB").getcolors(100_000)) > 20
    assert not (Path(table.run[2]) / "curves.png").exists()  # it has no evaluated round
    # A picture can be drawn again: the run is finished without it.
    own.unlink()
    assert "finished already" in fedbench(*QUICK, "data.subset=60", "client.lr=0.1").out

"""Any runs of a folder side by side by their settings, as after a sweep."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from scipy import stats
from support.made_runs import write_run

from fedbench.core.errors import BadInput
from fedbench.report import cli
from fedbench.report.by import render_by, study_by

ACCURACY = {  # by algorithm and alpha, of seeds 0, 1 and 2
    ("fedavg", 0.1): (0.50, 0.55, 0.52),
    ("fedprox", 0.1): (0.52, 0.574, 0.541),
    ("fedavg", 1.0): (0.70, 0.72, 0.74),
    ("fedprox", 1.0): (0.71, 0.725, 0.73),
}


@pytest.fixture
def results(tmp_path) -> Path:
    for (algo, alpha), numbers in ACCURACY.items():
        for seed, accuracy in enumerate(numbers):
            write_run(tmp_path / "runs" / algo / f"{alpha}-{seed}", algo, alpha, seed, accuracy)
    return tmp_path


def test_table_figures_and_differences_of_a_sweep(results):
    entry, page = render_by(results, ["algo", "partition.alpha"])
    assert (entry.done, entry.wanted, entry.seeds) == (12, 12, [0, 1, 2])
    levels, best, final = entry.grids
    assert [row.labels for row in levels.rows] == [["fedavg"], ["fedprox"]]
    assert levels.rows[0].cells[0].measured == "52.33 ± 2.52"
    assert [row.labels for row in best.rows] == [["fedavg - fedprox"]]
    assert best.columns == [["partition.alpha 0.1"], ["partition.alpha 1.0"]]
    own, other = (100 * np.array(ACCURACY[name, 0.1]) for name in ("fedavg", "fedprox"))
    test = stats.ttest_rel(own, other)
    low, high = test.confidence_interval(0.95)
    corrected = 2 * test.pvalue  # the other panel's p is larger
    text = f"{np.mean(own - other):+.2f} [{low:+.2f}, {high:+.2f}], p {corrected:.2g}"
    assert best.rows[0].cells[0].measured == final.rows[0].cells[0].measured == text
    assert len(entry.pictures) == 2
    assert all(picture.svg.is_file() for picture in entry.pictures)
    tables = results / "tables"
    assert {file.suffix for file in tables.glob("by-algo-partition.alpha.*")} == {
        ".md",
        ".csv",
        ".tex",
    }
    body = page.read_text().partition("<main")[2].partition("<script>")[0]
    shown = re.sub("<[^>]*>", "", body) + (tables / "by-algo-partition.alpha.md").read_text()
    assert not re.search("paper|publish|claim|verdict|reproduc", shown, flags=re.IGNORECASE)


def test_a_setting_that_only_one_method_has_is_no_panel(results):
    """FedAvg has no mu: each of FedProx's is compared with it, and with the others."""
    for folder in (results / "runs" / "fedprox").iterdir():
        config = yaml.safe_load((folder / "config.yaml").read_text())
        for mu in (0.01, 1.0):
            config["algo"]["mu"] = mu
            shutil.copytree(folder, results / "runs" / f"fedprox{mu}" / folder.name)
            copied = results / "runs" / f"fedprox{mu}" / folder.name / "config.yaml"
            copied.write_text(yaml.safe_dump(config))
    shutil.rmtree(results / "runs" / "fedprox")
    entry, _ = render_by(results, ["algo", "algo.mu", "partition.alpha"])
    grid = entry.grids[1]
    assert [row.labels for row in grid.rows] == [
        ["fedavg - fedprox algo.mu=0.01"],
        ["fedavg - fedprox algo.mu=1.0"],
        ["fedprox algo.mu=0.01 - fedprox algo.mu=1.0"],
    ]
    assert grid.columns == [["partition.alpha 0.1"], ["partition.alpha 1.0"]]
    own, other = (100 * np.array(ACCURACY[name, 0.1]) for name in ("fedavg", "fedprox"))
    assert grid.rows[0].cells[0].measured.startswith(f"{np.mean(own - other):+.2f} [")
    assert grid.rows[2].cells[0].measured.startswith("+0.00 [")


def test_a_difference_says_which_seeds_it_lacks(results):
    """A mean over the seeds that did not diverge is no result of the method."""
    diverged = {"status": "diverged", "diverged": {"round": 1, "cause": "the loss is NaN"}}
    diverged |= dict.fromkeys(("final_accuracy", "best_accuracy", "best_round"))
    place = results / "runs" / "fedavg"
    shutil.rmtree(place / "0.1-2")
    write_run(place / "0.1-2", "fedavg", 0.1, 2, 0.52, **diverged)
    entry, _ = render_by(results, ["algo", "partition.alpha"])
    first, second = entry.grids[1].rows[0].cells
    assert re.fullmatch(r"-2\.20 \[.*\] \*\(2 of 3 seeds\)", first.measured)
    assert first.detail.startswith("2 common seeds; ")
    assert "seeds)" not in second.measured


def test_runs_that_the_settings_do_not_tell_apart(results):
    with pytest.raises(
        BadInput, match=r"--by=algo: runs .* differ in partition.alpha \(0.1, 1.0\)"
    ):
        study_by(results, ["algo"])
    write_run(results / "runs" / "fedavg" / "again", "fedavg", 0.1, 0, 0.5, lr=0.2)
    with pytest.raises(BadInput, match=r"differ in client.lr \(0.1, 0.2\): name it, too"):
        study_by(results, ["algo", "partition.alpha"])
    study = study_by(results, ["client.lr", "algo", "partition.alpha"])
    assert len(study.cells) == 5


def test_what_differs_although_nobody_named_it_is_told(results):
    """Runs of two sweeps, say, which no collision tells apart."""
    entry, _ = render_by(results, ["algo", "partition.alpha"])
    assert entry.remarks == []
    for seed in (0, 1, 2):
        folder = results / "runs" / "scaffold" / str(seed)
        write_run(folder, "scaffold", 0.1, seed, 0.6, lr=0.01)
    entry, page = render_by(results, ["algo", "partition.alpha"])
    (remark,) = entry.remarks
    assert remark.startswith("These runs differ in client.lr (0.01, 0.1) as well, which nobody")
    assert remark in page.read_text()
    assert render_by(results, ["client.lr", "algo", "partition.alpha"])[0].remarks == []


def test_runs_that_differ_in_code_or_data_alone(results):
    place = results / "runs" / "fedavg"
    again = place / "edited"
    write_run(again, "fedavg", 0.1, 0, 0.5, own_code={"mine": "aa"}, source_hash="bb")
    os.utime(again / "summary.json", (1, 1))
    with pytest.raises(BadInput) as caught:
        study_by(results, ["algo", "partition.alpha"])
    line = str(caught.value)
    assert "own_code.mine (none, aa), source_hash (none, bb): remove one" in line
    assert line.endswith(f"such as the older, {again}")
    assert len(study_by(results, ["algo", "partition.alpha", "own_code.mine"]).cells) == 5
    data = {"name": "digits", "source": "real", "note": "", "fingerprint": "g"}
    shutil.rmtree(again)
    write_run(again, "fedavg", 0.1, 0, 0.5, data=data)
    with pytest.raises(BadInput, match=r"differ in data.fingerprint \(f, g\): remove one of them"):
        study_by(results, ["algo", "partition.alpha"])


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("algos", "--by=algos: did you mean 'algo'?"),
        ("seed", "--by=seed: "),
        ("", "--by=: choose from algo, "),
        ("algo,partition.alpha,algo", "--by=algo,partition.alpha,algo: algo must be named once"),
        ("algo,partition.alfa", "--by=partition.alfa: did you mean 'partition.alpha'?"),
    ],
)
def test_a_misspelt_setting_is_one_line(results, capsys, monkeypatch, by, words):
    monkeypatch.setattr("sys.argv", ["fedbench-tables", "render", str(results), "--by", by])
    with pytest.raises(SystemExit):
        cli.main()
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(BadInput, match="there is no finished run"):
        study_by(tmp_path, ["algo"])


def test_the_command_line_renders_by_settings(results, capsys, monkeypatch):
    words = ["fedbench-tables", "render", str(results), "--by", "algo,partition.alpha"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert "By algo, partition.alpha: 12 runs, 3 tables" in capsys.readouterr().out


def test_a_sweep_that_was_run(fedbench):
    """`-m` with two values of a setting: `--by` finds them, and reads what the runs wrote."""
    words = ("-m", "client.lr=0.01,0.1", "rounds=1", "data.subset=100", "partition.clients=2")
    outcome = fedbench(*words)
    assert outcome.status == 0, outcome.err
    entry, page = render_by(Path("results"), ["client.lr"])
    assert (entry.done, entry.wanted) == (2, 2)
    rates = ("0.01", "0.1")
    assert [row.labels for row in entry.grids[0].rows] == [[rate] for rate in rates]
    written = {}
    for file in Path("results").glob("runs/*/*/summary.json"):
        config = yaml.safe_load((file.parent / "config.yaml").read_text())
        written[str(config["client"]["lr"])] = json.loads(file.read_text())["best_accuracy"]
    shown = [row.cells[0].value for row in entry.grids[0].rows]
    assert shown == pytest.approx([100 * written[rate] for rate in rates])
    assert page.is_file()
    assert entry.remarks == []


def test_a_method_that_is_fedavg_here_is_named(fedbench):
    """The network of the digits has no batch norm, so the runs of FedBN are FedAvg's."""
    words = ("-m", "algo=fedavg,fedprox,fedbn", "rounds=1", "data.subset=100")
    outcome = fedbench(*words, "partition.clients=2")
    assert outcome.status == 0, outcome.err
    entry, page = render_by(Path("results"), ["algo"])
    assert [row.labels for row in entry.grids[0].rows] == [["fedavg"], ["fedprox"]]
    (remark,) = entry.remarks
    assert remark.startswith("A sweep asked for algo=fedbn as well.")
    assert "(1 of those here)" in remark
    markdown = next(Path("results/tables").glob("by-algo.md")).read_text()
    assert all(remark in text.replace("&#39;", "'") for text in (page.read_text(), markdown))

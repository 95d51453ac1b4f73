"""From runs to files: tables, figures and the page, the same bytes each time, and what is broken
says so.
"""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console
from support import study_small

from fedbench.report import cli
from fedbench.report.experiments.experiment import load
from fedbench.report.output.render import render_all
from fedbench.report.running.execute import Executor
from fedbench.report.running.plan import make_plans

FILES = [
    *("figures/smoke/small/figure1.png", "figures/smoke/small/figure1.svg", "report/index.html"),
    *(
        "tables/smoke/small/figure1.csv",
        "tables/smoke/small/figure1.md",
        "tables/smoke/small/figure1.runs.csv",
        "tables/smoke/small/figure1.tex",
    ),
    *(
        "tables/smoke/small/table1.csv",
        "tables/smoke/small/table1.md",
        "tables/smoke/small/table1.runs.csv",
        "tables/smoke/small/table1.tex",
    ),
]
RENDERED = ("figures", "report", "tables")
SLOW = (
    "matplotlib.pyplot",
    "scipy.stats",
    "statsmodels.stats.contingency_tables",
    "statsmodels.stats.multitest",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A table and a figure of the same four runs, and two more of the figure that are missing;
    rendered.
    """
    for name in SLOW:  # renderings are forked from here: loaded once for all of them
        importlib.import_module(name)
    folder = tmp_path_factory.mktemp("finished")
    study_small.write_configuration(folder / "conf")
    with pytest.MonkeyPatch.context() as patch:
        study_small.use(folder / "conf", patch)
        studies = [(load(name), "smoke") for name in ("small/table1", "small/figure1")]
        plans = make_plans(studies, folder / "results", 1, lambda done, wanted: None)
        outcomes = list(Executor(folder / "results", 2).run(plans[0].jobs))
        assert [outcome.status for outcome in outcomes] == ["finished"] * 4
        render_all(plans, folder / "results", Console(quiet=True))
    return folder, plans


@pytest.fixture
def results(finished, tmp_path, monkeypatch) -> Path:
    """A copy of its results, to be spoilt."""
    folder, _ = finished
    study_small.use(folder / "conf", monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "results", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def tables(monkeypatch, capfd):
    """Call `fedbench-tables render ...`: its status, standard output, standard error."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedbench-tables", "render", *words])
        capfd.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as ended:
            status = ended.code
        return status, *capfd.readouterr()

    return call


def written(results: Path) -> dict[str, bytes]:
    files = [file for name in RENDERED for file in (results / name).rglob("*") if file.is_file()]
    return {str(file.relative_to(results)): file.read_bytes() for file in files}


def test_every_file_is_written_and_the_same_twice_wherever_the_results_are(results, tables):
    first = written(results)
    assert sorted(first) == FILES
    for name in RENDERED:
        shutil.rmtree(results / name)
    status, out, err = tables("results")
    assert (status, err) == (0, "")
    told = out.splitlines()
    assert told[0] == "small/table1 (smoke): 4 of 4 runs; plumbing only"
    assert told[1:] == [
        "small/figure1 (smoke): 4 of 6 runs; plumbing only",
        "report: results/report/index.html",
    ]
    assert written(results) == first


def test_the_table_says_what_the_runs_say(finished):
    results = finished[0] / "results"
    with open(results / "tables/smoke/small/table1.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] == "Accuracy of two methods"]
    assert [(row["method"], row["measure"]) for row in rows] == [
        *(("FedAvg", "Best"), ("FedAvg", "Final"), ("FedProx", "Best"), ("FedProx", "Final"))
    ]
    summaries = [
        json.loads(file.read_text()) for file in results.glob("runs/*-fedprox/*/summary.json")
    ]
    mean = sum(100 * summary["best_accuracy"] for summary in summaries) / 2
    assert float(rows[2]["value"]) == pytest.approx(mean)
    assert rows[2]["measured"].startswith(f"{mean:.2f} ± ")
    assert rows[2]["published"] == "60.0"
    text = (results / "tables/smoke/small/table1.md").read_text()
    for words in (
        *(
            "Scale: smoke (2 of 3 rounds)",
            "FedProx is better",
            "Our choice. client.lr: nobody says.",
        ),
        *("Our choice. algo.mu: a guess.", "Significance against FedProx", "At equal bytes"),
    ):
        assert words in text


def test_the_page_links_to_the_runs(finished):
    results = finished[0] / "results"
    page = (results / "report/index.html").read_text()
    links = {link for link in re.findall(r'href="([^"]+)"', page) if link.startswith("../runs/")}
    runs = {file.parent.name for file in results.glob("runs/*/*/summary.json")}
    assert len(runs) == 4
    assert runs <= {Path(link).name for link in links if (results / "report" / link).is_dir()}


@pytest.mark.parametrize(
    ("only", "told"), [((), ""), (("--only", "small/figure1"), " of small/figure1")]
)
def test_results_without_plans_are_one_line(results, tables, only, told):
    shutil.rmtree(results / "studies")
    status, out, err = tables("results", *only)
    assert (status, out) == (2, "")
    assert (
        err
        == f"fedbench-tables: results=results: no plan{told} there; `fedbench experiment=...` makes"
        " one\n"
    )


def test_a_folder_that_is_not_there_or_a_scale_that_was_not_planned_is_one_line(results, tables):
    assert tables("nowhere")[::2] == (
        2,
        "fedbench-tables: results=nowhere: there is no such folder; `make reproduce-tables` or"
        " `fedbench experiment=...` makes runs, and results/archive has what was kept, if there is"
        " one\n",
    )
    status, _, err = tables("results", "--scale", "paper")
    assert (status, len(err.splitlines())) == (2, 1)
    status, _, err = tables("results", "--only", "small/tabel1")
    assert (status, err) == (
        2,
        "fedbench-tables: --only=small/tabel1: did you mean 'small/table1'?\n",
    )


def test_what_is_broken_is_told_as_text_and_the_others_render(results, tables, finished):
    table, figure = finished[1]
    alone = results / figure.jobs[4].folder  # a run that the figure has for itself
    shutil.copytree(results / table.jobs[0].folder, alone)
    text = (alone / "metrics.csv").read_text()
    (alone / "metrics.csv").write_text(text[:-3])
    failed = results / table.jobs[1].folder
    (failed / "summary.json").unlink()
    (failed / "failure.txt").write_text(
        "Traceback\n</pre><script>alert(1)</script><img src=x onerror=alert(2)>\n"
    )
    status, out, _ = tables("results")
    assert status == 0
    assert "small/table1 (smoke): 3 of 4 runs; " in out
    assert "small/figure1 (smoke): 3 of 6 runs; " in out
    after = written(results)
    size = f"metrics.csv has {len(text) - 3:,} bytes instead of {len(text):,}"
    damaged = f"{alone.name}: {size}, so this run counts as missing; force=true runs it again"
    assert damaged in after["tables/smoke/small/figure1.md"].decode()
    assert b"(1 of 2 seeds)" in after["tables/smoke/small/table1.md"]
    page = after["report/index.html"].decode()
    assert damaged in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "<img src=x" not in page


def test_the_table_goes_to_wandb_offline(results, finished, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    (entry,) = render_all(finished[1][:1], results, Console(quiet=True), wandb=True)
    (folder,) = (results / "wandb").glob("offline-run-*-small-table1-smoke")
    assert list(folder.glob("*.wandb"))
    (table,) = folder.rglob("*.table.json")
    content = json.loads(table.read_text())
    with open(results / "tables/smoke/small/table1.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert content["columns"] == header
    assert content["data"] == rows
    assert (entry.done, entry.wanted) == (4, 4)


def test_what_cannot_be_rendered_is_no_success(results, monkeypatch, capfd):
    """The same runs, all there: only the rendering fails, and the status says so."""
    monkeypatch.setattr("fedbench.report.output.render.build_entry", lambda study, folder: 1 / 0)
    status = study_small.reproduce("--only", "small/table1", "--results", str(results))
    assert status == 1
    assert "could not be rendered: small/table1" in capfd.readouterr().out


def test_the_largest_scale_of_which_anything_was_run_is_shown(results):
    """A plan alone, of a dry run say, does not hide the runs of a smaller scale."""
    make_plans([(load("small/table1"), "decisive")], results, 1, lambda done, wanted: None)
    (plan,) = cli.kept_plans(results, ["small/table1"])
    assert plan.scale == "smoke"
    (asked,) = cli.kept_plans(results, ["small/table1"], "decisive")
    assert asked.scale == "decisive"
    shutil.rmtree(results / "runs")
    (largest,) = cli.kept_plans(results, ["small/table1"])
    assert largest.scale == "decisive"

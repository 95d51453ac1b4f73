"""The list of every table and figure says what the experiment files and the archive say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from support import study_small

from fedbench.report.experiments.experiment import experiments_folder, load, names
from fedbench.report.output.catalogue import Row, markdown, paper_scale, rows
from fedbench.report.running.archive import archive_plans
from fedbench.report.running.execute import Executor
from fedbench.report.running.ledger import kept_plans
from fedbench.report.running.plan import Plan, make_plans
from fedbench.runs.archive import ARCHIVE

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def found() -> list[Row]:
    return rows(Path("nowhere"))


def row(found: list[Row], name: str) -> Row:
    (one,) = [one for one in found if f"experiment={name} " in one.command]
    return one


def test_the_page_says_how_far_every_table_got():
    page = (PROJECT / "docs" / "tables.md").read_text(encoding="utf-8")
    lines = [one.markdown() for one in rows(PROJECT / "results")]
    told = re.findall(r"^\| .* \|$", page.partition("## What paper scale takes")[0], re.M)
    told = [line for line in told if not line.startswith(("| in the paper |", "| --- |"))]
    assert told == lines, "run `python -m fedbench.report.output.catalogue > docs/tables.md`"


@pytest.mark.heavy  # it composes the settings of every run at paper scale
def test_the_page_is_what_the_files_say():
    page = (PROJECT / "docs" / "tables.md").read_text(encoding="utf-8")
    assert page == markdown(PROJECT / "results")


def test_the_table_of_decisive_experiments_has_their_numbers_of_runs():
    page = (PROJECT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+/\w+)`.*\| (\d+)(?:, after \d+ trials)? \|$", page, re.M))
    others = re.findall(r"^\| `(\w+)/\w+` \(and (.*?)\)", page, re.M)
    planned = {
        name: sum(len(cell.seeds) for cell in load(name).cells("decisive")) for name in names()
    }
    assert {name: int(runs) for name, runs in told.items()}.items() <= planned.items()
    for name in (name for name, runs in planned.items() if runs and name not in told):
        paper, number = name.split("/")[0], re.search(r"\d+", load(name).number)[0]
        assert any(folder == paper and number in words for folder, words in others), name


def test_nothing_is_left_out(found):
    commands = [one.command.split()[1] for one in found if one.command]
    assert commands == [f"experiment={name}" for name in names()]
    others = yaml.safe_load((experiments_folder() / "_not_experiments.yaml").read_text())
    listed = {(one.paper, one.number) for one in found if one.state == "not an experiment"}
    assert listed == {(paper, number) for paper, inside in others.items() for number in inside}


def test_what_is_not_at_hand_is_named(found):
    assert row(found, "fedpgvc/table2").state == "not decided yet"
    assert row(found, "fedncv/figure2").state == "not testable here: EMNIST by class"
    partly = row(found, "fedncv/figure3").state
    assert partly == "not decided yet; in part not testable here: SVHN, CINIC-10"
    assert "weights of a pre-trained vit_b32" in row(found, "fedpgvc/table4").state


def test_runs_are_counted_as_they_are_planned(found):
    tuned, table = row(found, "fedpgvc/tuned"), row(found, "fedpgvc/table2")
    assert tuned.ours
    assert not table.ours
    assert tuned.runs[-1] == "60 after 256 trials"
    cells = load("fedpgvc/table2").cells("paper")
    assert table.runs[-1] == str(sum(len(cell.seeds) for cell in cells))
    assert row(found, "fedpgvc/table4").runs[1] == ""  # it has no decisive scale


def test_what_paper_scale_takes_is_counted_by_hand():
    """1,000 rounds of 30 clients with 20 steps of 64 examples in each of 15 runs; one network."""
    chosen = [load(name) for name in ("fedgsnr/figure3", "fedgsnr/table2", "digits/methods")]
    runs = sum(len(cell.seeds) for cell in chosen[0].cells("paper"))
    millions = f"{runs * 1000 * 30 * 20 * 64 / 1e6:,.0f}"
    assert paper_scale(chosen)[2:] == [f"| `fedgsnr/figure3` | {runs} | {millions} | lenet |"]


@pytest.mark.parametrize("change", ["a renamed axis", "a renamed label", "a further axis"])
def test_an_archived_plan_of_other_axes_than_the_file_has_is_none(tmp_path, change):
    experiment = load("fedpgvc/table5")
    plan = Plan.of(experiment, "paper", experiment.cells("paper"))
    plan.write(tmp_path / ARCHIVE, "")
    assert len(kept_plans(tmp_path, [experiment.name])) == 1
    if change == "a renamed axis":
        plan.runs = plan.runs.rename(columns={"base": "algorithm"})
    elif change == "a further axis":  # its cells would be one, with each seed twice
        plan.runs = plan.runs.assign(alpha="0.5")
    else:
        plan.runs["method"] = plan.runs["method"].replace("plain", "alone")
    plan.write(tmp_path / ARCHIVE, "")
    assert kept_plans(tmp_path, [experiment.name]) == []
    assert row(rows(tmp_path), experiment.name).state == "not decided yet"


def test_archived_runs_give_the_state(tmp_path, monkeypatch):
    study_small.write_configuration(tmp_path / "conf")
    study_small.use(tmp_path / "conf", monkeypatch)
    results = tmp_path / "results"
    assert row(rows(results), "small/table1").state == "not decided yet"
    plans = make_plans([(load("small/table1"), "decisive")], results, 1, lambda done, wanted: None)
    assert {outcome.status for outcome in Executor(results, 1).run(plans[0].jobs)} == {"finished"}
    assert row(rows(results), "small/table1").state == "not decided yet"  # not archived
    assert archive_plans(plans, results) == 2
    assert row(rows(results), "small/table1").state == "undecided"  # a single seed

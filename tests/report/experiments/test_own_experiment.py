"""A user's own experiment, `--config-dir own experiment=mine`: it runs, and becomes a table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedbench.report import cli
from fedbench.report.experiments import spec
from fedbench.report.numbers import runs

PAGE = Path(__file__).parents[3] / "docs" / "adding-an-experiment.md"

MINE = """# @package _global_
defaults:
  - /experiment/_grid
rounds: 1
client: {epochs: 1}
partition: {clients: 3}
data: {subset: 150}
study:
  title: Two methods of mine
  axes:
    method:
      FedAvg: algo=fedavg
      FedProx: algo=fedprox algo.mu=0.5
  seeds: [0]
  provenance:
    client.lr: {from: choice, why: the usual one}
    algo.mu: {from: choice, why: a guess, only: {method: [FedProx]}}
  show:
    form: table
    rows: [method]
    measures: {Best: best_accuracy}
"""
TABLE = Path("results/tables/full/mine.md")


@pytest.fixture
def own(fedbench) -> Path:
    """A folder of configuration with one experiment, in an empty working directory."""
    file = Path("own/experiment/mine.yaml")
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    return file


def tables(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedbench-tables", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_it_runs_and_renders_and_another_command_finds_its_runs(own, fedbench, monkeypatch, capfd):
    outcome = fedbench("--config-dir", "own", "experiment=mine", "runtime=serial", quiet=False)
    assert outcome.status == 0, outcome.err
    assert "report: results/report/index.html" in outcome.out
    text = TABLE.read_text()
    assert "# Own studies, mine: Two methods of mine" in text
    assert "| FedProx | " in text
    assert "paper" not in text.lower()
    assert "published" not in text.lower()
    TABLE.unlink()
    assert tables(monkeypatch, "render", "results", "--only", "mine") == 0
    assert TABLE.read_text() == text
    assert tables(monkeypatch, "run", "--config-dir", "own") == 0
    assert "2 runs done, 0 to do" in capfd.readouterr().out


def test_a_changed_number_says_what_becomes_of_the_table(own, fedbench, monkeypatch):
    outcome = fedbench(
        "--config-dir", "own", "experiment=mine", "rounds=2", "runtime=serial", quiet=False
    )
    assert outcome.status == 0, outcome.err
    assert "rounds=2: not the runs of mine, whose table and plan stay as they are" in outcome.out
    assert len(list(Path().glob("results/runs/*/*/summary.json"))) == 2
    assert not Path("results/tables").exists()
    assert not list(Path().glob("results/studies/mine*"))
    (told,) = re.findall(r"`fedbench-tables ([^`]*)` compares them", outcome.out)
    assert told == "render results --by algo,algo.mu,rounds"
    assert fedbench("--config-dir", "own", "experiment=mine", "runtime=serial").status == 0
    assert tables(monkeypatch, *told.split()) == 0  # beside the runs of the table itself, too


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("form: table", "form: tabel", "study.show.form=tabel: did you mean 'table'?"),
        ("seeds: [0]", "seed: [0]", "unknown key 'study.seed': did you mean 'study.seeds'?"),
        ("study:", "studie:", "study=None: must be a section with keys of its own"),
        (
            "algo.mu=0.5",
            "algo.muu=0.5",
            "algo=fedprox algo.muu=0.5: unknown key 'algo.muu': did you mean 'algo.mu'?",
        ),
        (
            "partition: {",
            "partitoin: {",
            "algo=fedavg: unknown key 'partitoin': did you mean 'partition'?",
        ),
        ("client.lr: {", "client.lrr: {", "study.provenance=client.lrr: did you mean 'client.lr'?"),
        ("algo.mu: {", "algo.muu: {", "study.provenance=algo.muu: did you mean 'algo.mu'?"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(own, fedbench, line, wrong, words):
    own.write_text(MINE.replace(line, wrong))
    outcome = fedbench("--config-dir", "own", "experiment=mine")
    assert outcome.status == 2
    assert outcome.err == f"fedbench: experiment=mine: {words}\n"
    assert not Path("results").exists()


def test_a_file_that_changed_since_its_runs_is_told(own, fedbench, monkeypatch):
    words = "planned before the experiment's file got other overrides or seeds"
    assert fedbench("--config-dir", "own", "experiment=mine", "runtime=serial").status == 0
    assert words not in TABLE.read_text()
    for line, other in (("algo.mu=0.5", "algo.mu=0.7"), ("seeds: [0]", "seeds: [1]")):
        own.write_text(MINE.replace(line, other))
        assert tables(monkeypatch, "render", "results") == 0
        assert words in TABLE.read_text()
    own.write_text(MINE)
    assert tables(monkeypatch, "render", "results") == 0
    assert words not in TABLE.read_text()


@pytest.mark.parametrize(
    ("line", "wrong", "words"),
    [
        ("seeds: [0]", "seeds: [0", "must be YAML in UTF-8"),
        ("/experiment/_grid", "/experiment/_grit", "experiment=_grit: choose from"),
    ],
)
def test_a_file_that_hydra_cannot_read_is_one_line(own, monkeypatch, capfd, line, wrong, words):
    own.write_text(MINE.replace(line, wrong))
    assert tables(monkeypatch, "run", "--config-dir", "own") == 2
    (told,) = capfd.readouterr().err.splitlines()
    assert told.startswith("fedbench-tables: experiment=mine: ")
    assert words in told


def test_a_misspelt_setting_of_trials_is_one_line_too(own, fedbench):
    own.write_text(MINE.replace("seeds: [0]", "tune: {grid: {client.lrr: [1, 2]}}"))
    outcome = fedbench("--config-dir", "own", "experiment=mine")
    assert outcome.status == 2
    assert outcome.err.endswith(": unknown key 'client.lrr': did you mean 'client.lr'?\n")
    assert outcome.err.count("\n") == 1
    assert not Path("results").exists()


def printed_files() -> dict[str, str]:
    """The files of the tutorial, as it prints them."""
    return dict(
        re.findall(r"^`(own/[\w/.]+)`\n\n```yaml\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    )


def test_the_example_of_the_docs_runs_and_its_figure_shares_the_runs(fedbench, monkeypatch, capfd):
    for name, content in printed_files().items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content)
    outcome = fedbench("--config-dir", "own", "experiment=pull", quiet=False)
    assert outcome.status == 0, outcome.err
    assert "12 of 12 runs finished" in outcome.out
    assert "FedProx 1" in Path("results/tables/full/pull.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.M | re.S)
    names: dict = {}
    exec(program, names)
    axes, measure = ["method", "alpha"], ["Best", "Best state", "Best limit"]
    assert list(names["runs"]) == [*axes, *runs.FACTS, *measure]
    assert len(names["runs"]) == 12
    assert "FedProx 0.01" in capfd.readouterr().out
    assert tables(monkeypatch, "run", "--config-dir", "own", "--only", "pull_curves") == 0
    assert "12 runs done, 0 to do" in capfd.readouterr().out
    assert Path("results/figures/full/pull_curves.png").is_file()


def words_of(section: str) -> set[str]:
    """The words in the first column of the tables below a heading of the reference."""
    text = PAGE.read_text().split(f"### {section}\n")[1].split("\n### ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", text, flags=re.M)
    return {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}


@pytest.mark.parametrize(
    ("section", "schema"),
    [
        ("`study`", spec.Study),
        ("`study.claims`", spec.Statement),
        ("`study.provenance`", spec.Origin),
        ("`study.scales`", spec.Scale),
        ("`study.tune`", spec.Tune),
        ("`study.combined`", spec.Combination),
        ("`study.shared_remarks`", spec.Remark),
    ],
)
def test_the_reference_has_every_key(section, schema):
    assert words_of(section) == set(spec.keys_of(schema))


def test_the_columns_of_the_runs_are_explained():
    text = PAGE.read_text().split("## The runs as a table\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", text, flags=re.M)
    words = [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]
    assert words == [*runs.FACTS, "<measure>", "<measure> state", "<measure> limit"]


def test_the_reference_has_every_key_of_every_form():
    keys = {key for form in spec.FORMS.values() for key in spec.keys_of(form)}
    assert words_of("`study.show`") == keys


def test_the_reference_has_every_measure_with_its_keys():
    common = set(spec.keys_of(spec.Measure))
    assert words_of("Measures") == common | set(spec.MEASURES)
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]*) \|$", PAGE.read_text(), flags=re.M)
    own = {name: words for names, words in rows for name in re.findall(r"`(\w+)`", names)}
    for name, schema in spec.MEASURES.items():
        keys = set(spec.keys_of(schema)) - common
        assert keys <= set(re.findall(r"`(\w+)`", own[name])), name


def test_the_reference_has_every_form():
    row = re.search(r"^\| `form` \| (.*) \|$", PAGE.read_text(), flags=re.M).group(1)
    assert set(row.split(", ")) == set(spec.FORMS)

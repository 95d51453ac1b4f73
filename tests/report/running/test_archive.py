"""The archive: small files of finished runs, of which tables are made without running anything."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from support import study_small

from fedbench.core.files import checksum_of
from fedbench.report import cli
from fedbench.report.experiments.experiment import load
from fedbench.report.experiments.spec import as_measure
from fedbench.report.numbers.measures import readings
from fedbench.report.numbers.readers import Reading
from fedbench.report.numbers.runs import Study
from fedbench.report.running import archive
from fedbench.report.running.execute import Executor
from fedbench.report.running.plan import compose_config, make_plans
from fedbench.runs import archive as runs_archive
from fedbench.runs.archive import archive_run, has_settings
from fedbench.runs.folder import RunFolder

TABLE = Path("results/tables/decisive/small/table1.md")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with `conf` and `results`, in which small/table1 was run at two scales."""
    folder = tmp_path_factory.mktemp("finished")
    study_small.write_configuration(folder / "conf")
    with pytest.MonkeyPatch.context() as patch:
        study_small.use(folder / "conf", patch)
        for scale in ("decisive", "smoke"):
            plans = make_plans(
                [(load("small/table1"), scale)], folder / "results", 1, lambda done, wanted: None
            )
            outcomes = list(Executor(folder / "results", 2).run(plans[0].jobs))
            assert {outcome.status for outcome in outcomes} == {"finished"}
    return folder


@pytest.fixture
def results(finished, tmp_path, monkeypatch) -> Path:
    study_small.use(finished / "conf", monkeypatch)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished / "results", "results")
    return Path("results")


def tables(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["fedbench-tables", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_a_clone_renders_and_goes_on_from_the_archive_alone(results, monkeypatch, capfd):
    assert tables(monkeypatch, "render", "results") == 0
    table = TABLE.read_text()
    assert tables(monkeypatch, "archive", "results") == 0
    assert "2 runs added to results/archive" in capfd.readouterr().out
    for name in ("runs", "studies", "tables", "report"):
        shutil.rmtree(results / name)
    assert tables(monkeypatch, "render", "results") == 0
    assert TABLE.read_text() == table
    capfd.readouterr()
    assert tables(monkeypatch, "run", "--only", "small/table1", "--scale", "decisive") == 0
    assert "2 runs done, 0 to do" in capfd.readouterr().out
    assert not (results / "runs").exists()
    assert tables(monkeypatch, "archive", "results") == 0
    assert "0 runs added" in capfd.readouterr().out


def test_the_index_says_where_a_number_comes_from(results, monkeypatch):
    assert tables(monkeypatch, "archive", "results") == 0
    with open("results/archive/index.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["experiments"] for row in rows] == ["small/table1 (decisive)"] * 2
    for row in rows:
        summary = json.loads((results / row["run"] / "summary.json").read_text())
        assert float(row["best_accuracy"]) == summary["best_accuracy"]
        assert row["overrides"].startswith("experiment=small/table1 scale=decisive ")
        assert row["fingerprint"] == summary["data"]["fingerprint"]
        assert row["machine"] == summary["machine"]
        assert float(row["wall_time"]) == summary["wall_time"]


def test_smoke_is_archived_only_when_asked_for(results, monkeypatch, capfd):
    words = ("archive", "results", "--only", "small/table1")
    assert tables(monkeypatch, *words, "--scale", "smoke") == 0
    assert "4 runs added" in capfd.readouterr().out
    for file in results.glob("studies/small/*.decisive.json"):
        file.unlink()
    shutil.rmtree(results / "archive")
    assert tables(monkeypatch, *words) == 0
    assert "0 runs added" in capfd.readouterr().out


def test_an_archived_run_keeps_its_classes_and_notices_damage(results):
    source = RunFolder(next(results.glob("runs/*/*/summary.json")).parent)
    target = Path("kept")
    archive_run(source, target)
    kept = RunFolder(target)
    assert kept.examine(by_content=True)[0]["digest"] == source.finished()["digest"]
    assert not (target / "model.safetensors").exists()
    new, old = np.load(target / "predictions.npz"), np.load(source.path / "predictions.npz")
    assert set(new.files) == set(old.files)
    for name in old.files:
        np.testing.assert_array_equal(new[name], old[name])
    (target / "metrics.csv").write_text("round\n1\n")
    assert kept.finished() is None


TUNED = study_small.TABLE.replace("small/table1", "small/tuned").replace(
    "study:\n", "study:\n  tune: {grid: {client.lr: [0.01, 0.1]}, seed: 0, validation: 0.2}\n", 1
)


def measured(folder: Path, results: Path, spec: object) -> Reading:
    """A measure of one run alone."""
    row = {"method": "FedAvg", "seed": 0, "status": "finished", "folder": str(folder.absolute())}
    runs = pd.DataFrame([{**row, "overrides": "", "problem": "", "instead": ""}])
    study = Study(load("small/table1"), "decisive", runs, results)
    return readings(study, study.runs, as_measure("M", spec))[0]


def test_tables_of_clients_are_kept_compressed_and_what_is_left_out_is_told(results, monkeypatch):
    spec = {"name": "client_column", "column": "steps"}
    source = next(results.glob("runs/*/*/summary.json")).parent
    assert (source / "clients.csv").stat().st_size > 0
    archive_run(RunFolder(source), Path("kept"))
    kept = RunFolder(Path("kept"))
    assert kept.examine(by_content=True)[1] == ""
    assert not Path("kept/clients.csv").exists()
    assert measured(Path("kept"), results, spec) == measured(source, results, spec)
    assert measured(source, results, spec).state == "ok"
    assert "model.safetensors" in kept.finished()["not_archived"]
    with open("kept/clients.csv.gz", "ab") as file:
        file.write(b"x")
    assert kept.finished() is None
    monkeypatch.setattr(runs_archive, "LARGEST_TABLE", 10)
    archive_run(RunFolder(source), Path("smaller"))
    assert measured(Path("smaller"), results, spec) == Reading(None, "not archived")
    (source / "clients.csv").unlink()
    assert measured(source, results, spec) == Reading(None, "damaged")


def test_a_clone_goes_on_from_archived_trials(tmp_path, monkeypatch, capfd):
    folder = study_small.write_configuration(tmp_path / "conf", tuned=TUNED)
    study_small.use(folder, monkeypatch)
    monkeypatch.chdir(tmp_path)
    words = ("run", "--only", "small/tuned", "--scale", "decisive")
    assert tables(monkeypatch, *words) == 0
    assert tables(monkeypatch, "archive", "results", "--only", "small/tuned") == 0
    assert "4 runs added" in capfd.readouterr().out  # the trials; the best ones are the runs
    with open("results/archive/index.csv", newline="") as file:
        uses = [row["experiments"] for row in csv.DictReader(file)]
    assert sum("small/tuned (decisive, trials)" in use for use in uses) == 4
    for name in ("runs", "studies", "tables", "report"):
        shutil.rmtree(Path("results") / name)
    assert tables(monkeypatch, *words) == 0
    told = capfd.readouterr().out
    assert "4 runs done, 0 to do" in told
    assert "2 runs done, 0 to do" in told
    assert not Path("results/runs").exists()


def test_too_large_an_archive_is_one_line(results, monkeypatch, capfd):
    monkeypatch.setattr(archive, "LARGEST", 1000)
    assert tables(monkeypatch, "archive", "results") == 2
    assert "results/archive: has 0.0 MB and must have at most 0" in capfd.readouterr().err


def test_a_machine_without_the_data_finds_the_archived_runs_of_the_same_settings(
    tmp_path, monkeypatch
):
    """Only those: another number of rounds in the file is another run, which cannot be run here."""
    folder = study_small.write_configuration(tmp_path / "conf", away=study_small.AWAY)
    study_small.use(folder, monkeypatch)
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "data" / "mnist")
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "data"))
    study, place = (load("small/away"), "paper"), Path("results")
    quiet = lambda done, wanted: None  # noqa: E731
    (plan,) = make_plans([study], place, 1, quiet)
    outcomes = list(Executor(place, 1).run(plan.jobs))
    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    assert archive.archive_plans([plan], place) == 2
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path / "empty"))
    (again,) = make_plans([study], place, 1, quiet)
    assert [job.folder for job in again.jobs] == [job.folder for job in plan.jobs]
    settings = folder / "experiment" / "small" / "_settings.yaml"
    settings.write_text(settings.read_text().replace("rounds: 3", "rounds: 4"))
    digits, mnist = make_plans([(load("small/away"), "paper")], place, 1, quiet)[0].jobs
    assert digits.folder not in [job.folder for job in plan.jobs]
    assert mnist.problem.startswith("data=mnist: not in ")


def test_other_examples_or_other_own_code_are_other_settings(results):
    quiet = lambda done, wanted: None  # noqa: E731
    (plan,) = make_plans([(load("small/table1"), "decisive")], results, 1, quiet)
    job = plan.jobs[0]
    run = RunFolder(results / job.folder)
    assert run.finished()["own_code"] == {}

    def counts(*words: str, **changed: object) -> bool:
        return has_settings(run, replace(compose_config([*job.words, *words]), **changed))

    assert counts()
    assert counts("data.root=elsewhere", "data.subset_seed=0", "runtime.workers=3")  # seed=0
    assert not counts("data.subset_seed=7")
    assert not counts("data.validation=0.3")
    assert not counts(own_code={"mymethods": "0123456789ab"})
    # A file that was written before these settings existed.
    written = yaml.safe_load((run.path / "config.yaml").read_text())
    for name in ("validation", "subset_seed"):
        del written["data"][name]
    (run.path / "config.yaml").write_text(yaml.safe_dump(written))
    summary = json.loads((run.path / "summary.json").read_text())
    del summary["files"]["config.yaml"], summary["checksum"]
    summary["checksum"] = checksum_of(summary)
    (run.path / "summary.json").write_text(json.dumps(summary))
    assert counts()
    assert not counts("data.validation=0.3")


def write_images(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train", 200), ("test", 40)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), np.uint8)
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(count) % 10)

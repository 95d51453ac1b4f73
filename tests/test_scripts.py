"""The scripts behind `make bench` and `make reproduce-tables` do what they say, on tiny sizes."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import sys
from pathlib import Path

import pandas as pd
import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [0, 1, 2])
def test_both_sides_of_the_bench_do_the_same_number_of_steps(monkeypatch, number):
    bench = load("bench", monkeypatch)
    small = {"clients": 4, "images": 20, "batch": 10, "cohort": 2 if bench.WORKLOADS[number].cohort else None}
    workload = dataclasses.replace(bench.WORKLOADS[number], **small)
    data, group = bench.random_data(workload, 80), bench.Group()
    bare, federation = bench.Bare(workload, data, group), bench.make_federation(workload, data, group)
    steps = []
    monkeypatch.setattr(bare.optimizer, "step", lambda: steps.append(1))
    bare.round()
    record = next(federation.rounds())
    assert len(steps) == sum(federation.plan(0).steps)
    assert sum(p.numel() for p in bare.module.parameters()) == federation.model.size
    assert (record.score is not None) == bool(workload.test)


def test_the_bench_judges_a_ratio(monkeypatch, capfd):
    bench = load("bench", monkeypatch)
    workload = dataclasses.replace(bench.WORKLOADS[0], clients=2, images=20, test=20, limit=1e9)
    assert bench.bench_workload(workload, repeats=2, workers=2)
    assert not bench.bench_workload(dataclasses.replace(workload, limit=1e-9), repeats=2, workers=1)
    printed = capfd.readouterr().out
    assert "ok" in printed
    assert "TOO SLOW" in printed


def test_the_bench_knows_every_method_that_has_a_limit(monkeypatch, capfd):
    bench, methods = load("bench", monkeypatch), load("bench_methods", monkeypatch)
    workload = dataclasses.replace(bench.WORKLOADS[0], clients=2, images=20, test=20)
    data = bench.random_data(workload, 40)
    make = lambda group, algorithm: bench.make_federation(workload, data, group, algorithm)  # noqa: E731
    monkeypatch.setattr(methods, "LIMITS", dict.fromkeys(methods.LIMITS, 1e9) | {"algo=fedprox": 1e-9})
    assert not methods.bench_methods(make, repeats=1, workers=1, steps=2)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == len(methods.LIMITS)
    assert [("TOO SLOW" in line) for line in lines] == ["fedprox" in line for line in lines]


def test_a_table_counts_what_diverged_or_is_missing(monkeypatch, tmp_path, fedbench):
    tables = load("reproduce_tables", monkeypatch)
    assert tables.cell(pd.Series([80.0, 82.0]), 2) == "81.00 ± 1.41"
    assert tables.cell(pd.Series([80.0, 82.0]), 3) == "81.00 ± 1.41 * (2 of 3)"
    assert tables.cell(pd.Series([], dtype=float), 3) == "*"
    experiment = tables.experiments()[0]
    jobs = list(itertools.islice(tables.jobs(experiment, "results"), 6))  # two methods, three seeds
    monkeypatch.setattr(tables, "jobs", lambda *_: jobs)
    for number, (_, folder) in enumerate(jobs):
        folder.mkdir(parents=True)
        score = 0.5 + number / 100
        result = {"status": "finished", "final_accuracy": score, "best_accuracy": score, "scoring": "global"}
        if number == 1:
            result |= {"status": "diverged", "final_accuracy": None, "best_accuracy": None}
        (folder / "summary.json").write_text(json.dumps(result))
    frame = tables.table(experiment, "results")
    assert frame["runs"].sum() == len(jobs)
    assert frame["diverged"].sum() == 1
    assert sum("2 of 3" in text for text in frame["final_accuracy %"]) == 1
    assert "| fedavg |" in tables.markdown(frame)

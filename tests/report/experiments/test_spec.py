"""The types of an experiment file: what is misspelt below `study` is one line, before any job."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import study_small

from fedbench.core.errors import BadInput
from fedbench.report.experiments.checks import read_study
from fedbench.report.experiments.experiment import load
from fedbench.report.experiments.spec import FORMS, MEASURES, OF_RUNS, McNemar, OfAnother
from fedbench.report.numbers.readers import OF_A_RUN, OF_A_STUDY
from fedbench.report.numbers.runs import FACTS
from fedbench.report.output.figures.draw import FORMS as DRAWN
from fedbench.report.output.figures.draw import TABLES
from fedbench.report.running.plan import OF_JOBS
from fedbench.report.running.tune import TRIAL

STUDY = yaml.safe_load("""
title: Rates
axes:
  method: {FedAvg: algo=fedavg, FedProx: algo=fedprox}
  rate: {0.1: client.lr=0.1, 0.2: client.lr=0.2}
keep: {rate: [0.1, 0.2]}
skip: [{method: FedProx, rate: 0.2}]
combined: [{of: {method: FedProx, rate: 0.1}, overrides: algo=fedprox algo.mu=1 client.lr=0.1}]
seeds: [0, 1]
proposed: [FedProx]
show:
  form: several
  rows: [method]
  measures:
    Best: best_accuracy
    Rounds: {name: rounds_to, target: {rate: {0.1: 0.5, 0.2: 0.6}}}
    Faster: {name: speed_up, of: Rounds, baseline: {method: FedAvg}}
  parts:
    - {form: curves, title: all, panels: [rate], lines: [method], x: round, y: test_loss}
    - form: points
      x: rate
      lines: [method]
      measures:
        Mean: {name: mean_accuracy_last, rounds: 5}
        Loss: {name: metric, column: test_loss, at: mean, rounds: [1, null]}
        Index: {name: client_column, column: ecgr_index, third: last}
        Norm: {name: gradient_norm, last: 1, layer: -1}
        Size: {name: set_size, level: 0.9, rule: raps}
        Distance: {name: distance_to, cell: {method: FedAvg}}
        Gain: {name: difference_to, of: Best, cell: {rate: {0.2: 0.1}}}
        Ratio: {name: ratio_to, of: Best, cell: {method: FedAvg}}
        p: {name: mcnemar, against: {method: FedAvg}}
        From: {name: stays_above, cell: {method: FedAvg}}
        Place: {name: place, of: Best, axis: rate}
        Early: {name: oscillation, third: first}
        Clients: {name: distance_to, cell: {method: FedAvg}, of: clients}
    - {form: gaps, panels: [rate], pairs: {both: [FedProx, FedAvg]}}
    - {form: drift, cases: {near: [0, 1]}, start: 1, rate: 0.1, rounds: 2, optimum: 0.5}
    - {form: selection, panels: [rate], clients: [0, 3]}
    - {form: datasets, datasets: [mnist]}
claims:
  - {text: FedProx is better, better: FedProx, than: [FedAvg], measure: Best, where: {rate: 0.1}}
  - {text: it is elegant, untestable: elegance has no unit}
  - {text: as good, equal: FedProx, to: FedAvg, margin: 1}
  - {text: significant, measure: p, below: 0.05}
provenance:
  client.lr: {from: choice, why: usual, only: {rate: 0.1}}
shared_remarks:
  pull: {text: FedProx pulls., labels: [FedProx]}
  elsewhere: null
scales:
  smoke: {reduction: one, keep: {rate: [0.1]}, extra: {method: {FedProx: rounds=1}}, seeds: [0]}
""")
MISTAKES: list[tuple[str, Any, str]] = [
    ("axess", {}, "unknown key 'study.axess': did you mean 'study.axes'?"),
    ("title", None, "study.title is missing: it must have a value"),
    ("seeds", ["a"], "study.seeds[0]=a: must be an integer"),
    ("seeds", 3, "study.seeds=3: must be a list, such as [a, b]"),
    ("axes", [], "study.axes=[]: must be a section with keys of its own"),
    ("axes.rate", {}, "study.axes.rate={}: must have a label"),
    ("axes.status", {"a": ""}, "study.axes=status: must not be the name of a column that every"),
    ("show.measures.rate", "seconds", "study.show.measures=rate: must not be the name of an axis"),
    ("show.measures.Best state", "seconds", "show.measures=Best state: must not be the name"),
    ("axes.Best limit", {"a": ""}, "study.show.measures=Best limit: must not be the name of an"),
    ("axes.rate.0.1", ["x"], "study.axes.rate.0.1=['x']: must be text"),
    ("keep.rates", [0.1], "study.keep=rates: did you mean 'rate'?"),
    ("keep.rate", [0.3], "study.keep.rate=0.3: did you mean '0.2'?"),
    ("skip.0.method", "FedProxx", "study.skip[0].method=FedProxx: did you mean 'FedProx'?"),
    ("proposed", ["Fedprox"], "study.proposed=Fedprox: did you mean 'FedProx'?"),
    ("show.form", "tabel", "study.show.form=tabel: did you mean 'table'?"),
    ("show.form", "table", "study.show.parts: has no effect with form=table, whose own keys are"),
    ("show.row", ["method"], "unknown key 'study.show.row': did you mean 'study.show.rows'?"),
    ("show.rows", ["methods"], "study.show.rows=methods: did you mean 'method'?"),
    ("show.parts.0.lines", ["metod"], "study.show.parts[0].lines=metod: did you mean 'method'?"),
    ("show.parts.0.bands", "std", "unknown key 'study.show.parts[0].bands': did you mean"),
    ("show.parts.0.band", "sdt", "study.show.parts[0].band=sdt: did you mean 'std'?"),
    ("show.columns", ["method"], "study.show.columns=method: must be named once, in rows or in"),
    ("show.parts.1.x", "rates", "study.show.parts[1].x=rates: did you mean 'rate'?"),
    ("show.measures.Best", "best_acuracy", "measures.Best.name=best_acuracy: did you mean 'best_a"),
    ("show.measures.Best", 3, "study.show.measures.Best=3: must be a name or a section"),
    ("show.measures.Rounds.windw", 2, "Rounds.windw': did you mean 'study.show.measures.Rounds.wi"),
    ("show.measures.Rounds.window", 0, "Rounds.window=0: must be an integer of at least 1"),
    ("show.measures.Rounds.target", None, "Rounds.target is missing: it must have a value"),
    ("show.measures.Rounds.target", "x", "target=x: must be a number, {axis: {label: number}}"),
    ("show.measures.Rounds.target", {"rate": {0.3: 1}}, "target.rate=0.3: did you mean '0.2'?"),
    ("show.measures.Faster.of", "Roundss", "Faster.of=Roundss: did you mean 'Rounds'?"),
    ("show.measures.Faster.baseline", {"method": "Avg"}, "Faster.baseline.method=Avg: did you"),
    ("show.parts.1.measures.Mean.rounds", None, "Mean.rounds is missing: it must have a value"),
    ("claims.0.bettr", "FedAvg", "unknown key 'study.claims[0].bettr': did you mean 'study.claims"),
    ("claims.0.better", "FedAvgg", "study.claims[0].better=FedAvgg: did you mean 'FedAvg'?"),
    ("claims.0.than", None, "study.claims[0].than is missing: better and than belong together"),
    ("claims.0.by", [2, 1], "study.claims[0].by=[2.0, 1.0]: must be [from, to]"),
    ("claims.0.below", 1, "study.claims[0]=better, below: must have one of better, equal,"),
    ("claims.1.untestable", None, "study.claims[1]=it is elegant: must have one of better,"),
    ("claims.1.equal", "FedAvg", "study.claims[1].to is missing: equal and to belong together"),
    ("claims.0.margin", 0, "study.claims[0].margin=0.0: must be above 0"),
    ("claims.0.above", "Bestt", "study.claims[0].above=Bestt: did you mean 'Best'?"),
    ("claims.0.axis", "meth", "study.claims[0].axis=meth: did you mean 'method'?"),
    ("claims.0.measure", "Bestt", "study.claims[0].measure=Bestt: did you mean 'Best'?"),
    ("claims.0.where", {"rate": 9}, "study.claims[0].where.rate=9: choose from 0.1, 0.2"),
    ("claims.1.text", None, "study.claims[1].text is missing: it must have a value"),
    ("claims.0.ties", 1, "study.claims[0].ties=1: must be true or false"),
    ("provenance.client.lr.from", "papr", "study.provenance.client.lr.from=papr: did you mean"),
    ("provenance.client.lr.form", "paper", "unknown key 'study.provenance.client.lr.form': did"),
    ("provenance.client.lr.only", {"rte": 1}, "client.lr.only=rte: did you mean 'rate'?"),
    ("combined.0.of.rates", [0.1], "study.combined[0].of=rates: did you mean 'rate'?"),
    ("combined.0.of.rate", [0.3], "study.combined[0].of.rate=0.3: did you mean '0.2'?"),
    ("combined.0.of", {"rate": 0.1}, "study.combined[0].of={'rate': ['0.1']}: must name at least"),
    ("combined.0.overrides", None, "study.combined[0].overrides is missing: it must have a value"),
    ("shared_remarks.pull.labels", ["Prox"], "shared_remarks.pull.labels=Prox: did you mean 'F"),
    ("shared_remarks.pull.label", "x", "unknown key 'study.shared_remarks.pull.label': did you"),
    ("scales.smok", {}, "study.scales=smok: did you mean 'smoke'?"),
    ("scales.smoke.override", "", "'study.scales.smoke.override': did you mean 'study.scales.smok"),
    ("scales.smoke.keep", {"rate": 0.3}, "study.scales.smoke.keep.rate=0.3: did you mean '0.2'?"),
    ("scales.smoke.extra", {"method": {"X": ""}}, "smoke.extra.method=X: choose from FedAvg, FedP"),
    ("seeds", [], "study.seeds=[]: must be different integers of at least 0, at least one"),
    ("seeds", [0, 0], "study.seeds=[0, 0]: must be different integers of at least 0"),
    ("seeds", [-1], "study.seeds=[-1]: must be different integers of at least 0"),
    ("scales.smoke.seeds", [], "study.scales.smoke.seeds=[]: must be different integers"),
    ("tune", {"grid": {"a": [1, 2]}, "only": []}, "study.tune.only=[]: must have a label"),
    ("show.form", None, "study.show.form is missing: it must have a value"),
    ("show.parts", None, "study.show.parts is missing: it must have a value"),
    ("show.parts", [], "study.show.parts is missing: it must have a value"),
    ("show.parts.0.form", "several", "has no effect with form=several, whose own"),
    ("show.parts.0.y", "test_acuracy", "show.parts[0].y=test_acuracy: did you mean 'test_accurac"),
    ("show.parts.0.x", "gradient", "study.show.parts[0].x=gradient: did you mean 'gradients'?"),
    ("show.parts.1.x", None, "study.show.parts[1].x is missing: it must have a value"),
    ("show.parts.1.measures", None, "study.show.parts[1].measures is missing: it must have a"),
    ("show.parts.2.pairs", None, "study.show.parts[2].pairs is missing: it must have a value"),
    ("show.parts.2.pairs.both", ["FedProx"], "pairs.both=['FedProx']: must be two labels, [one,"),
    ("show.parts.2.pairs.both", ["FedProx", "Avg"], "pairs.both.method=Avg: did you mean 'FedA"),
    ("show.parts.2.y", "tset_loss", "study.show.parts[2].y=tset_loss: did you mean 'test_loss'?"),
    ("show.parts.3.cases", None, "study.show.parts[3].cases is missing: it must have a value"),
    ("show.parts.3.cases.near", ["x"], "study.show.parts[3].cases.near[0]=x: must be a number"),
    ("show.parts.3.optimum", None, "study.show.parts[3].optimum is missing: it must have a value"),
    ("show.parts.4.clients", "al", "parts[4].clients=al: must be all, or a list such as [0, 1]"),
    ("show.parts.4.clients", [-1], "parts[4].clients=[-1]: must be all, or a list such as [0, 1]"),
    ("show.parts.5.datasets", ["mnits"], "parts[5].datasets=mnits: did you mean 'mnist'?"),
    ("show.parts.5.datasets", None, "study.show.parts[5].datasets is missing: it must have a"),
    ("show.parts.1.measures.Loss.rounds", [1], "rounds=[1]: must be [from, to] with from at most"),
    ("show.parts.1.measures.Loss.rounds", [70, 10], "rounds=[70, 10]: must be [from, to] with"),
    ("show.parts.1.measures.Loss.column", "tset_loss", "Loss.column=tset_loss: did you mean 'tes"),
    ("show.parts.1.measures.Loss.column", None, "Loss.column is missing: it must have a value"),
    ("show.parts.1.measures.Index.column", "ecgr_idx", "Index.column=ecgr_idx: did you mean 'ecg"),
    ("show.parts.1.measures.Index.third", "lst", "Index.third=lst: did you mean 'last'?"),
    ("show.parts.1.measures.Early.third", "frist", "Early.third=frist: did you mean 'first'?"),
    ("show.parts.1.measures.Clients.of", "client", "Clients.of=client: did you mean 'clients'?"),
    ("show.parts.1.measures.Place.of", "Bst", "Place.of=Bst: did you mean 'Best'?"),
    ("show.parts.1.measures.Place.of", None, "Place.of is missing: it must have a value"),
    ("show.parts.1.measures.Place.axis", "rat", "Place.axis=rat: did you mean 'rate'?"),
    ("show.parts.1.measures.Norm.layer", [1], "Norm.layer=[1]: must be a name or a place"),
    ("show.parts.1.measures.Size.rule", "rasp", "Size.rule=rasp: did you mean 'raps'?"),
    ("show.parts.1.measures.Size.level", None, "Size.level is missing: it must have a value"),
    ("show.parts.1.measures.Distance.cell", None, "Distance.cell is missing: it must have a val"),
    ("show.parts.1.measures.Gain.cell", None, "Gain.cell is missing: it must have a value"),
    ("show.parts.1.measures.Gain.of", None, "Gain.of is missing: it must have a value"),
    ("show.parts.1.measures.Ratio.cell", {}, "Ratio.cell is missing: it must have a value"),
    ("show.parts.1.measures.p.against", None, "p.against is missing: it must have a value"),
    ("show.parts.1.measures.From.cell", None, "From.cell is missing: it must have a value"),
    ("show.measures.Faster.baseline", None, "Faster.baseline is missing: it must have a value"),
    ("claims.0.margin", 1, "study.claims[0].equal is missing: margin belongs to equal and to"),
    ("claims.2.ties", True, "study.claims[2].better is missing: ties belongs to better and than"),
    ("claims.0.than", ["FedProx"], "claims[0].than=FedProx: must not be in study.claims[0].better"),
    ("claims.0.measure", "p", "study.claims[0]=better: must be below, as its measure is a p-value"),
]
FINE: list[tuple[str, Any]] = [
    ("show.parts.0.x", "alg/x"),
    ("show.parts.0.y", "times_clipped"),  # what a method of one's own records
    ("show.parts.1.measures.Loss.rounds", [1, 1]),
    ("keep", {"rate": ["0.1"], "method": None}),  # null takes back what was inherited
]


def changed(path: str, value: Any) -> dict[str, Any]:
    """The study with one value replaced; None removes it."""
    study = copy.deepcopy(STUDY)
    node: Any = study
    keys: list[Any] = path.replace("client.lr", "client_lr").replace("0.1", "0_1").split(".")
    keys = [{"client_lr": "client.lr", "0_1": 0.1}.get(key, key) for key in keys]
    for key in keys[:-1]:
        node = node[int(key)] if isinstance(node, list) else node[key]
    if value is None:
        node.pop(keys[-1])
    else:
        node[keys[-1]] = value
    return study


def test_a_right_study_is_read_with_its_types():
    study = read_study(STUDY, "mine")
    assert study.axes["rate"] == {"0.1": "client.lr=0.1", "0.2": "client.lr=0.2"}
    assert study.skip == [{"method": ["FedProx"], "rate": ["0.2"]}]
    assert study.claims[0].better == ["FedProx"]
    assert study.claims[0].where == {"rate": ["0.1"]}
    assert study.provenance["client.lr"].source == "choice"
    assert study.scales["smoke"].keep == {"rate": ["0.1"]}


def test_no_axis_may_have_the_name_of_any_column():
    assert set(OF_RUNS) == {*OF_JOBS, *FACTS, TRIAL}


@pytest.mark.parametrize(("path", "value", "words"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_key(path, value, words):
    with pytest.raises(BadInput) as caught:
        read_study(changed(path, value), "mine")
    message = str(caught.value)
    assert message.startswith("experiment=mine: ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(("path", "value"), FINE, ids=[one[0] for one in FINE])
def test_what_is_unusual_but_possible_is_read(path, value):
    read_study(changed(path, value), "mine")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must be a file beside wrong.yaml"),
        ("method,measure,printed,value\n", "must have the columns measure, printed, value, std, f"),
        ("metod,measure,printed,value,std,flag\n", "must have the columns measure, printed, valu"),
    ],
)
def test_published_numbers_that_cannot_be_read_are_refused(tmp_path, monkeypatch, text, words):
    table = f"{study_small.TABLE}  published: numbers.csv\n"
    folder = study_small.write_configuration(tmp_path / "conf", wrong=table)
    study_small.use(folder, monkeypatch)
    if text is not None:
        (folder / "experiment/small/numbers.csv").write_text(text)
    with pytest.raises(BadInput) as caught:
        load("small/wrong")
    expected = f"experiment=small/wrong: study.published=numbers.csv: {words}"
    assert str(caught.value).startswith(expected)


def test_every_form_and_measure_that_can_be_made_has_its_types_and_the_other_way_round():
    assert set(FORMS) == {*DRAWN, *TABLES, "several"}
    derived = {name for name, kind in MEASURES.items() if issubclass(kind, OfAnother | McNemar)}
    assert set(MEASURES) == {*OF_A_RUN, *OF_A_STUDY, *derived}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("form: table", "study.show.form=tabel: did you mean 'table'?"),
        ("rows: [method]", "study.show.rows=metod: did you mean 'method'?"),
    ],
)
def test_nothing_runs_of_an_experiment_with_a_mistake(tmp_path, monkeypatch, fedbench, line, words):
    wrong = line.replace("table", "tabel").replace("method", "metod")
    folder = study_small.write_configuration(
        tmp_path / "conf", wrong=study_small.TABLE.replace(line, wrong)
    )
    study_small.use(folder, monkeypatch)
    outcome = fedbench("experiment=small/wrong", "scale=smoke")
    assert outcome.status == 2
    assert outcome.err == f"fedbench: experiment=small/wrong: {words}\n"
    assert not Path("results").exists()

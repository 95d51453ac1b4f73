"""`study.tune`: the same number of trials for every method, chosen on validation data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from support import study_small

from fedbench.core.errors import BadInput
from fedbench.report.experiments.checks import read_study
from fedbench.report.experiments.experiment import load
from fedbench.report.experiments.spec import Tune, trials_of
from fedbench.report.running.tune import trial_plan

RATES = [0.0001, 0.001, 0.2, 0.002]
TUNED = study_small.TABLE.replace("small/table1", "small/tuned").replace(
    "study:\n",
    f"""client: {{epochs: 8}}
study:
  tune:
    grid: {{client.lr: [0.0001, 0.2]}}
    own:
      FedAvg: {{client.lr: {RATES}}}
      FedProx: {{algo.mu: [0.1, 0.2]}}
    seed: 1
    validation: 0.2
""",
    1,
)


@pytest.fixture
def small(tmp_path, monkeypatch, fedbench):
    study_small.use(study_small.write_configuration(tmp_path / "conf", tuned=TUNED), monkeypatch)
    return fedbench


def validation_accuracies() -> dict[float, float]:
    """Of FedAvg's trials, by their rate, read off the files of the runs."""
    found = {}
    for folder in Path("results/runs").glob("*-fedavg/*/"):
        config = yaml.safe_load((folder / "config.yaml").read_text())
        if config["seed"] == 1:
            summary = json.loads((folder / "summary.json").read_text())
            found[config["client"]["lr"]] = summary["best_val_accuracy"]
    assert set(found) == set(RATES)
    return found


def test_the_trials_of_a_label_are_the_product_of_its_values():
    tune = Tune(grid={"client.lr": [0.1, 0.2]}, own={"B": {"algo.mu": [1], "client.lr": [0.3]}})
    assert trials_of(tune, "A") == [("client.lr=0.1",), ("client.lr=0.2",)]
    assert trials_of(tune, "B") == [("client.lr=0.3", "algo.mu=1")]
    assert trials_of(Tune(grid={"x": [True, None]}), "A") == [("x=true",), ("x=null",)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": {"client.lr": [0.1]}}, "2 trials of FedProx and 4 of FedAvg; every label must"),
        ({"axis": "methd"}, "study.tune.axis=methd: did you mean 'method'?"),
        ({"per": ["method"]}, "study.tune.per=method: must be another axis"),
        ({"only": ["FedAvgg"]}, "study.tune.method=FedAvgg: did you mean 'FedAvg'?"),
        ({"validation": 1.5}, "study.tune.validation=1.5: must be above 0 and below 1"),
        ({"trials": 3}, "unknown key 'study.tune.trials': "),
    ],
)
def test_a_mistake_is_one_line(change, words):
    study = yaml.safe_load(TUNED)["study"] | {"paper": "Small"}
    study["tune"] |= change
    with pytest.raises(BadInput) as caught:
        read_study(study, "mine")
    assert words in str(caught.value)


def test_at_smoke_two_trials_of_each_are_enough(small):
    experiment = load("small/tuned")
    assert len(trial_plan(experiment, "decisive").jobs) == 8
    assert len(trial_plan(experiment, "smoke").jobs) == 4


def test_the_best_trial_is_run_with_all_seeds_and_the_table_names_it(small):
    outcome = small("experiment=small/tuned", "scale=decisive", "seed=0", quiet=False)
    assert outcome.status == 0  # with words that change numbers nothing is tuned
    outcome = small("experiment=small/tuned", "scale=decisive", quiet=False)
    assert outcome.status == 0, outcome.err
    assert "0 runs done, 8 to do" in outcome.out
    scores = validation_accuracies()
    best = max(RATES, key=lambda rate: scores[rate])
    assert len(set(scores.values())) > 1
    text = Path("results/tables/decisive/small/tuned.md").read_text()
    assert f"FedAvg: client.lr={best}, the best of 4 trials by its validation accuracy" in text
    plan = json.loads(Path("results/studies/small/tuned.decisive.json").read_text())
    fedavg, fedprox = plan["runs"]
    assert f"client.lr={best}" in fedavg["words"]
    assert "data.validation=0.2" in fedprox["words"]
    summary = json.loads(Path("results", fedprox["folder"], "summary.json").read_text())
    assert summary["data"]["validation_examples"] == 30
    again = small("experiment=small/tuned", "scale=decisive", quiet=False)
    assert "8 runs done, 0 to do" in again.out
    assert "2 runs done, 0 to do" in again.out


def test_a_misspelt_word_of_a_method_that_is_not_tuned_is_found_before_the_trials(
    tmp_path, monkeypatch, fedbench
):
    content = TUNED.replace("axes:\n    method:", "axes:\n    method:\n      local: algo=locl")
    content = content.replace("tune:", "tune:\n    only: [FedAvg, FedProx]")
    folder = study_small.write_configuration(tmp_path / "conf", tuned=content)
    study_small.use(folder, monkeypatch)
    outcome = fedbench("experiment=small/tuned", "scale=decisive")
    assert outcome.status == 2
    assert "algo=locl: did you mean 'local'?" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not Path("results/runs").exists()


def test_a_study_waits_for_all_of_its_trials(small):
    outcome = small("experiment=small/tuned", "scale=decisive", "client.lr=0.2", "algo.mu=x")
    assert outcome.status == 2  # a wrong word: nothing is run
    assert study_small.reproduce("--only", "small/tuned", "--scale", "decisive", "--dry-run") == 0
    assert not Path("results/studies/small/tuned.decisive.json").exists()

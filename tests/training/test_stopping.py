"""`stop.accuracy` and `stop.patience`: a run that ends early is the beginning of the one that does
not.
"""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import experiments
from support.faulty_runs import SETTING, whole_and_resumed

from fedbench.config.schema import StopSettings
from fedbench.training.evaluation import Score
from fedbench.training.stopping import StopRule

WORDS = (*experiments.PLAIN, "rounds=8", "client.lr=0.02")


def score(accuracy: float, validation: float | None = None) -> Score:
    made = Score(accuracy, 1.0, torch.zeros(1))
    if validation is not None:
        made.validation = Score(validation, 1.0, torch.zeros(1))
    return made


def records(*words: str) -> list:
    """Rounds of a federation without their seconds."""
    found = []
    for record in experiments.federation(*WORDS, *words).rounds():
        numbers = {name: value for name, value in record.numbers.items() if name != "seconds"}
        scored = record.score and (record.score.accuracy, record.score.loss)
        found.append((record.round, numbers, scored, record.stopped))
    return found


@pytest.mark.parametrize("every", [1, 3])
def test_rounds_up_to_a_target_are_those_of_the_run_without_it(every):
    whole = records(f"eval.every={every}")
    assert len(whole) == 8
    scored = [(number, found[0]) for number, _, found, _ in whole if found]
    target = scored[1][1]  # of the second evaluation
    first = next(number for number, accuracy in scored if accuracy >= target)
    early = records(f"eval.every={every}", f"stop.accuracy={target}")
    assert len(early) == first < 8
    assert early[-1][3] == "accuracy"
    assert [row[:3] for row in early] == [row[:3] for row in whole[:first]]


def test_an_evaluation_of_the_last_round_alone_is_not_looked_at():
    """A run with more rounds would not have had it, and must be able to continue this one."""
    made = experiments.federation(*WORDS, "eval.every=3", "rounds=4", "stop.patience=1")
    before = None
    for record in made.rounds():
        if record.round == 3:
            before = made.stop.progress()
    assert record.round == 4
    assert record.score is not None
    assert made.stop.progress() == before


@given(
    accuracies=st.lists(st.integers(0, 6).map(lambda tenths: tenths / 10), max_size=20),
    patience=st.integers(1, 4),
    resumed=st.integers(0, 20),
)
def test_patience_ends_after_so_many_evaluations_without_a_new_best(accuracies, patience, resumed):
    rule = StopRule(StopSettings(patience=patience))
    for place, accuracy in enumerate(accuracies):
        if place == resumed:  # a checkpoint lies between the two evaluations
            stored = json.loads(json.dumps(rule.progress()))
            rule = StopRule(StopSettings(patience=patience))
            rule.resume(stored)
        seen = accuracies[: place + 1]
        since_best = place - seen.index(max(seen))
        ended = rule.after_evaluation(score(accuracy))
        assert (ended == "patience") == (since_best >= patience)
        if ended:
            break


def test_patience_watches_the_validation_accuracy_where_there_is_one():
    rule = StopRule(StopSettings(patience=1, accuracy=0.9))
    assert rule.after_evaluation(score(0.5, validation=0.4)) is None
    assert rule.after_evaluation(score(0.1, validation=0.5)) is None
    assert rule.after_evaluation(score(0.6, validation=0.5)) == "patience"
    assert rule.after_evaluation(score(0.9, validation=0.1)) == "accuracy"


def test_a_killed_run_resumes_and_ends_where_it_would_have_ended(fedbench):
    """With a rate this small no evaluation is better than the first, so the third is the last."""
    setting = (*SETTING, "client.lr=1e-20", "stop.patience=2", "checkpoint.every=1")
    whole, _ = whole_and_resumed(fedbench, *setting, call=3)
    summary = json.loads((whole.folder / "summary.json").read_text())
    assert (summary["rounds"], summary["stopped"], summary["status"]) == (3, "patience", "finished")
    assert "; stop.patience ended it after round 3" in whole.out

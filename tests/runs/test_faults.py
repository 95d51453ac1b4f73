"""A run that is killed, at any moment, goes on with the same command and ends with the same
numbers, to the bit.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from support.faulty_runs import (
    SETTING,
    checkpoints,
    folder_of,
    one_line,
    result,
    run,
    start,
    two_checkpoints,
    uninterrupted,
)
from support.waiting import wait_until

# Where it is killed, at which call of the leader, and the round after which the next process must
# go on.
MOMENTS = {
    "training": (
        {"place": "training", "call": 5},
        None,
    ),  # which round that is depends on the method
    "aggregation": ({"place": "aggregation", "call": 4}, 2),
    "evaluation": ({"place": "evaluation", "call": 5}, 4),
    "metrics": ({"place": "metrics", "call": 3}, 2),
    "checkpoint tensors": ({"place": "checkpoint-tensors", "call": 3}, 2),
    "checkpoint manifest": ({"place": "checkpoint-manifest", "call": 2}, 2),
    "checkpoint done": ({"place": "checkpoint", "call": 2, "after": True}, 4),
    "final files": ({"place": "final"}, 4),
    "final summary": ({"place": "final-summary"}, 4),
    "cleaning": ({"place": "cleaning"}, 5),
}
ALWAYS = {
    "algo=scaffold": ["checkpoint tensors", "cleaning"],
    "algo=fedbn": ["aggregation"],
    "modifier=[ecgr]": ["final summary"],
}
# SCAFFOLD at every moment; tests/runs/test_gauntlet.py has every method.
CASES = [("algo=scaffold", moment) for moment in MOMENTS if moment not in ALWAYS["algo=scaffold"]]
PARAMETERS = [pytest.param(*case, id="-".join(case), marks=pytest.mark.heavy) for case in CASES]
PARAMETERS += [
    pytest.param(word, moment, id=f"{word}-{moment}") for word in ALWAYS for moment in ALWAYS[word]
]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("word", "moment"), PARAMETERS)
def test_killed_at_a_moment_and_resumed_with_another_number_of_workers(word, moment):
    fault, latest = MOMENTS[moment]
    before, after = random.Random(word + moment).choice([(1, 2), (2, 1), (2, 3), (1, 1)])
    setting = (*SETTING, word, "results=broken")
    killed = run(*setting, f"runtime.workers={before}", **fault, kind="killall")
    assert killed.status == -signal.SIGKILL, killed.err
    assert (folder_of("broken") / "summary.json").exists() == (moment == "cleaning")
    resumed = run(*setting, f"runtime.workers={after}")
    assert resumed.status == 0, resumed.err
    if moment == "cleaning":
        assert "finished already" in resumed.out
    else:
        assert resumed.resumed_after == (killed.rounds // 2 * 2 if latest is None else latest)
    assert result(folder_of("broken")) == uninterrupted(word)
    left = [
        file.name
        for file in folder_of("broken").iterdir()
        if "-0" in file.name or file.name.endswith(".part")
    ]
    assert left == []  # neither checkpoints nor halves of files


# What every attempt comes to, before many rounds are over.
OFTEN = ("training", "aggregation", "evaluation", "metrics", "rename")
OFTEN += ("checkpoint", "checkpoint-tensors", "checkpoint-manifest")


@pytest.mark.parametrize(
    "number",
    [
        0,
        pytest.param(1, marks=pytest.mark.heavy),
        *(pytest.param(seed, marks=[pytest.mark.heavy, pytest.mark.by_hand]) for seed in (2, 3)),
    ],
)
def test_killed_again_and_again_at_random_moments(number):
    """Also while it resumes: it gets on all the same, and never repeats more than one interval."""
    chance, words = random.Random(number), ("algo=scaffold", "rounds=20")
    setting, reached = (*SETTING, *words, "results=broken"), 0
    for _ in range(3):
        place, call, workers = chance.choice(OFTEN), chance.randint(1, 2), chance.choice([1, 2])
        ended = run(*setting, f"runtime.workers={workers}", place=place, call=call, kind="killall")
        assert ended.status == -signal.SIGKILL, ended.err
        done = [line.split()[1] for line in ended.out.splitlines() if line.startswith("round ")]
        assert not done or ended.resumed_after >= reached - 2
        reached = max([reached, *(int(round_of.split("/")[0]) for round_of in done)])
    assert 0 < reached < 20
    assert run(*setting, "runtime.workers=2").status == 0
    assert result(folder_of("broken")) == uninterrupted(*words)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("SIGINT", "aggregation"),
        ("SIGTERM", "checkpoint"),
        pytest.param("SIGINT", "training", marks=pytest.mark.heavy),
        pytest.param("SIGTERM", "evaluation", marks=pytest.mark.heavy),
    ],
)
def test_asked_to_stop(kind, place):
    """Status 130, a checkpoint of the round at hand, one line that says how to go on."""
    workers = 1 if place in ("training", "checkpoint") else 2
    setting = (*SETTING, "algo=scaffold", "results=broken")
    call = {"training": 2, "checkpoint": 1}.get(place, 3)
    stopped = run(*setting, f"runtime.workers={workers}", place=place, call=call, kind=kind)
    assert stopped.status == 130, stopped.err
    assert (
        one_line(stopped.err)
        == "fedbench: interrupted; the same command (without force=true) resumes from the last"
        " checkpoint"
    )
    at_hand = (
        1 if place == "training" else 3
    )  # a signal in a checkpoint counts in the round that follows
    assert stopped.rounds == at_hand
    assert (
        max(checkpoints("broken")) == stopped.rounds
    )  # of the last round that was done, not the one before
    resumed = run(*setting, f"runtime.workers={3 - workers}")
    assert resumed.resumed_after == stopped.rounds
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_asked_to_stop_in_the_last_round_ends_a_sweep_but_not_the_run():
    """The run at hand ends well; those after it do not begin, and the same command does them."""
    setting = (*SETTING, "-m", "seed=0,1", "results=broken", "runtime.workers=1")
    stopped = run(*setting, place="final", kind="SIGTERM")
    assert stopped.status == 130, stopped.err
    assert len(list(Path().glob("broken/runs/*/*/summary.json"))) == 1
    assert run(*setting).status == 0
    assert len(list(Path().glob("broken/runs/*/*/summary.json"))) == 2
    alone = run(*SETTING, "results=alone", "runtime.workers=1", place="final", kind="SIGTERM")
    assert alone.status == 0  # nothing is left to do


def test_a_damaged_checkpoint_is_reported_and_the_one_before_is_used():
    """tests/runs/test_checkpoint.py has the ways in which one can be damaged."""
    setting, newest = two_checkpoints(), checkpoints("broken")[4]
    file = newest / "clients-0.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    resumed = run(*setting)
    reported = f"checkpoint {newest.name} is not used: clients-0.safetensors is damaged\n"
    assert resumed.out.count(reported) == 1
    assert resumed.resumed_after == 2
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_a_checkpoint_of_other_code_is_not_mixed_in(monkeypatch):
    setting = two_checkpoints()
    with monkeypatch.context() as changed:
        changed.setattr("fedbench.runs.prepared.source_hash", lambda: "changed")
        ended = run(*setting)
    assert ended.out.count("it has another source code (") == 2
    assert ended.resumed_after == 0
    assert result(folder_of("broken")) == uninterrupted("algo=scaffold")


def test_a_signal_before_the_run_is_status_130_too(data_root):
    """While the data are read there is nothing to keep; it ends at once, with the same line."""
    setting = (*SETTING, "results=one", "runtime.workers=1")
    holder = start({"place": "evaluation", "kind": "pause", "marker": "holding"}, *setting)
    wait_until(Path("holding").exists)
    second = start({}, *setting)
    wait_until(lambda: second.said("waiting for it"))
    os.kill(second.pid, signal.SIGTERM)
    ended = second.end()
    holder.kill()
    holder.end()
    assert ended.status == 130
    assert "interrupted" in one_line(ended.err)

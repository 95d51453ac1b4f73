"""A finished run that kept its checkpoint is extended by more rounds, to the same bits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import experiments
from support.run_files import rows, summary

from fedbench.runs import console, prepared

QUICK = ("client.epochs=1", "partition.clients=4", "runtime.workers=1", "model.hidden=[8,6]")
# A run of three rounds scores the last one only because it is the last.
SETTING = (*QUICK, "algo=scaffold", "eval.every=2", "data.validation=0.2")
KEEP = "checkpoint.keep=true"


def numbers(folder: Path) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows(folder)]


def compare(one: Path, other: Path) -> None:
    """Everything but times."""
    first, second = summary(one), summary(other)
    for key in ("digest", "best_round", "best_accuracy", "best_val_round", "final_accuracy"):
        assert first[key] == second[key], key
    assert numbers(one) == numbers(other)
    for name in ("clients.csv", "local_tests.csv", "predictions.npz"):
        if (other / name).exists():
            assert (one / name).read_bytes() == (other / name).read_bytes(), name


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_it_equals_a_run_that_was_made_in_one_go(fedbench):
    setting = (*SETTING, "partition.local_test=0.2")
    short = fedbench(*setting, "rounds=3", KEEP)
    assert checkpoints(short.folder) == ["checkpoint-000003"]
    assert summary(short.folder)["kept_checkpoint"] == 3
    assert len(rows(short.folder)) == 2
    longer = fedbench(*setting, "rounds=5", KEEP)
    assert f"resuming after round 3 of the finished run {short.folder.name}" in longer.out
    assert summary(longer.folder)["continued_from"] == short.folder.name
    again = fedbench(*setting, "rounds=6", "runtime.workers=2")  # of the longest that is there
    assert "resuming after round 5" in again.out
    assert checkpoints(again.folder) == []
    for run, rounds in ((longer, 5), (again, 6)):
        whole = fedbench(*setting, f"rounds={rounds}", "results=whole")
        assert "resuming" not in whole.out
        compare(run.folder, whole.folder)


def test_a_kept_checkpoint_outlives_the_run_that_is_skipped(fedbench):
    short = fedbench(*SETTING, "rounds=2", KEEP)
    skipped = fedbench(*SETTING, "rounds=2")
    assert "finished already" in skipped.out
    assert checkpoints(short.folder) == ["checkpoint-000002"]
    forced = fedbench(*SETTING, "rounds=3", "force=true")
    assert "resuming" not in forced.out
    forced = fedbench(*SETTING, "rounds=2", "force=true")
    assert checkpoints(forced.folder) == []


def test_a_run_does_not_resume_from_its_own_last_checkpoint(fedbench):
    """It lacks the additional evaluation. A damaged run is made again, from its start."""
    done = fedbench(*SETTING, "rounds=3", KEEP)
    before = summary(done.folder)
    (done.folder / "metrics.csv").write_text("round\n")
    again = fedbench(*SETTING, "rounds=3", KEEP)
    assert "it is run again" in again.out
    assert "resuming" not in again.out
    assert summary(again.folder)["digest"] == before["digest"]
    assert len(rows(again.folder)) == 2
    assert checkpoints(again.folder) == ["checkpoint-000003"]


def test_without_a_kept_checkpoint_one_line_says_so(fedbench):
    words = (*SETTING, "client.lr=0.2")
    first = fedbench(*words, "rounds=1")
    assert "anew" not in first.out
    longer = fedbench(*words, "rounds=2")
    line = "this run starts anew, not after round {} of run {}: it kept no checkpoint (checkpoint"
    assert longer.out.count(line.format(1, first.folder.name)) == 1
    again = fedbench(*words, "rounds=3", KEEP)
    assert again.out.count(line.format(2, longer.folder.name)) == 1
    assert "anew" not in fedbench(*words, "rounds=3", "seed=1").out
    needed = "it kept no checkpoint; checkpoint.keep=true needs force=true here\n"
    assert needed in fedbench(*words, "rounds=2", KEEP).out
    assert needed not in fedbench(*words, "rounds=2").out
    assert needed not in fedbench(*words, "rounds=3", KEEP).out


def test_a_method_that_reads_the_number_of_rounds_starts_anew(fedbench):
    setting = (*QUICK, "algo=pfedsim")
    short = fedbench(*setting, "rounds=1", KEEP)
    longer = fedbench(*setting, "rounds=2")
    reason = f"not after round 1 of run {short.folder.name}: algo=pfedsim depends on the number"
    assert f"this run starts anew, {reason}" in longer.out
    assert summary(longer.folder)["continued_from"] is None


@pytest.mark.parametrize(("algo", "rounds"), [("fedavg", None), ("pfedsim", 20)])
def test_only_a_method_that_says_so_sees_the_number_of_rounds(algo, rounds):
    made = experiments.federation(f"algo={algo}", *experiments.PLAIN)
    assert made.plan_round(0).rounds == rounds
    assert experiments.parts(f"algo={algo}", *experiments.PLAIN).context.rounds == rounds


def test_other_code_starts_anew_and_a_skipped_run_says_so(fedbench, monkeypatch):
    short = fedbench(*SETTING, "rounds=1", KEEP)
    for module in (prepared, console):
        monkeypatch.setattr(module, "source_hash", lambda: "0123456789ab")
    longer = fedbench(*SETTING, "rounds=2")
    assert "this run starts anew" in longer.out
    assert "it has another source code" in longer.out
    skipped = fedbench(*SETTING, "rounds=1")
    made_by = summary(short.folder)["source_hash"]
    line = f"it was made by other code of fedbench (hash of the source: {made_by}, now 0123456789ab"
    assert line in skipped.out


@pytest.mark.parametrize("missing", ["summary.json", "checkpoint-000001/manifest.json"])
def test_what_is_not_finished_or_not_whole_is_not_extended(fedbench, missing):
    short = fedbench(*SETTING, "rounds=1", KEEP)
    (short.folder / missing).unlink()
    longer = fedbench(*SETTING, "rounds=2")
    assert longer.status == 0
    assert "resuming" not in longer.out


def test_another_setting_and_a_copy_are_not_extended(fedbench):
    short = fedbench(*SETTING, "rounds=1", KEEP)
    other = fedbench(*SETTING, "rounds=2", "seed=1")
    assert "resuming" not in other.out
    short.folder.rename(short.folder.with_name("a copy"))
    longer = fedbench(*SETTING, "rounds=2")
    assert "resuming" not in longer.out


def test_the_longest_that_is_whole_is_extended(fedbench):
    shorter = fedbench(*SETTING, "rounds=1", KEEP)
    short = fedbench(*SETTING, "rounds=2", KEEP)
    damage(short.folder / "checkpoint-000002")
    longer = fedbench(*SETTING, "rounds=3")
    assert f"resuming after round 1 of the finished run {shorter.folder.name}" in longer.out
    damage(shorter.folder / "checkpoint-000001")
    longer = fedbench(*SETTING, "rounds=4")
    line = f"this run starts anew, not after round 2 of run {short.folder.name}: manifest.json is"
    assert line in longer.out


def damage(checkpoint: Path) -> None:
    content = json.loads((checkpoint / "manifest.json").read_text())
    content["done"] = 7
    (checkpoint / "manifest.json").write_text(json.dumps(content))

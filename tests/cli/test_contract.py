"""The command line that other tools rely on: exit status, files, keys, the last line, skipping and
forcing.
"""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from support.faulty_runs import start
from support.run_files import QUICK, rows, summary
from support.waiting import wait_until

from fedbench.config.validate import config_folder


def test_a_run_leaves_the_promised_files(fedbench):
    run = fedbench(*QUICK)
    assert run.status == 0
    files = {
        "config.yaml",
        "clients.csv",
        "metrics.csv",
        "summary.json",
        "model.safetensors",
        "predictions.npz",
        "partition.json",
        "partition.csv",
    }
    assert {file.name for file in run.folder.iterdir()} == files | {"partition.png", "curves.png"}
    assert run.folder.parts[:2] == ("results", "runs")
    facts = summary(run.folder)
    wanted = {
        "status",
        "best_accuracy",
        "best_round",
        "final_accuracy",
        "digest",
        "partition_hash",
        "versions",
        "wall_time",
    }
    assert wanted <= facts.keys()
    assert facts["status"] == "finished"
    assert {"label_divergence", "size_gini"} <= facts["heterogeneity"].keys()
    names = list(rows(run.folder)[0])
    assert names[:7] == [
        "round",
        "test_accuracy",
        "test_loss",
        "train_loss",
        "bytes_up",
        "bytes_down",
        "seconds",
    ]
    assert [row["round"] for row in rows(run.folder)] == ["1", "2"]
    assert (run.folder / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_in_the_files_agree(fedbench):
    run = fedbench(*QUICK, "rounds=4")
    facts, table = summary(run.folder), rows(run.folder)
    accuracies = [float(row["test_accuracy"]) for row in table]
    assert facts["final_accuracy"] == accuracies[-1]
    assert facts["best_accuracy"] == max(accuracies)
    assert accuracies[facts["best_round"] - 1] == max(accuracies)
    with np.load(run.folder / "predictions.npz") as stored:
        labels = stored["labels"]
        assert (stored["final"] == labels).mean() == pytest.approx(accuracies[-1])
        assert (stored["best"] == labels).mean() == pytest.approx(max(accuracies))
        assert int(stored["best_round"]) == facts["best_round"]
    parts = json.loads((run.folder / "partition.json").read_text())["clients"]
    assert sorted(index for part in parts for index in part) == list(range(1438))


def test_the_stored_model_has_the_stored_accuracy(fedbench):
    """Read the model back with plain PyTorch and score it again."""
    import torch
    from support import experiments

    run = fedbench(*QUICK, "rounds=3")
    made = experiments.prepare(experiments.config("data=digits", "logger=none"))
    made.model.load_state_dict(load_file(run.folder / "model.safetensors"))
    made.model.eval()
    x = torch.from_numpy(made.data.test_x)
    predicted = made.model(x.permute(0, 3, 1, 2)).argmax(dim=1).numpy()
    assert (predicted == made.data.test_y).mean() == pytest.approx(
        summary(run.folder)["final_accuracy"]
    )


def test_a_finished_run_is_skipped_and_force_repeats_it(fedbench):
    first = fedbench(*QUICK)
    stamp = (first.folder / "summary.json").stat().st_mtime_ns
    second = fedbench(*QUICK, "runtime.workers=2")
    assert second.status == 0
    assert second.folder == first.folder
    assert "finished already" in second.out
    assert (first.folder / "summary.json").stat().st_mtime_ns == stamp
    digest = summary(first.folder)["digest"]
    forced = fedbench(*QUICK, "force=true")
    assert forced.folder == first.folder
    assert (first.folder / "summary.json").stat().st_mtime_ns != stamp
    assert summary(first.folder)["digest"] == digest


def test_a_second_process_waits_for_the_first(fedbench):
    """One that did not wait would find the run unfinished, and do it again."""
    done = fedbench(*QUICK).folder
    with open(done.parent / f".{done.name}.lock") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (done / "summary.json").rename("summary.json")
        second = start({}, "logger=none", *QUICK)
        wait_until(lambda: second.said("waiting for it"))
        Path("summary.json").rename(done / "summary.json")
        fcntl.flock(held, fcntl.LOCK_UN)  # the fork has the file open, too
    ended = second.end()
    assert ended.status == 0, ended.err
    assert ended.out.index("waiting for it") < ended.out.index("finished already")
    assert "running on" not in ended.out


def test_a_sweep_runs_every_combination_and_goes_on_after_a_bad_one(fedbench):
    run = fedbench("-m", *QUICK, "rounds=1", "seed=0,1", "client.lr=0.1,-1")
    assert run.status == 2
    assert run.out.count("run: ") == 2
    assert run.err.count("client.lr=-1.0: must be ") == 4  # at once, and in the list at the end
    assert len(list(Path("results/runs").glob("*/*/summary.json"))) == 2


def test_diverged_is_a_result(fedbench):
    run = fedbench(*QUICK, "client.lr=1e18", "rounds=5")
    assert run.status == 0
    facts = summary(run.folder)
    assert facts["status"] == "diverged"
    assert facts["diverged"]["round"] == 1
    assert facts["final_accuracy"] is None
    assert facts["best_accuracy"] is None
    assert "diverged in round 1: training loss" in run.out
    assert rows(run.folder) == []
    assert fedbench(*QUICK, "client.lr=1e18", "rounds=5").out.count("diverged in round 1") == 1


def test_a_model_that_breaks_in_its_last_step_has_diverged_too(fedbench):
    """The training loss is taken before the step, so it still looks well."""
    for words in (("client.lr=1e20",), ("client.lr=1e30", "algo=local")):
        run = fedbench(*QUICK, "client.steps=1", "rounds=1", *words)
        assert run.status == 0
        assert summary(run.folder)["status"] == "diverged"
        assert summary(run.folder)["final_accuracy"] is None


def test_a_kept_head_is_not_called_global(fedbench):
    run = fedbench(*QUICK, "algo.local=head")
    assert summary(run.folder)["scoring"] == "per_client"
    assert "scored: per_client" in run.out


def test_the_schema_and_the_file_have_the_same_defaults():
    from omegaconf import OmegaConf

    from fedbench.config.schema import Scalars

    stored = yaml.safe_load((config_folder() / "config.yaml").read_text())
    schema = OmegaConf.to_container(OmegaConf.structured(Scalars))
    schema["runtime"] = stored["runtime"] = None  # a group with files of its own
    assert {key: stored[key] for key in schema if key in stored} == {
        key: schema[key] for key in schema if key in stored
    }


def test_eval_every_still_scores_the_last_round(fedbench):
    run = fedbench(*QUICK, "rounds=5", "eval.every=2")
    assert [row["round"] for row in rows(run.folder)] == ["2", "4", "5"]


def test_an_adaptive_run_on_request_is_stamped(fedbench):
    run = fedbench(
        *QUICK,
        "algo=scaffold",
        "client.optimizer=adam",
        "client.lr=0.001",
        "algo.allow_adaptive=true",
    )
    assert run.status == 0, run.err
    assert "adaptive client optimizer (adam)" in summary(run.folder)["caveats"][0]
    assert "note: adaptive client optimizer" in run.out


def test_help_explains_groups_and_scalars(fedbench):
    run = fedbench("--help")
    assert run.status == 0
    for group in (
        folder.name
        for folder in config_folder().iterdir()
        if folder.is_dir() and folder.name != "hydra"
    ):
        assert group in run.out
    scalars = yaml.safe_load((config_folder() / "config.yaml").read_text())
    for section in ("client", "server", "eval", "checkpoint"):
        for key in scalars[section]:
            assert f"{section}.{key}" in run.out


def test_a_stand_in_is_marked_everywhere(fedbench):
    run = fedbench("data=mnist", "scale=smoke", *QUICK)
    assert run.status == 0, run.err
    assert "synthetic" in str(run.folder)
    assert "data: mnist (synthetic stand-in for mnist" in run.out
    assert "accuracy on a synthetic stand-in for mnist" in run.out
    facts = summary(run.folder)
    assert facts["data"]["source"] == "synthetic"
    assert facts["scale"] == "smoke"


def test_personal_models_say_how_they_are_scored(fedbench):
    setting = (
        *QUICK,
        "data=mnist",
        "data.source=synthetic",
        "data.subset=200",
        "model=lenet",
        "model.batch_norm=true",
    )
    for algo, scoring in (
        ("fedbn", "per_client"),
        ("fedbn", "avg_bn"),
        ("fedbn", "mean_acc"),
        ("local", "mean_acc"),
    ):
        run = fedbench(*setting, f"algo={algo}", f"algo.scoring={scoring}")
        assert run.status == 0, run.err
        assert summary(run.folder)["scoring"] == scoring
        with np.load(run.folder / "predictions.npz") as stored:
            assert stored["final"].shape == ((100,) if scoring == "avg_bn" else (4, 100))
            if scoring == "mean_acc":
                accuracy = (stored["final"] == stored["labels"]).mean()
                assert accuracy == pytest.approx(summary(run.folder)["final_accuracy"])
        with safe_open(run.folder / "model.safetensors", framework="pt") as stored:
            assert "weighted mean" in stored.metadata()["note"]


def test_an_npz_of_vectors_of_ones_own(fedbench, tmp_path):
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, 120)
    x = draw.normal(size=(120, 5)) + 3 * np.eye(3)[labels] @ draw.normal(size=(3, 5))
    np.savez(
        tmp_path / "own.npz", x_train=x[:90], y_train=labels[:90], x_test=x[90:], y_test=labels[90:]
    )
    run = fedbench(
        "data=npz",
        "data.path=own.npz",
        "model=linear",
        *QUICK,
        "rounds=10",
        "client.batch_size=full",
    )
    assert run.status == 0, run.err
    assert summary(run.folder)["final_accuracy"] > 0.7

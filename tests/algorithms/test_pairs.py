"""Every algorithm with every modifier of conf/: 1 worker = 2 workers = stopped and resumed, to the
bit; or refused.

Two rounds each on synthetic images, with all clients and with some, on a network with batch norm
and on one without.
"""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
from support import experiments
from support.native import needs_kernels
from support.waiting import LIMIT

from fedbench.config.schema import Config
from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput
from fedbench.models.cnn import LeNet
from fedbench.models.dense import Mlp
from fedbench.parallel.group import Group
from fedbench.parallel.processes import launch
from fedbench.runs.checkpoint import CheckpointStore
from fedbench.runs.prepared import PreparedRun
from fedbench.train import prepare
from fedbench.training.federation import Federation

ALGORITHMS = sorted(file.stem for file in (config_folder() / "algo").glob("*.yaml"))
MODIFIERS = sorted(file.stem for file in (config_folder() / "modifier").glob("*.yaml"))
# Each method alone and each modifier on FedAvg in the ordinary tests, all pairs in the long ones.
PAIRS = [
    pytest.param(
        algo,
        modifier,
        id=f"{algo}-{modifier or 'alone'}",
        marks=() if algo == "fedavg" or not modifier else pytest.mark.heavy,
    )
    for algo in ALGORITHMS
    for modifier in ["", *MODIFIERS]
]
# Two at once, in the order in which they act whatever the order of the list.
COUPLES = ["pgvc,ecgr", "ecgr,pmvr", "pvr,ecgr", "pgvc,pvr", "gsnr,ecgr", "gsnr,pgvc,pmvr"]
SETTING = (
    "data=mnist",
    "data.source=synthetic",
    "data.subset=80",
    "partition.clients=4",
    "rounds=2",
    "client.epochs=1",
    "client.batch_size=8",
    "client.lr=0.05",
    "eval.every=2",
    "logger=none",
)
NETWORKS = {
    "plain": Mlp(hidden=[16, 8]),
    "batch norm": LeNet(batch_norm=True),
    "native kernels": LeNet(),
}
COHORTS = {"all": None, "some": 2}
# What has the most state in the ordinary tests, others in the long ones.
LONGER = [pytest.mark.heavy, pytest.mark.by_hand]
SETTINGS = [
    pytest.param([("batch norm", "some")], id="first"),
    pytest.param([("plain", "some")], id="second", marks=LONGER),
    pytest.param([("plain", "all"), ("batch norm", "all")], id="third", marks=LONGER),
]


def reasons(algo: str, modifier: str) -> str:
    """Part of the sentence with which a pair is refused, or nothing when it runs."""
    variates, same = (
        ("control_variate", "pvr"),
        {"fedecgr": "ecgr", "fedgsnr": "gsnr", "fednova": "prox"},
    )
    if algo == "local" and modifier:
        return "nothing leaves the client"
    if modifier and modifier == same.get(algo, algo.removeprefix("fed")):
        return "has already"
    if algo == "scaffold" and modifier == "control_variate":
        return "has already"
    if (algo, modifier) in (("scaffold", "pvr"), ("fedpvr", "control_variate")):
        return "has this correction already"
    if modifier == "head_rate" and algo in ("fednova", "scaffold", "fedpvr"):
        return "the same optimizer and rate for all layers"
    if algo == "feddyn" and modifier in variates:
        return "corrects the same gradient"
    if algo == "pfedsim" and modifier in (*variates, "gsnr"):
        return "needs a global model"
    return ""


def composed(algo: str, modifier: str) -> Config:
    """Little work where a method has a number of steps of its own."""
    less = {"fedgsnr": ["algo.steps=3"], "fedgen": ["algo.generator_steps=3"]}.get(algo, [])
    less += ["algo.modifiers.gsnr.steps=3"] if "gsnr" in modifier and algo != "fedgsnr" else []
    return experiments.config(*SETTING, f"algo={algo}", f"modifier=[{modifier}]", *less)


def advance(made: Federation, rounds: int) -> None:
    records = made.rounds()
    for _ in range(rounds):
        next(records)


def assembled(parts: PreparedRun, group: Group) -> Federation:
    """From the initial weights: the network is trained in place."""
    return experiments.assemble(
        dataclasses.replace(parts, model=copy.deepcopy(parts.model)), group=group
    )


def in_two_workers(settings: dict[str, PreparedRun], folder: Path) -> None:
    """Two rounds of every setting, with a checkpoint after each in a folder of its own."""

    def work(group: Group) -> None:
        for name, parts in settings.items():
            made = assembled(parts, group)
            for done in (1, 2):
                advance(made, 1)
                CheckpointStore(folder / name / str(done), group, {}).save(done, made.state, {}, {})

    launch(work, 2, LIMIT)


def restored(parts: PreparedRun, folder: Path) -> Federation:
    made = assembled(parts, Group())
    made.done = CheckpointStore(folder, Group(), {}).load(made.state).done
    return made


def build_settings(config: Config, chosen: list[tuple[str, str]]) -> dict[str, PreparedRun]:
    settings = {}
    for network, cohort in chosen:
        scalars = dataclasses.replace(config.scalars, cohort=COHORTS[cohort])
        algo = copy.deepcopy(config.algo)  # its pieces get bound to the network
        varied = dataclasses.replace(config, model=NETWORKS[network], scalars=scalars, algo=algo)
        settings[f"{network}, {cohort}"] = prepare(varied)
    return settings


def check(config: Config, chosen: list[tuple[str, str]], folder: Path) -> None:
    settings = build_settings(config, chosen)
    in_two_workers(settings, folder)
    for name, parts in settings.items():
        serial = assembled(parts, Group())
        advance(serial, 2)
        expected = experiments.state_digest(serial)
        assert experiments.state_digest(restored(parts, folder / name / "2")) == expected, (
            f"{name}: two workers"
        )
        resumed = restored(parts, folder / name / "1")
        advance(resumed, 1)
        assert experiments.state_digest(resumed) == expected, f"{name}: resumed"


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("algo", "modifier"), PAIRS)
def test_it_runs_or_is_refused(algo, modifier, settings, tmp_path):
    reason = reasons(algo, modifier)
    if reason:
        with pytest.raises(BadInput, match=reason):
            prepare(composed(algo, modifier))
    else:
        check(composed(algo, modifier), settings, tmp_path)


@needs_kernels
@pytest.mark.heavy
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_it_runs_with_native_kernels(algo, tmp_path):
    config, chosen = composed(algo, ""), [("native kernels", "some")]
    (prepared,) = build_settings(config, chosen).values()
    assert prepared.kernels.name == "native"
    check(config, chosen, tmp_path)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("modifiers", COUPLES)
@pytest.mark.parametrize(
    "algo",
    ["fedavg", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("fednova", "fedbn"))],
)
def test_modifiers_together_do_not_depend_on_their_order(algo, modifiers, settings, tmp_path):
    check(composed(algo, modifiers), settings, tmp_path)
    digests = set()
    for order in (modifiers, ",".join(reversed(modifiers.split(",")))):
        made = assembled(prepare(composed(algo, order)), Group())
        advance(made, 2)
        digests.add(experiments.model_digest(made))
    assert len(digests) == 1

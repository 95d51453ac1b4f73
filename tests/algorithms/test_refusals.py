"""Combinations without a meaning are refused, with the reason; on request some run all the same,
and say so.
"""

from __future__ import annotations

import json

import pytest
from support import experiments

from fedbench.core.errors import BadInput

REFUSED = {
    "algo=fedpgvc client.momentum=0.9": r"client\.momentum=0\.9: must be 0 with pgvc: ",
    "modifier=[pgvc] client.momentum=0.5": r"client\.momentum=0\.5: must be 0 with pgvc: ",
    "algo=fedgsnr algo.variant=first client.momentum=0.9": (
        r"client\.momentum=0\.9: must be 0 with gsnr: "
    ),
    "algo=fedgsnr algo.variant=first client.optimizer=adam": (
        "gsnr reads a mean gradient off the local update"
    ),
    "algo=feddyn modifier=[pvr]": "modifier=pvr: .dynamic. of this algorithm",
    "algo=pfedsim modifier=[control_variate]": "modifier=control_variate: it needs a global model",
    "algo=pfedsim modifier=[gsnr]": "modifier=gsnr: it needs a global model",
    "algo=scaffold modifier=[pvr]": "modifier=pvr: the algorithm has this correction already",
    "algo=scaffold client.optimizer=adam": (
        "control_variate reads a mean gradient off the local update"
    ),
    "algo=fedpvr client.optimizer=adam": "pvr reads a mean gradient off the local update",
    "algo=fednova client.optimizer=adam": "fednova reads a mean gradient off the local update",
    "algo=scaffold modifier=[head_rate]": (
        "modifier=head_rate: control_variate reads a mean gradient off the local update, which"
        " takes the same optimizer and rate for all layers"
    ),
    "algo=scaffold modifier=[pmvr] algo.modifiers.pmvr.variant=eq12_plain": (
        "modifier=pmvr: control_variate reads a mean gradient off the local update, which"
    ),
    "algo=fednova modifier=[head_rate]": "modifier=head_rate: fednova reads a mean gradient",
    "algo=fedper modifier=[pvr] algo.modifiers.pvr.layers=1": (
        "its layers hold nothing that leaves the client"
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused(words):
    with pytest.raises(BadInput, match=REFUSED[words]):
        experiments.parts(*words.split())


@pytest.mark.parametrize("algo", ["scaffold", "fednova", "fedpvr"])
def test_an_adaptive_optimizer_on_request_is_stamped(algo):
    (stamp,) = experiments.parts(
        f"algo={algo}", "client.optimizer=adam", "algo.allow_adaptive=true"
    ).algorithm.caveats
    assert stamp.startswith("adaptive client optimizer (adam) although")


@pytest.mark.parametrize(
    "words",
    [
        "algo=fedpgvc algo.rho=code client.momentum=0.9",
        "algo=fedpgvc algo.layers=0 client.momentum=0.9",
        "algo=fedpgvc client.optimizer=adam",
        "algo=fedprox client.optimizer=adam",
        "algo=fedgsnr client.optimizer=adam",
        "modifier=[head_rate] client.optimizer=adam",
        "algo=scaffold modifier=[head_rate] algo.modifiers.head_rate.factor=1",
        "algo=fedgsnr algo.variant=alg1 client.momentum=0.9",
    ],
)
def test_what_has_a_meaning_is_not_refused(words):
    assert experiments.parts(*words.split()).algorithm.caveats == []


FEW = json.dumps([[0], [1, 2], [3, 4, 5], list(range(6, 40)), list(range(40, 73))])


@pytest.mark.parametrize(
    "words", [["algo.rho=code"], ["algo.rho=eq15"], ["algo.sigma=10"]], ids=" ".join
)
def test_clients_with_one_example_are_no_obstacle(fedbench, tmp_path, words):
    (tmp_path / "few.json").write_text(FEW)
    partition = (
        "partition=file",
        f"partition.path={tmp_path / 'few.json'}",
        "partition.incomplete=true",
    )
    assert fedbench("algo=fedpgvc", *words, *partition, "rounds=2", "runtime.workers=1").status == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("algo=fedecgr", "algo=fedecgr algo.memory=0.001"),
        ("algo=fedecgr", "algo=fedecgr algo.beta=0.2"),
        ("algo=fedgsnr", "algo=fedgsnr client.epochs=5"),
        ("algo=moon", "algo=moon algo.projection=false model.projection=256"),
        ("algo=fedpgvc algo.rho=eq15", "algo=fedpgvc algo.rho=eq15 algo.sigma=3"),
    ],
)
def test_settings_that_cannot_change_a_number_do_not_change_the_run(one, other):
    assert experiments.parts(*one.split()).id == experiments.parts(*other.split()).id
    assert (
        experiments.parts(*one.split()).id != experiments.parts(*one.split(), "client.lr=0.07").id
    )

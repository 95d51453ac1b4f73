"""Combinations without a meaning are refused, with the reason; on request some run all the same, and say so."""

from __future__ import annotations

import pytest
import small

from fedbench.errors import BadInput

REFUSED = {
    "algo=fedpgvc client.momentum=0.9": r"client\.momentum=0\.9: pgvc: .* only 0 is allowed",
    "modifier=[pgvc] client.momentum=0.5": r"client\.momentum=0\.5: pgvc: .* only 0 is allowed",
    "algo=feddyn modifier=[pvr]": "modifier=pvr: it corrects the same gradient as 'dynamic'",
    "algo=pfedsim modifier=[control_variate]": "modifier=control_variate: it needs a global model",
    "algo=pfedsim modifier=[gsnr]": "modifier=gsnr: it needs a global model",
    "algo=scaffold modifier=[pvr]": "modifier=pvr: it is the same correction as 'control_variate'",
    "algo=scaffold client.optimizer=adam": "control_variate reads a mean gradient off the local path",
    "algo=fedpvr client.optimizer=adam": "pvr reads a mean gradient off the local path",
    "algo=fednova client.optimizer=adam": "fednova reads a mean gradient off the local path",
    "algo=fedper modifier=[pvr] algo.modifiers.pvr.layers=1": "its layers hold nothing that leaves the client",
}


@pytest.mark.parametrize("words", REFUSED)
def test_it_is_refused(words):
    with pytest.raises(BadInput, match=REFUSED[words]):
        small.parts(*words.split())


@pytest.mark.parametrize("algo", ["scaffold", "fednova", "fedpvr"])
def test_an_adaptive_optimizer_on_request_is_stamped(algo):
    (stamp,) = small.parts(f"algo={algo}", "client.optimizer=adam", "algo.allow_adaptive=true").algorithm.stamps
    assert stamp.startswith("adaptive client optimizer (adam) although")


@pytest.mark.parametrize(
    "words",
    [
        "algo=fedpgvc algo.rho=code client.momentum=0.9",
        "algo=fedpgvc algo.layers=0 client.momentum=0.9",
        "algo=fedpgvc client.optimizer=adam",
        "algo=fedprox client.optimizer=adam",
    ],
)
def test_what_has_a_meaning_is_not_refused(words):
    assert small.parts(*words.split()).algorithm.stamps == []

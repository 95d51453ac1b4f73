"""The same contract for what is done to data: words, spoilt clients, clients' own tests, crops and
flips.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.faulty_runs import result, run
from test_determinism import SETTING

WORDS = (
    "data=qqp",
    "data.source=synthetic",
    "data.subset=60",
    "data.length=8",
    "model=lstm",
    "model.embedding=8",
    "model.hidden=8",
    "partition.clients=4",
    "client.batch_size=8",
    "client.epochs=1",
    "rounds=6",
    "checkpoint.every=2",
    "partition.local_test=0.25",
    "attack=label_shift",
    "attack.shift=1",
)
IMAGES = (
    *SETTING,
    "partition.local_test=0.25",
    "attack=random_input",
    "data.augment=[crop,flip]",
    "algo=fedper",
)


def files(folder: Path) -> tuple:
    return (
        *result(folder),
        (folder / "local_tests.csv").read_text(),
        (folder / "local_test.json").read_text(),
    )


@pytest.mark.parametrize("setting", [WORDS, IMAGES], ids=["words", "images"])
def test_any_number_of_workers_killed_and_resumed_with_another(fedbench, setting):
    whole = fedbench(*setting, "results=whole", "runtime.workers=1")
    assert whole.status == 0, whole.err
    broken = (*setting, "logger=none", "results=broken", "runtime.workers=2", "checkpoint.every=1")
    killed = run(*broken, place="metrics", call=3, kind="parent")
    assert killed.status == -signal.SIGKILL, killed.err
    resumed = fedbench(*setting, "results=broken", "runtime.workers=3")
    assert resumed.status == 0, resumed.err
    assert "resuming after round" in resumed.out
    assert files(resumed.folder) == files(whole.folder)

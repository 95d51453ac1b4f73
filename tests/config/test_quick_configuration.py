"""Tests compose as the program does: support/quick_configuration.py changes the time alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from support import quick_configuration
from support.compositions import described

WORDS = [
    [],
    ["algo=fedpgvc", "modifier=[ecgr,prox]", "algo.rho=code", "client.lr=1e-3"],
    ["data=cifar10", "data.augment=[crop,flip]", "model=cnn_bn", "partition.alpha=0.3"],
    ["results=${oc.env:MY_RESULTS}/of ${seed}", "client.steps=${oc.decode:${oc.env:MY_STEPS}}"],
    ["experiment=fedpgvc/table2", "scale=smoke"],
    ["+study.title='${algo.name}: \"\\${x}\"'", "~attack"],
    ["client.lr=[1,"],
    ["client.rate=1"],
    ["algo=fedavgg"],
]


def test_configurations_are_those_of_hydra_alone(monkeypatch):
    assert quick_configuration.parse_anew is not OverridesParser.parse_rule
    monkeypatch.setenv("MY_RESULTS", "a/b")
    monkeypatch.setenv("MY_STEPS", "7")
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    alone = subprocess.run(
        [sys.executable, "-m", "support.compositions"],
        input=json.dumps(WORDS),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(alone.stdout)
    for attempt in range(2):  # what is found again, too
        assert [described(*words) for words in WORDS] == expected, attempt

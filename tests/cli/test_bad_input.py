"""Bad input: one line that names key, value and what is allowed, exit status 2, nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

QUICK = ("rounds=2", "client.epochs=1", "partition.clients=4", "runtime.workers=1")

BAD = {
    "rouns=3": "unknown key 'rouns': did you mean 'rounds'?",
    "client.epoch=3": "unknown key 'client.epoch': did you mean 'client.epochs'?",
    "+foo=3": "unknown key 'foo'",
    "+algo.foo=3": "unknown key 'algo.foo'",
    "+partition.beta=1": (
        "unknown key 'partition.beta': choose from alpha, clients, local_test, min_samples"
    ),
    "algo.mu=3": "unknown key 'algo.mu'",
    "algo.modifiers.pvr.layers=1": "it needs modifier=[pvr]",
    "algo=fedav": "algo=fedav: did you mean 'fedavg'?",
    "algo=zzz": "algo=zzz: choose from centralized, fedavg",
    "modifier=[prux]": "modifier=prux: did you mean 'prox'?",
    "experiment=nope": "experiment=nope: choose from",
    "rounds=abc": "rounds=abc: an integer is allowed",
    "rounds=0": "rounds=0: an integer of at least 1 is allowed",
    "rounds=null": "rounds=None: an integer is allowed",
    "rounds=[": "cannot read 'rounds=['",
    "rounds": "cannot read 'rounds'",
    "seed=-1": "seed=-1: an integer from 0",
    "cohort=0": "cohort=0: an integer of at least 1",
    "cohort=5": "cohort=5: at most the 4 clients",
    "client=3": "client=3: it is a section with keys of its own",
    "client.batch_size=0": "client.batch_size=0: an integer of at least 1, or `full`",
    "client.batch_size=half": "client.batch_size=half: an integer of at least 1, or `full`",
    "client.batch_size=1.5": "client.batch_size=1.5: an integer of at least 1, or `full`",
    "client.lr=-0.1": "client.lr=-0.1: a finite number above 0",
    "client.lr=inf": "client.lr=inf: a finite number above 0",
    "client.lr_decay.factor=0": "client.lr_decay.factor=0.0: a finite number above 0",
    "client.lr_decay.first=0": "client.lr_decay.first=0: an integer of at least 1",
    "client.momentum=1": "client.momentum=1.0: a number from 0 to below 1",
    "client.weight_decay=-1": "client.weight_decay=-1.0: a finite number of at least 0",
    "client.nesterov=true": "client.nesterov=True: Nesterov needs client.momentum",
    "client.optimizer=sdg": "client.optimizer=sdg: did you mean 'sgd'?",
    "server.weights=sample": "server.weights=sample: did you mean 'samples'?",
    "partition.alpha=0": "partition.alpha=0",
    "partition.clients=0": "partition.clients=0",
    "partition.clients=2000": "partition.clients=2000: from 1 to 1438",
    "partition.min_samples=1000": "partition.min_samples=1000",
    "partition=labels partition.per_client=11": "partition.per_client=11",
    "partition=file": "partition.path",
    "partition=file partition.path=nowhere.json": "partition.path=nowhere.json",
    "data=npz": "data.path",
    "data=npz data.path=nowhere.npz": "data.path=nowhere.npz: no such file",
    "data=mnist": "data.download=true",
    "data.subset=0": "data.subset=0",
    "data.subset=5000": "data.subset=5000",
    "data.source=fake": "data.source=fake",
    "model=lenet": "model=lenet: needs images of at least 12x12",
    "model.hidden=[1]": "model.hidden=[1]",
    "model.weights=nowhere": "model.weights=nowhere: no such file",
    "runtime.device=cuda": "runtime.device=cuda: there is no CUDA device here",
    "runtime.workers=0": "runtime.workers=0: an integer of at least 1",
    "algo=fedprox algo.mu=-1": "algo.mu=-1.0: a finite number of at least 0",
    "algo=fedprox algo.mu=x": "algo.mu=x: a number is allowed",
    "algo=fedavgm algo.momentum=1": "algo.momentum=1.0: a number from 0 to below 1",
    "algo=fedavgm algo.variant=heavy": "algo.variant=heavy: did you mean 'heavy-ball'?",
    "algo=fedbn algo.scoring=mean": "algo.scoring=mean: did you mean 'mean_acc'?",
    "algo=scaffold client.optimizer=adam": "algo.allow_adaptive=true runs it all the same",
    "algo=fednova client.optimizer=adam": "fednova reads a mean gradient off the local path",
    "algo=scaffold modifier=[pvr]": "the same correction as 'control_variate'",
    "modifier=[pvr] algo.modifiers.pvr.layers=4": "the model has 3 layers",
    "algo=fedavg,scaffold": "--multirun",
    "results=": "results",
    "force=maybe": "force=maybe: true or false is allowed",
    "client.lr=1e39": "client.lr=1e+39: a finite number above 0",
    "client.lr_decay.factor=1e200 rounds=4": "client.lr_decay.factor=1e+200",
    "client.lr_decay.factor=0.001 rounds=20": (
        "client.lr_decay.factor=0.001: the last round's rate would be"
    ),
    "client.lr_decay=3": "client.lr_decay=3: it is a section",
    "runtime.timeout=100000000000000000000": (
        "runtime.timeout=100000000000000000000: an integer of at most 10000000"
    ),
    "algo=fednova algo.mu=20": (
        "client.lr=0.1: with a proximal weight of 20 a rate below 0.1 is allowed"
    ),
    "algo=local modifier=[prox]": "nothing leaves the client under algo=local",
    "algo.weights=null": "algo.weights=None: a name is allowed",
    "algo.pooled=banana": "algo.pooled=banana: true or false is allowed",
    "algo.aggregate=null": "algo.aggregate=None: a section with a _target_ is needed",
    "algo.modifiers=3": "algo.modifiers=3: modifier=[...] sets them",
    "algo.local=head +algo.scoring=avg_bn": "algo.scoring=avg_bn: only batch norm can be averaged",
    "+algo.scoring=global": "algo.scoring=global: choose from avg_bn, mean_acc, per_client",
    "rounds=${nope}": "nope",
    "data=mnist scale=smoke model=lenet model.batch_norm=true client.batch_size=1": "batch norm",
    "scale=huge": "scale=huge: choose from laptop, paper, smoke",
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line_and_status_2(fedbench, words):
    if words == "runtime.device=cuda" and __import__("torch").cuda.is_available():
        pytest.skip("there is a CUDA device here")
    run = fedbench(*QUICK, *words.split())
    assert run.status == 2, run.out + run.err
    assert len(run.err.strip().splitlines()) == 1, run.err
    assert run.err.startswith("fedbench: ")
    assert BAD[words] in run.err
    assert run.out == ""
    assert list(Path().iterdir()) == []


def test_results_that_cannot_be_written_are_bad_input(fedbench, tmp_path):
    (tmp_path / "taken").write_text("a file")
    run = fedbench(*QUICK, "results=taken")
    assert run.status == 2
    assert run.err.startswith("fedbench: results=taken: must be a folder that can be written")
    assert len(run.err.splitlines()) == 1

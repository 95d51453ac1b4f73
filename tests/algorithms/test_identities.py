"""Bit for bit: every method with strength zero is FedAvg, with batch norm and without."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from support import experiments

from fedbench.config.schema import Config
from fedbench.models.cnn import LeNet
from fedbench.models.dense import Mlp

ROUNDS = ("rounds=2", "client.epochs=1", "client.lr=0.05", "eval.every=2")
NETWORKS = {"plain": Mlp(hidden=[16, 8]), "batch norm": LeNet(batch_norm=True)}
UNIFORM = "server.weights=uniform"

# What is FedAvg -> the setting of FedAvg with which it must agree.
IDENTITIES = {
    "algo=fedprox algo.mu=0": "",
    "algo=fedavgm algo.momentum=0": "",
    "algo=fedavgm algo.momentum=0 algo.variant=nesterov": "",
    "algo=fedavgm algo.momentum=0 algo.variant=ema": "",
    "algo=fednova client.steps=4": "client.steps=4",
    "algo=fedgsnr algo.steps=4 algo.interpolation=1": "client.steps=4",
    "algo=fedgsnr algo.steps=4 algo.interpolation=1 algo.variant=alg1": "client.steps=4",
    "algo=fedecgr algo.beta=1": "",
    "algo=fedecgr algo.ratio=1": "",
    "algo=fedecgr client.steps=1": "client.steps=1",
    "algo=fedlc algo.tau=0": "",
    "algo=moon algo.mu=0 algo.projection=false": "",
    "algo=moon algo.mu=0": "model.projection=256",
    "algo=fedgen rounds=1": "rounds=1",
    "algo=pfedsim algo.warmup=1": "",
    "algo=fedpmvr algo.alpha=0": "",
    "algo=fedpmvr algo.layers=0": "",
    "algo=fedpmvr algo.variant=code": "",
    "algo=fedpgvc algo.layers=0": "",
    "algo=fedncv algo.alpha_mode=none": "",
    "algo=fedncv algo.alpha_mode=none algo.variant=beta algo.beta=0": "",
    f"algo=fedpvr algo.layers=0 {UNIFORM}": UNIFORM,
    "modifier=[pvr] algo.modifiers.pvr.layers=0": "",
    "modifier=[head_rate] algo.modifiers.head_rate.factor=1": "",
    "modifier=[head_rate] algo.modifiers.head_rate.layers=0": "",
    "algo=scaffold rounds=1": f"rounds=1 {UNIFORM}",
    "algo=fedpvr rounds=1": f"rounds=1 {UNIFORM}",
}
# The same words without the strength of zero: they must not be FedAvg.
DIFFERENT = (
    "algo=fedprox algo.mu=1",
    "algo=fedavgm",
    "algo=fedavgm algo.variant=nesterov",
    "algo=fedavgm algo.variant=ema",
    "algo=fednova",
    "algo=fedecgr",
    "algo=fedlc",
    "algo=moon algo.projection=false",
    "algo=moon",
    "model.projection=256",
    "algo=fedgen algo.generator_steps=2",
    "algo=pfedsim",
    "algo=fedpmvr",
    "algo=fedpgvc",
    "algo=fedncv algo.alpha=0.1",
    "algo=fedncv algo.alpha_mode=none algo.variant=beta algo.beta=0.1",
    "algo=fedgsnr algo.steps=3",
    "algo=fedgsnr algo.steps=12 algo.interpolation=0.5",
    "algo=fedgsnr algo.steps=4 algo.variant=first",
    "algo=feddyn",
    "algo=fedper",
    "algo=fedrep",
    "algo=centralized",
    "modifier=[head_rate]",
    UNIFORM,
    "algo=fedpvr",
    "algo=scaffold",
    "client.steps=4",
    "client.steps=1",
)


@cache
def composed(words: str) -> Config:
    return experiments.config(*experiments.DATA, *ROUNDS, *words.split())


@cache
def model_after(words: str, network: str) -> str:
    """Hash of the exact bits of the server's model and its batch-norm statistics after the last
    round.
    """
    config = composed(words)
    config.model = replace(NETWORKS[network], projection=config.model.projection)
    made = experiments.assemble(experiments.prepare_as_asked(config))
    experiments.final_digest(made)
    return experiments.model_digest(made)


@pytest.mark.parametrize(("words", "fedavg"), IDENTITIES.items(), ids=IDENTITIES)
def test_strength_zero_is_fedavg(words, fedavg):
    for network in NETWORKS:
        assert model_after(words, network) == model_after(fedavg, network), network


def test_fedbn_without_batch_norm_is_fedavg():
    assert model_after("algo=fedbn", "plain") == model_after("", "plain")
    assert model_after("algo=fedbn", "batch norm") != model_after("", "batch norm")


@pytest.mark.heavy
def test_methods_do_differ():
    """The comparisons above could not fail if nothing ever mattered."""
    digests = {words: model_after(words, "plain") for words in ("", *DIFFERENT)}
    assert len(set(digests.values())) == len(digests), digests

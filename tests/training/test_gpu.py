"""On a GPU: `pytest -m gpu`, or `make gpu-check`. They have never run, because there was none."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as functional
from support import experiments
from support.methods import METHODS, STEPS
from support.recorded import SMALL, outcome

from fedbench.parallel import devices
from fedbench.training import example_gradients
from fedbench.training.federation import Federation

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> torch.device:
    if not len(devices.gpus()):
        pytest.skip("there is no GPU")
    return devices.enter("cuda", 0, deterministic=True, precision="float32")


def federation(*words: str, graph: str = "off") -> Federation:
    made = copy.deepcopy(experiments.parts(*experiments.BATCH_NORM, *SMALL, *words))
    scalars = made.config.scalars
    scalars.runtime = replace(scalars.runtime, graph=graph)
    return experiments.assemble(made, "cuda:0")


@pytest.mark.parametrize("words", [*METHODS, *STEPS])
def test_recorded_steps_have_the_same_bits(words):
    once = outcome(federation(*words.split()))
    assert outcome(federation(*words.split())) == once
    assert outcome(federation(*words.split(), graph="auto")) == once


def test_steps_are_recorded():
    built = federation(graph="auto")
    outcome(built)
    graph = built.trainer.graph
    assert graph is not None
    assert [form.refused for form in graph.forms.values()] == [""]
    assert all(form.replay is not None for form in graph.forms.values())


@pytest.mark.parametrize("words", [*METHODS, *STEPS])
def test_no_step_waits_for_the_gpu(words, monkeypatch):
    built = federation(*words.split())
    for _ in range(2):
        next(built.rounds())  # libraries set themselves up
    steps = built.trainer._steps

    def watched(*given):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return steps(*given)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(built.trainer, "_steps", watched)
    next(built.rounds())


def test_gradients_in_chunks_are_those_of_single_examples():
    built = federation()
    model, train, index = built.model, built.trainer.train, built.shards[0][:20]
    model.module.eval()
    loss = functional.cross_entropy
    chunks = example_gradients.moments_in_chunks(model, loss, train, index)
    single = example_gradients.moments_one_by_one(model, loss, train, index)
    for own, exact in zip(chunks, single, strict=True):
        assert (own - exact).abs().max() <= 1e-4 * exact.abs().max()

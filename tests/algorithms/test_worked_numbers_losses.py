"""Worked numbers of the methods that change the local loss: MOON, FedGen, FedLC."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from support.least_squares import close

from fedbench.algorithms.context import Batch, BindContext, Memory
from fedbench.algorithms.fedgen import Generator, diversity, label_weights
from fedbench.algorithms.fedlc import Calibration
from fedbench.algorithms.moon import contrastive
from fedbench.core.flat_model import FlatModel
from fedbench.models.dense import MlpNetwork


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_moon():
    z = rows((1, 2)).requires_grad_()
    loss = contrastive(z, rows((2, 1)), rows((-1, 1)), 0.5)
    loss.backward()
    close([loss.item()], [0.322094392189])
    close(z.grad[0].tolist(), (-0.341168998844, 0.170584499422))


def test_moon_averages_over_the_batch():
    """The second row's cosines are -1 and 1: softplus(2 / T)."""
    loss = contrastive(rows((1, 2), (0, 1)), rows((2, 1), (0, -3)), rows((-1, 1), (0, 2)), 0.5)
    close([loss.item()], [(0.322094392189 + math.log1p(math.exp(4.0))) / 2])


def test_moon_with_the_received_model_as_the_previous_one():
    z = rows((1, 2)).requires_grad_()
    loss = contrastive(z, rows((2, 1)), rows((2, 1)), 0.5)
    loss.backward()
    close([loss.item()], [math.log(2)])
    close(z.grad[0].tolist(), (0.0, 0.0))


def test_fedgen_label_weights():
    close(label_weights(rows((3, 0), (1, 4))).tolist(), [(2 / 3, 1 / 6), (1 / 3, 5 / 6)])


def test_fedgen_diversity():
    close([diversity(rows((0, 0), (1, 0)), rows((0, 0, 0), (1, 1, 4))).item()], [0.606530659713])


def fedgen_terms(index: int, beta: float) -> float:
    """What FedGen adds to a loss in a round, with a head of zeros: then no number depends on what G
    draws.

    Generated features are worth log 2 under such a head, and its softmax is (1/2, 1/2), against p =
    (1/4, 3/4).
    """
    model = FlatModel(MlpNetwork(3, [4, 5], 2).double())
    torch.nn.init.zeros_(model.module.head.weight)
    torch.nn.init.zeros_(model.module.head.bias)
    context = BindContext(model, 2, 2, 20, 0, shared=model.everything())
    fedgen = Generator(beta=beta).bind(context, "algo.modifiers.generator")
    memory = Memory({**fedgen.init_server(model), "labels": torch.ones(2)}, {})
    y, logits = torch.tensor([0, 1, 0, 1]), rows(*[(0, math.log(3))] * 4)
    local = SimpleNamespace(
        round=index, epoch=0, model=model, batch=Batch(None, y, logits, None, None)
    )
    fedgen.begin(local, memory)
    return fedgen.loss(local, memory, logits.new_zeros(())).item()


@pytest.mark.parametrize(("index", "alpha"), [(1, 9.8), (10, 8.17072806888)])
def test_fedgen_weights_fade(index, alpha):
    """32 generated examples against 4 own ones; KL((1/2, 1/2) || (1/4, 3/4)) = log(4/3) / 2."""
    for beta in (10.0, 1.0):
        own, imitation = 32 / 4 * alpha * math.log(2), beta / 10.0 * alpha * math.log(4 / 3) / 2
        close([fedgen_terms(index, beta)], [own + imitation])


def test_fedgen_adds_nothing_in_the_first_round():
    assert fedgen_terms(0, 10.0) == 0.0


def fedlc(counts: tuple[int, ...], **settings) -> tuple[float, list[float]]:
    """The loss of logits (1, 2, .5) with label 0, and the calibrated logits."""
    model = SimpleNamespace(w=torch.zeros(1, dtype=torch.float64))
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    batch = Batch(None, torch.tensor([0]), rows((1, 2, 0.5)), None, None)
    local = SimpleNamespace(model=model, own=SimpleNamespace(labels=labels), batch=batch)
    memory, context = Memory({}, {}), BindContext(model, 2, 3, 20, 0)
    calibration = Calibration(**settings).bind(context, "algo.modifiers.calibration")
    calibration.begin(local, memory)
    loss = calibration.loss(local, memory, None).item()
    return loss, (batch.logits - memory.scratch["margin"])[0].tolist()


@pytest.mark.parametrize(
    ("counts", "calibrated", "softmax", "paper"),
    [
        ((16, 81, 256), (0.5, 1.66666666667, 0.25), 1.60745020349, 1.38380910699),
        ((16, 81, 0), (0.5, 1.66666666667, -99.5), 1.43776439389, 1.16666666667),
    ],
)
def test_fedlc(counts, calibrated, softmax, paper):
    for variant, expected in (("softmax", softmax), ("paper", paper)):
        loss, logits = fedlc(counts, variant=variant)
        close([loss], [expected])
        close(logits, calibrated)


def test_fedlc_with_tau_0_is_cross_entropy():
    close([fedlc((16, 81, 256), tau=0.0)[0]], [1.46436878411])

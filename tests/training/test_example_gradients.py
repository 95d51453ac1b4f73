"""Moments of single examples' gradients: in chunks, as on a GPU, and one by one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as functional
from support.networks import COLOUR, GRAY, SENTENCES, build

from fedbench.core.flat_model import FlatModel
from fedbench.data.batches import Examples
from fedbench.models import CnnBn, LeNet, Lstm, Mlp, ModelSettings
from fedbench.training import example_gradients

NETWORKS = [
    (Mlp(hidden=[8, 6]), GRAY),
    (LeNet(), GRAY),
    (LeNet(batch_norm=True), COLOUR),
    (CnnBn(), (8, 8, 3)),
]


@pytest.mark.parametrize(("settings", "shape"), NETWORKS, ids=["mlp", "lenet", "lenet-bn", "cnn"])
def test_chunks_and_single_examples_agree(
    settings: ModelSettings, shape: tuple[int, ...], monkeypatch
):
    """Up to rounding in float64, with seven examples in chunks of three, three and one;
    batch-norm statistics stay as they are.
    """
    model = FlatModel(build(settings, shape).double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, *shape, generator=generator, dtype=torch.float64)
    examples = Examples(x, torch.arange(9) % 10, None, None)
    index = torch.tensor([8, 0, 1, 3, 4, 6, 7])
    monkeypatch.setattr(example_gradients, "CHUNK_ELEMENTS", 3 * model.size)
    model.module.eval()
    buffers = model.b.clone()
    loss = functional.cross_entropy
    one_by_one = example_gradients.moments_one_by_one(model, loss, examples, index)
    chunks = example_gradients.moments_in_chunks(model, loss, examples, index)
    for own, exact in zip(chunks, one_by_one, strict=True):
        assert (own - exact).abs().max() <= 1e-12 * exact.abs().max()
    assert torch.equal(model.b, buffers)
    assert one_by_one[1].max() > 0


@pytest.mark.parametrize(
    ("settings", "shape", "taken"), [(Mlp(), GRAY, "chunks"), (Lstm(), SENTENCES, "one by one")]
)
def test_a_gpu_takes_chunks_but_of_recurrent_layers(monkeypatch, settings, shape, taken):
    monkeypatch.setattr(example_gradients, "moments_in_chunks", lambda *given: "chunks")
    monkeypatch.setattr(example_gradients, "moments_one_by_one", lambda *given: "one by one")
    model = FlatModel(build(settings, shape))
    model.device = torch.device("cuda")  # as far as the choice goes
    assert example_gradients.gradient_moments(model, None, None, None) == taken


def test_the_cpu_takes_one_at_a_time(monkeypatch):
    """Bits of results on the CPU rest on it."""
    monkeypatch.setattr(example_gradients, "moments_in_chunks", None)
    model = FlatModel(build(Mlp(hidden=[4, 3]), (5,)))
    examples = Examples(torch.randn(3, 5), torch.arange(3), None, None)
    mean, variance = example_gradients.gradient_moments(
        model, functional.cross_entropy, examples, torch.arange(3)
    )
    assert len(mean) == len(variance) == model.size

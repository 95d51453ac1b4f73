"""Every model of conf/model in the flat space: its gradients are views, and its layers hold all of
it.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from support import experiments
from support.networks import batch, build, example_shape, outline
from torch import nn

from fedbench.core.flat_model import FlatModel
from fedbench.models import Model, ModelSettings

NAMES = [
    file.stem for file in sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))
]
LARGE = ("vit_b32", "vit_b32_pretrained")  # 88 million parameters
all_models = pytest.mark.parametrize("name", NAMES)


@cache
def settings_of(name: str) -> ModelSettings:
    return experiments.config(f"model={name}").model


def backward(model: Model, settings: ModelSettings) -> None:
    x = batch(example_shape(settings), 2, next(model.parameters()).dtype)
    functional.cross_entropy(model(x), torch.arange(2)).backward()


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.heavy) if n in LARGE else n for n in NAMES]
)
def test_backward_fills_the_flat_gradient(name):
    """As an ordinary network's, in every layer; the second time to the same bits, added to what is
    there.
    """
    settings = settings_of(name)
    model = build(settings, example_shape(settings))
    model = (
        model if name in LARGE else model.double()
    )  # in float32 rounding turns some ReLU, here and there
    tolerance = 1e-3 if name in LARGE else 1e-9
    ordinary = copy.deepcopy(model)
    backward(ordinary, settings)
    flat = FlatModel(model)
    backward(flat.module, settings)
    first = flat.g.clone()
    wanted, floor = dict(ordinary.named_parameters()), 1e-3 * flat.g.norm()
    assert len(flat.parameter_slices) == len(wanted)
    for key, parameter in flat.module.named_parameters():
        place = flat.place(parameter)
        assert parameter.grad.untyped_storage().data_ptr() == flat.g.untyped_storage().data_ptr(), (
            key
        )
        assert parameter.grad.data_ptr() == flat.g[place].data_ptr(), key
        error = (parameter.grad - wanted[key].grad).norm()
        assert error <= tolerance * max(wanted[key].grad.norm(), floor), key
    for layer in flat.layers:
        assert flat.g[layer.start : layer.stop].norm() > 0, layer.name
    backward(flat.module, settings)
    assert torch.equal(flat.g, 2 * first), "another time, other bits"


@all_models
def test_layers_hold_everything_once_and_end_with_the_head(name):
    for projection in (None, 16):
        settings = replace(settings_of(name), projection=projection)
        model = outline(settings, example_shape(settings))
        modules = [module for _, layer in model.layers() for module in layer]
        tensors = [
            tensor for module in modules for tensor in (*module.parameters(), *module.buffers())
        ]
        state = model.state_dict(keep_vars=True)
        assert len(tensors) == len(state)
        assert {id(tensor) for tensor in tensors} == {id(tensor) for tensor in state.values()}
        assert model.layers()[-1] == (model.head_name, [model.head])
        assert isinstance(model.head, nn.Linear)


LAST = {
    "cnn5": "fc2 fc3",
    "cnn_bn": "conv5 fc",
    "lenet": "fc2 fc3",
    "linear": "fc",
    "lstm": "fc2 fc3",
    "mlp": "fc2 fc3",
    "resnet18": "fc2 fc3",
    "resnet18_plain": "layer4.1.conv2 fc",
    "resnet18_pretrained": "fc2 fc3",
    "vgg16": "fc2 fc3",
    "vgg19": "fc2 fc3",
    "vit_b32": "fc2 fc3",
    "vit_b32_pretrained": "fc2 fc3",
}


@all_models
def test_the_last_two_layers_are_the_last_hidden_one_and_the_classifier(name):
    settings = settings_of(name)
    model = outline(settings, example_shape(settings))
    assert " ".join(layer for layer, _ in model.layers()[-2:]) == LAST[name]
    last = FlatModel(model, "meta").last(min(2, len(model.layers())), "algo.layers")
    own = [module for _, layer in model.layers()[-2:] for module in layer]
    assert last.size == sum(
        parameter.numel() for module in own for parameter in module.parameters()
    )


@pytest.mark.parametrize("name", ["cnn_bn", "lstm", "resnet18"])
def test_a_twin_shares_nothing(name):
    settings = settings_of(name)
    flat = FlatModel(build(settings, example_shape(settings)))
    twin = flat.twin()
    assert torch.equal(twin.w, flat.w)
    twin.w.zero_()
    assert flat.w.any()
    assert not any(parameter.any() for parameter in twin.module.parameters())


def test_every_model_is_listed_here():
    assert set(LAST) == set(NAMES)

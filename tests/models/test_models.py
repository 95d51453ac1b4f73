"""The networks against plain torch.nn ones, and what they declare."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as functional
from support.networks import (
    COLOUR,
    GRAY,
    NETWORKS,
    batch,
    build,
    close,
    every_network,
    gradients,
    outline,
)
from torch import nn

from fedbench.core.errors import BadInput
from fedbench.core.flat_model import FlatModel
from fedbench.models import Cnn5, CnnBn, LeNet


class Plain(nn.Sequential):
    """Named torch.nn modules in a row, so that the state dict is that of the network under test."""

    def __init__(self, **modules: nn.Module):
        super().__init__(OrderedDict(modules))


def plain_lenet(channels: int, padding: int, flat: int, batch_norm: bool = False) -> Plain:
    modules: dict[str, nn.Module] = {}
    for i, (inputs, outputs, border) in enumerate([(channels, 6, padding), (6, 16, 0)], start=1):
        modules[f"conv{i}"] = nn.Conv2d(inputs, outputs, 5, padding=border)
        modules |= {f"bn{i}": nn.BatchNorm2d(outputs)} if batch_norm else {}
        modules |= {f"relu{i}": nn.ReLU(), f"pool{i}": nn.MaxPool2d(2)}
    dense = {
        "fc1": nn.Linear(flat, 120),
        "relu3": nn.ReLU(),
        "fc2": nn.Linear(120, 84),
        "relu4": nn.ReLU(),
    }
    return Plain(**modules, flatten=nn.Flatten(), **dense, fc3=nn.Linear(84, 10))


def plain_cnn_bn(channels: int, flat: int) -> Plain:
    modules: dict[str, nn.Module] = {
        "conv0": nn.Conv2d(channels, 32, 3, padding=1),
        "relu0": nn.ReLU(),
    }
    for i, (inputs, outputs) in enumerate(
        [(32, 64), (64, 128), (128, 128), (128, 256), (256, 256)], start=1
    ):
        modules[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        modules |= {f"bn{i}": nn.BatchNorm2d(outputs), f"relu{i}": nn.ReLU()}
        if i in (1, 3, 5):
            modules[f"pool{i}"] = nn.MaxPool2d(2)
    return Plain(**modules, flatten=nn.Flatten(), fc=nn.Linear(flat, 10, bias=False))


SAME = {
    "lenet-28": (LeNet(), GRAY, lambda: plain_lenet(1, 2, 400)),
    "lenet-32": (LeNet(), COLOUR, lambda: plain_lenet(3, 0, 400)),
    "lenet-odd": (LeNet(), (23, 19, 1), lambda: plain_lenet(1, 2, 16 * 3 * 2)),
    "lenet-bn": (LeNet(batch_norm=True), GRAY, lambda: plain_lenet(1, 2, 400, batch_norm=True)),
    "cnn5": (Cnn5(), COLOUR, lambda: plain_lenet(3, 0, 400)),
    "cnn_bn-32": (CnnBn(), COLOUR, lambda: plain_cnn_bn(3, 4096)),
    "cnn_bn-28": (
        CnnBn(),
        GRAY,
        lambda: plain_cnn_bn(1, 2304),
    ),  # some convolutions without whole tiles
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", SAME)
def test_equals_the_plain_network_forward_and_backward(case, dtype):
    settings, shape, make_plain = SAME[case]
    model, exact = build(settings, shape).to(dtype), make_plain().double()
    exact.load_state_dict(model.state_dict())
    x = batch(shape, dtype=dtype)
    # In float32, rounding decides a ReLU or a maximum the other way now and then, in PyTorch's own
    # networks as well, which shifts a gradient by up to 1 %. In float64 this does not happen.
    for_outputs, for_gradients = (1e-10, 1e-10) if dtype == torch.float64 else (1e-5, 2e-2)
    assert close(model(x), exact(x.double()), for_outputs)
    wanted, found = gradients(exact, x.double()), gradients(model, x)
    floor = 1e-2 * max(
        gradient.norm() for gradient in wanted.values()
    )  # a bias before a norm has gradient 0
    for name, gradient in found.items():
        assert (gradient - wanted[name]).norm() <= for_gradients * (wanted[name].norm() + floor), (
            name
        )
    for name, value in exact.state_dict().items():
        assert close(model.state_dict()[name], value.double(), for_outputs), (
            name
        )  # running statistics
    assert close(model.eval()(x), exact.eval()(x.double()), for_outputs)


@every_network
def test_parameters_are_as_many_as_counted_by_hand(settings, shape, parameters):
    assert (
        sum(parameter.numel() for parameter in outline(settings, shape).parameters()) == parameters
    )


@every_network
def test_layers_hold_everything_once_in_order_and_end_with_the_head(settings, shape, parameters):
    model = outline(settings, shape)
    modules = [module for _, layer in model.layers() for module in layer]
    in_layers = [
        tensor for module in modules for tensor in (*module.parameters(), *module.buffers())
    ]
    assert len({id(tensor) for tensor in in_layers}) == len(in_layers)
    assert {id(t) for t in in_layers} == {id(t) for t in (*model.parameters(), *model.buffers())}
    of_layers = [id(parameter) for module in modules for parameter in module.parameters()]
    assert of_layers == [id(parameter) for parameter in model.parameters()]
    name, head = model.layers()[-1]
    assert name == model.head_name
    assert head == [model.head]
    assert isinstance(model.head, nn.Linear)
    for layer_name, layer in model.layers():
        assert model.get_submodule(layer_name) is layer[0]
        assert not isinstance(layer[0], nn.BatchNorm2d)
        assert all(isinstance(module, nn.BatchNorm2d) for module in layer[1:])


@every_network
def test_forward_is_the_head_of_the_features(settings, shape, parameters):
    model, x = build(settings, shape).eval(), batch(shape)
    assert model(x).shape == (5, 10)
    assert torch.equal(model(x), model.head(model.features(x)))


@every_network
def test_runs_on_another_device(settings, shape, parameters):
    model = outline(settings, shape)
    output = model(batch(shape).to("meta"))
    output.sum().backward()
    assert output.shape == (5, 10)
    assert all(parameter.grad.is_meta for parameter in model.parameters())


def test_layer_names_are_the_papers():
    names = {
        type(s).__name__: [name for name, _ in outline(s, shape).layers()]
        for s, shape, _ in NETWORKS
    }
    assert names["Linear"] == ["fc"]
    assert names["Mlp"] == ["fc1", "fc2", "fc3"]
    assert names["LeNet"] == names["Cnn5"] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert names["CnnBn"] == ["conv0", "conv1", "conv2", "conv3", "conv4", "conv5", "fc"]
    assert names["Lstm"] == ["embedding", "lstm1", "lstm2", "fc1", "fc2", "fc3"]
    assert "bn2.running_var" in build(LeNet(batch_norm=True), GRAY).state_dict()


@every_network
def test_trains_in_the_flat_space(settings, shape, parameters):
    flat = FlatModel(build(settings, shape))
    assert flat.size == parameters
    reference = gradients(build(settings, shape), batch(shape))
    functional.cross_entropy(flat.module(batch(shape)), torch.arange(5)).backward()
    for name, parameter in flat.module.named_parameters():
        assert parameter.grad.untyped_storage().data_ptr() == flat.g.untyped_storage().data_ptr(), (
            name
        )
        error = (parameter.grad - reference[name]).norm()
        assert error <= 2e-2 * reference[name].norm() + 1e-5, name


def test_lenet_without_padding_is_the_one_of_fl_bench():
    """156 + 2,416 + 30,840 + 10,164 + 850 parameters, and 44 of batch norm."""
    network = LeNet(batch_norm=True, padding=0).network((28, 28, 1), 10)
    assert network.fc1.in_features == 256
    assert sum(parameter.numel() for parameter in network.parameters()) == 44_470
    assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    padded = LeNet().network((28, 28, 1), 10)
    stated = LeNet(padding=2).network((28, 28, 1), 10)
    assert padded.conv1.padding == stated.conv1.padding == (2, 2)
    with pytest.raises(BadInput, match="needs images of at least 16x16 pixels"):
        LeNet(padding=0).network((14, 14, 1), 10)

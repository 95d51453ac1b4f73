"""The faster layers against PyTorch's own operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as functional
from support.networks import COLOUR, GRAY, batch, build, close
from torch import Tensor, nn

from fedbench.models import CnnBn, LeNet
from fedbench.models.cpu_kernels import Conv3x3, channels_last, pool_relu
from fedbench.models.cpu_kernels.torch_layers import convolve


@pytest.mark.parametrize("size", [(2, 6, 10, 8), (3, 16, 7, 9)])
def test_pooling_before_relu_gives_the_same_bits_ties_included(size):
    values = torch.randint(
        -2, 3, size, generator=torch.Generator().manual_seed(0)
    ).float()  # full of ties
    arriving = torch.randn(*size[:2], size[2] // 2, size[3] // 2)
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for order in (pool_relu, lambda x: functional.max_pool2d(functional.relu(x), 2)):
            x = values.clone(memory_format=layout).requires_grad_()
            y = order(x)
            y.backward(arriving)
            found.append((y.detach(), x.grad))
    for y, gradient in found[1:]:
        assert torch.equal(y, found[0][0])
        assert torch.equal(gradient, found[0][1])


def test_extra_channels_are_zero_and_change_nothing():
    first, second = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
    x = channels_last(batch(GRAY))
    wide = convolve(x, first)
    assert wide.shape == (5, 8, 28, 28)
    assert not wide[:, 6:].any()
    assert close(wide[:, :6], first.double()(x.double()), 1e-6)
    assert close(convolve(wide, second), second.double()(wide[:, :6].double()), 1e-6)


def test_one_channel_gets_channels_last_strides_without_a_copy():
    images = torch.randn(4, 1, 28, 28)
    assert channels_last(images).stride() == (784, 1, 28, 1)
    assert channels_last(images).data_ptr() == images.data_ptr()


@pytest.mark.parametrize(
    ("count", "inputs", "outputs", "height", "width"),
    [
        (1, 1, 1, 4, 4),
        (3, 5, 7, 8, 12),
        (2, 32, 64, 32, 32),
        (37, 128, 16, 16, 16),
        (20, 256, 32, 8, 4),
    ],
)
def test_winograd_is_the_convolution(count, inputs, outputs, height, width):
    torch.manual_seed(0)
    layer, exact = (
        Conv3x3(inputs, outputs),
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False).double(),
    )
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(count, inputs, height, width)
    arriving = torch.randn(count, outputs, height, width)
    wanted_x = x.double().requires_grad_()
    wanted = exact(wanted_x)
    wanted.backward(arriving.double())
    bits = []
    for layout in (torch.contiguous_format, torch.channels_last, torch.channels_last):
        own = x.clone(memory_format=layout).requires_grad_()
        layer.zero_grad()
        y = layer(own)
        assert type(y.grad_fn).__name__ == "WinogradBackward"
        y.backward(arriving.contiguous(memory_format=layout))
        assert close(y, wanted)
        assert close(own.grad, wanted_x.grad)
        assert close(layer.weight.grad, exact.weight.grad)
        bits.append((y, own.grad, layer.weight.grad))
    assert all(torch.equal(a, b) for other in bits[1:] for a, b in zip(bits[0], other, strict=True))


def test_winograd_stands_aside_where_it_does_not_apply():
    layer = Conv3x3(4, 8)
    for x in (torch.randn(2, 4, 6, 8), torch.randn(2, 4, 8, 7)):  # no whole tiles
        assert torch.equal(layer(x), functional.conv2d(x, layer.weight, padding=1))
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(
        RuntimeError, match="once_differentiable"
    ):  # never a wrong second derivative in silence
        gradient.sum().backward()
    assert torch.equal(
        layer.double()(x.double()), functional.conv2d(x.double(), layer.weight, padding=1)
    )


@pytest.mark.parametrize(("settings", "shape"), [(LeNet(), GRAY), (CnnBn(), COLOUR)])
def test_per_example_gradients_by_torch_func(settings, shape):
    model, x, y = build(settings, shape).eval(), batch(shape, 3), torch.arange(3)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        output = torch.func.functional_call(model, values, (image[None],))
        return functional.cross_entropy(output, label[None])

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
    for i in range(3):
        model.zero_grad()
        functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        for name, parameter in parameters.items():
            error = (found[name][i] - parameter.grad).norm()
            assert error <= 2e-2 * parameter.grad.norm() + 1e-5, name


BITS = """
import torch
from fedbench.core.flat_model import FlatModel, digest
from fedbench.models import CnnBn, LeNet
from fedbench.models.cpu_kernels import choose_kernels
torch.set_num_threads(1)
torch.manual_seed(3)
found = []
for kernels, settings, shape in (
    ("torch", LeNet(), (28, 28, 1)),
    ("torch", CnnBn(), (16, 16, 3)),
    ("auto", LeNet(), (28, 28, 1)),
    ("auto", CnnBn(), (16, 16, 3)),
):
    flat = FlatModel(settings.build(shape, 10))
    choose_kernels(kernels, flat.module, "cpu", 1)
    x = torch.randn(12, *shape).permute(0, 3, 1, 2)
    for step in range(3):
        flat.g.zero_()
        torch.nn.functional.cross_entropy(flat.module(x), torch.arange(12) % 10).backward()
        flat.w.sub_(flat.g, alpha=0.1)
    found.append(digest({"w": flat.w, "b": flat.b}))
print(*found)
"""


def test_another_process_gives_the_same_bits(capsys):
    source = Path(__file__).parents[2] / "src"
    other = subprocess.run(
        [sys.executable, "-c", BITS], cwd=source, capture_output=True, text=True, check=True
    )
    exec(BITS, {})
    assert capsys.readouterr().out == other.stdout

"""VGG, ResNet-18 and ViT-B/32 against torchvision's own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from support.networks import COLOUR, GRAY, TRUNK, batch, build, close, gradients, outline
from torch import nn

from fedbench.core.flat_model import FlatModel
from fedbench.core.torchvision_operators import import_torchvision
from fedbench.models import ResNet18, Vgg16, Vgg19, VitB32
from fedbench.models.torchvision import resized

VIT = 88_224_232 - 769_000  # torchvision's ViT-B/32 for 1,000 classes, without its classifier
EXTRA = 513 * 256 + 257 * 10


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("settings", "shape", "classes", "parameters"),
    [
        (
            Vgg16(),
            COLOUR,
            10,
            15_245_130,
        ),  # 14,714,688 of torchvision's convolutions, 530,442 fully connected
        (Vgg16(batch_norm=True), COLOUR, 100, 14_714_688 + 2 * 4_224 + 2 * 262_656 + 51_300),
        (Vgg19(), COLOUR, 10, 20_554_826),
        (Vgg19(batch_norm=True), COLOUR, 10, 20_554_826 + 2 * 5_504),
        (ResNet18(), COLOUR, 10, TRUNK + 513 * 512 + EXTRA),
        (Vgg16(), (64, 64, 1), 10, 15_245_130 - 2 * 9 * 64),
        (ResNet18(extra=False), (224, 224, 3), 5, TRUNK + 513 * 5),
        (ResNet18(extra=False), COLOUR, 1000, 11_689_512),
        (ResNet18(image_size=224), (64, 64, 3), 10, TRUNK + 513 * 512 + EXTRA),
        (VitB32(), COLOUR, 10, VIT + 769 * 512 + EXTRA),
        (VitB32(image_size=64), GRAY, 10, VIT - 45 * 768 + 769 * 512 + EXTRA),
    ],
)
def test_parameters(settings, shape, classes, parameters):
    assert count(outline(settings, shape, classes)) == parameters


def test_the_plain_resnet_is_torchvisions_and_starts_from_the_same_bits():
    torch.manual_seed(1)
    exact = import_torchvision().models.resnet18(num_classes=10)
    model = build(ResNet18(extra=False), COLOUR)
    assert list(model.state_dict()) == list(exact.state_dict())
    assert all(
        torch.equal(value, exact.state_dict()[name]) for name, value in model.state_dict().items()
    )
    model, exact, x = model.double(), exact.double(), batch(COLOUR, 4, torch.float64)
    assert close(model(x), exact(x), 1e-9)
    wanted = gradients(exact, x)
    for name, gradient in gradients(model, x).items():
        assert close(gradient, wanted[name], 1e-8), name
    assert close(model.eval()(x), exact.eval()(x), 1e-9)


def test_resnet_layers_are_in_the_order_of_computation():
    layers = outline(ResNet18(), COLOUR).layers()
    names = [name for name, _ in layers]
    assert len(names) == 1 + 16 + 3 + 3
    assert names[5:9] == [
        "layer2.0.conv1",
        "layer2.0.conv2",
        "layer2.0.downsample.0",
        "layer2.1.conv1",
    ]
    assert all(isinstance(modules[1], nn.BatchNorm2d) for _, modules in layers[:-3])
    assert FlatModel(outline(ResNet18(), COLOUR), "meta").batch_norm().size == 2 * 4_800


def test_the_small_stem_keeps_the_pixels():
    for stem, pixels in (("imagenet", 1), ("cifar", 4)):
        seen = []
        model = build(ResNet18(stem=stem), COLOUR).eval()
        model.layer4.register_forward_hook(
            lambda module, inputs, output, seen=seen: seen.append(output.shape[2:])
        )
        model(batch(COLOUR, 1))
        assert seen == [(pixels, pixels)]


def test_images_are_resized_as_torchvision_does_and_grey_ones_repeated():
    resize = import_torchvision().transforms.functional.resize
    for shape in ((32, 32, 3), (28, 28, 1), (48, 40, 3), (300, 260, 3)):
        x = batch(shape, 2)
        assert close(resized(x, 64), resize(x, [64, 64], antialias=True).double(), 1e-6)
    assert resized(x, None) is x
    model = build(ResNet18(image_size=40), GRAY).eval()
    large = resized(batch(GRAY, 2), 40).expand(-1, 3, -1, -1)
    assert torch.equal(model(batch(GRAY, 2)), build(ResNet18(), (40, 40, 3)).eval()(large))


def test_vgg_layers_are_convolutions_with_their_norms():
    layers = outline(Vgg19(batch_norm=True), COLOUR).layers()
    assert [name for name, _ in layers] == [f"conv{i}" for i in range(1, 17)] + [
        "fc1",
        "fc2",
        "fc3",
    ]
    assert all(isinstance(modules[1], nn.BatchNorm2d) for _, modules in layers[:16])


def plain_vgg(configuration: str, batch_norm: bool) -> nn.Module:
    vgg = import_torchvision().models.vgg
    linear = [nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    features = vgg.make_layers(vgg.cfgs[configuration], batch_norm)
    return nn.Sequential(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *linear)


@pytest.mark.parametrize(
    ("settings", "configuration"),
    [(Vgg16(batch_norm=True), "D"), pytest.param(Vgg19(), "E", marks=pytest.mark.heavy)],
)
def test_the_convolutions_are_torchvisions(settings, configuration):
    model, exact = (
        build(settings, COLOUR).double(),
        plain_vgg(configuration, settings.batch_norm).double(),
    )
    exact.load_state_dict(dict(zip(exact.state_dict(), model.state_dict().values(), strict=True)))
    x = batch(COLOUR, 3, torch.float64)
    assert close(model(x), exact(x), 1e-9)
    ours, wanted = gradients(model, x), gradients(exact, x)
    for (name, found), gradient in zip(ours.items(), wanted.values(), strict=True):
        assert close(found, gradient, 1e-8) or gradient.abs().max() < 1e-12, (
            name
        )  # a bias before a norm
    large = batch((64, 64, 3), 2, torch.float64)
    assert close(model.eval()(large), exact.eval()(large), 1e-9)


def test_the_transformer_is_torchvisions(small_vit):
    model = build(VitB32(image_size=64), (64, 64, 3)).double()
    exact = small_vit(image_size=64).double()
    trunk = {
        name: value
        for name, value in model.state_dict().items()
        if name.split(".")[0] in model.trunk
    }
    assert set(exact.state_dict()) - set(trunk) == {"heads.head.weight", "heads.head.bias"}
    exact.load_state_dict(trunk, strict=False)
    exact.heads = nn.Sequential(model.fc1, nn.ReLU(), model.fc2, nn.ReLU(), model.fc3)
    x = batch((64, 64, 3), 3, torch.float64)
    assert close(model(x), exact(x), 1e-9)
    ours, wanted = gradients(model, x), gradients(exact, x)
    for name in trunk:
        assert close(ours[name], wanted[name], 1e-8), name


def test_transformer_layers_are_in_the_order_of_computation(small_vit):
    model = build(VitB32(image_size=64), COLOUR)
    block = "encoder.layers.encoder_layer_{}"
    inner = [
        f"{block.format(i)}.{part}"
        for i in range(2)
        for part in ("self_attention", "mlp.0", "mlp.3")
    ]
    assert [name for name, _ in model.layers()] == ["conv_proj", *inner, "fc1", "fc2", "fc3"]
    first, attention = model.layers()[0][1], model.layers()[1][1]
    assert list(first[1]) == [model.class_token, model.encoder.pos_embedding]
    assert first[2] is model.encoder.layers[0].ln_1
    assert attention[1] is model.encoder.layers[0].ln_2
    assert model.layers()[6][1][1] is model.encoder.ln
    flat = FlatModel(model)
    flat.module(batch(COLOUR, 3)).square().sum().backward()
    assert all(flat.g[layer.start : layer.stop].norm() > 0 for layer in flat.layers)


@pytest.mark.heavy
def test_the_whole_transformer_runs_on_small_images():
    model = build(VitB32(), GRAY).eval()
    with torch.inference_mode():
        assert model(batch(GRAY, 2)).isfinite().all()
        assert model.features(batch(COLOUR, 2)).shape == (2, 256)


def test_torchvision_is_imported_only_when_it_is_needed():
    code = "import sys, fedbench.cli, fedbench.models; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_says_what_its_last_two_layers_are_and_does_not_depend_on_the_workers(fedbench):
    words = (
        "model=resnet18_plain",
        "data.subset=60",
        "partition.clients=2",
        "rounds=1",
        "client.steps=2",
    )
    digests = []
    for workers in (1, 2):
        run = fedbench(*words, "client.lr=0.01", "force=true", f"runtime.workers={workers}")
        assert run.status == 0, run.err
        assert (
            "model: 11,181,642 parameters in 21 layers (the last two: layer4.1.conv2, fc)"
            in run.out
        )
        digests.append(json.loads((run.folder / "summary.json").read_text())["digest"])
    assert digests[0] == digests[1]

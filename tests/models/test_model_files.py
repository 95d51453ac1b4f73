"""Models from the files of `conf/model`, weights from a file, and one line for what is wrong with
either.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from safetensors.torch import save_file
from support import experiments
from support.networks import (
    COLOUR,
    GRAY,
    SENTENCES,
    batch,
    build,
    every_network,
    example_shape,
    outline,
)
from torch import Tensor

from fedbench.core.errors import BadInput
from fedbench.core.fields import check_fields
from fedbench.core.flat_model import FlatModel
from fedbench.models import (
    Cnn5,
    CnnBn,
    LeNet,
    Linear,
    Lstm,
    Mlp,
    Model,
    ModelSettings,
    ResNet18,
    Vgg16,
    Vgg19,
    VitB32,
    load_weights,
)

CONF = Path(__file__).parents[2] / "conf" / "model"


FILES = sorted(CONF.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_configuration_file_builds_its_model(file):
    settings = experiments.config(f"model={file.stem}").model
    assert isinstance(settings, ModelSettings)
    assert settings.weights is None
    model = outline(settings, example_shape(settings), 7)
    assert isinstance(model, Model)
    assert model.head.out_features == 7


@pytest.mark.parametrize(
    "file", [f for f in FILES if "defaults:" not in f.read_text()], ids=lambda file: file.stem
)
def test_the_file_and_the_class_have_the_same_defaults(file):
    lines = file.read_text().splitlines()
    assert lines[0].startswith("# ")
    assert lines[1].startswith("_target_: fedbench.models.")
    node = OmegaConf.load(file)
    schema = OmegaConf.structured(get_class(node["_target_"]))
    assert set(schema) == set(node) - {"_target_"}
    assert all(schema[key] == node[key] for key in schema)


def test_all_models_have_a_configuration_file():
    names = "linear mlp lenet cnn5 cnn_bn vgg16 vgg19 resnet18 vit_b32 lstm"
    assert set(names.split()) <= {file.stem for file in FILES}


@pytest.mark.parametrize(
    ("settings", "shape", "message"),
    [
        (
            LeNet(),
            (8, 8, 1),
            "model=lenet: needs images of at least 12x12 pixels, this data's are 8x8x1",
        ),
        (
            LeNet(),
            (28, 11, 1),
            "model=lenet: needs images of at least 12x12 pixels, this data's are 28x11x1",
        ),
        (
            LeNet(),
            (64,),
            "model=lenet: needs images of at least 12x12 pixels, an example of this data is 64 num",
        ),
        (
            Cnn5(),
            (15, 15, 3),
            "model=cnn5: needs images of at least 16x16 pixels, this data's are 15x15x3",
        ),
        (
            CnnBn(),
            (7, 8, 3),
            "model=cnn_bn: needs images of at least 8x8 pixels, this data's are 7x8x3",
        ),
        (CnnBn(), (64,), "model=cnn_bn: needs images"),
        (
            Vgg16(),
            (31, 32, 3),
            "model=vgg16: needs images of at least 32x32 pixels, this data's are 31x32x3",
        ),
        (
            Vgg19(),
            GRAY,
            "model=vgg19: needs images of at least 32x32 pixels, this data's are 28x28x1",
        ),
        (
            ResNet18(),
            (7, 8, 3),
            "model=resnet18: needs images of at least 8x8 pixels, this data's are 7x8x3",
        ),
        (
            ResNet18(),
            (8, 8, 4),
            "model=resnet18: needs images of 1 or 3 channels, this data's have 4",
        ),
        (VitB32(), (64,), "model=vit_b32: needs images"),
        (ResNet18(stem="cifar10"), COLOUR, "model.stem=cifar10: did you mean 'cifar'"),
        (
            ResNet18(image_size=0),
            COLOUR,
            "model.image_size=0: must be an integer of at least 8 and at most 4096",
        ),
        (
            ResNet18(stem="cifar", pretrained=True),
            COLOUR,
            "model.stem=cifar: must be imagenet with model.pretrained=true",
        ),
        (
            VitB32(image_size=100),
            COLOUR,
            "model.image_size=100: must be a multiple of 32",
        ),
        (
            VitB32(image_size=64, pretrained=True),
            COLOUR,
            "model.image_size=64: must be 224 with model.pretrained=true",
        ),
        (
            Lstm(),
            COLOUR,
            "model=lstm: needs pairs of sentences, as data=qqp has them; .* is 32x32x3 numbers",
        ),
        (Lstm(hidden=0), SENTENCES, "model.hidden=0: must be an integer of at least 1"),
        (Lstm(embedding=-1), SENTENCES, "model.embedding=-1: must be an integer of at least 1"),
        (
            Mlp(hidden=[64]),
            (64,),
            r"model.hidden=\[64\]: must be two integers of at least 1",
        ),
        (Mlp(hidden=[64, 32, 16]), (64,), r"model.hidden=\[64, 32, 16\]: must be two"),
        (Mlp(hidden=[64, 0]), (64,), r"model.hidden=\[64, 0\]: must be two"),
    ],
)
def test_what_a_model_cannot_do_is_one_line(settings, shape, message):
    def build() -> None:
        check_fields(settings, "model")
        settings.build(shape, 10)

    with pytest.raises(BadInput, match=message) as error:
        build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "model", [Linear(), Mlp(), Vgg16(), ResNet18()], ids=lambda model: type(model).__name__
)
def test_word_numbers_are_for_the_lstm_only(model):
    with pytest.raises(
        BadInput, match=r"^model=\w+: must be lstm: this data is sentences of word numbers"
    ):
        model.network(SENTENCES, 2, vocabulary=50)


@pytest.mark.parametrize("least", [(LeNet(), 12), (Cnn5(), 16), (CnnBn(), 8), (ResNet18(), 8)])
def test_the_least_size_works(least):
    settings, pixels = least
    assert (
        settings.build((pixels, pixels, 1), 10).eval()(batch((pixels, pixels, 1))).isfinite().all()
    )


@pytest.fixture
def saved(tmp_path):
    """Save tensors as a weights file; gives its path."""

    def save(state: dict[str, Tensor]) -> str:
        path = tmp_path / "weights.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, path)
        return str(path)

    return save


@every_network
def test_weights_round_trip(settings, shape, parameters, saved):
    source = build(settings, shape)
    source(batch(shape))  # moves the running statistics
    path = saved(FlatModel(source).state_dict())
    target = FlatModel(build(settings, shape))
    target.w.zero_()
    type(settings)(**{**vars(settings), "weights": path}).load_weights(target.module)
    assert target.w.data_ptr() == next(iter(target.module.parameters())).data_ptr(), (
        "still views of the flat vector"
    )
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.module.state_dict()[name], tensor), name


def test_half_precision_weights_are_converted(saved):
    source = build(Linear(), (4,))
    target = Linear().build((4,), 10)
    load_weights(
        target, saved({name: tensor.half() for name, tensor in source.state_dict().items()})
    )
    assert torch.equal(target.fc.weight, source.fc.weight.half().float())


def test_the_hash_is_of_the_contents(tmp_path, saved):
    path = saved(build(Linear(), (4,)).state_dict())
    copy = tmp_path / "other name"
    copy.write_bytes(Path(path).read_bytes())
    assert Linear(weights=path).content_hash() == Linear(weights=str(copy)).content_hash()
    copy.write_bytes(copy.read_bytes()[:-1] + b"x")
    assert Linear(weights=path).content_hash() != Linear(weights=str(copy)).content_hash()


def test_bad_weights_are_one_line(tmp_path, saved):
    good = build(Mlp(hidden=[8, 4]), (6,)).state_dict()
    text = tmp_path / "text"
    text.write_text("not tensors, but longer than the header of a file\n")
    cut = tmp_path / "cut"
    cut.write_bytes(Path(saved(good)).read_bytes()[:-4])
    whole_number = good | {"fc3.bias": torch.zeros(10, dtype=torch.int64)}
    names = "fc1.weight, fc1.bias, fc2.weight, fc2.bias, fc3.weight, fc3.bias"
    lacking = f"lacks fc1.weight, fc1.bias, fc2.weight and 2 more; the model's tensors are {names}"
    cases = [
        (lambda: str(tmp_path / "absent"), "no such file or directory"),
        (lambda: str(tmp_path), "is a directory"),
        (
            lambda: str(text),
            "must be a safetensors file, such as a run's model.safetensors",
        ),
        (lambda: str(cut), "must be a safetensors file"),
        (lambda: saved({"fc3.weight": good["fc3.weight"]}), lacking),
        (
            lambda: saved(good | {"fc4.bias": torch.zeros(1)}),
            "has the unknown fc4.bias; the model's tensors",
        ),
        (
            lambda: saved({"fc": torch.zeros(1)}),
            "lacks fc1.weight, .* and has the unknown fc; the model's",
        ),
        (
            lambda: saved(good | {"fc3.bias": torch.zeros(7)}),
            "fc3.bias is 7, the model needs 10 for this",
        ),
        (
            lambda: saved(good | {"fc2.weight": torch.zeros(8, 4)}),
            "fc2.weight is 8x4, the model needs 4x8",
        ),
        (lambda: saved(whole_number), "fc3.bias is int64, the model needs float32"),
    ]
    for make, message in cases:
        path = make()
        settings = Mlp(hidden=[8, 4], weights=path)
        model = settings.build((6,), 10)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with pytest.raises(BadInput, match=message) as error:
            settings.load_weights(model)
        assert str(error.value).startswith(f"model.weights={path}: ")
        assert "\n" not in str(error.value)
        assert all(
            torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items()
        ), "untouched"
    with pytest.raises(
        BadInput, match=r"the unknown x; the model's .*, layer1.1.bn1.weight and 102 more$"
    ):
        load_weights(outline(ResNet18(extra=False), COLOUR), saved({"x": torch.zeros(1)}))
    with pytest.raises(BadInput, match="no such file"):
        Linear(weights=str(tmp_path / "absent")).content_hash()

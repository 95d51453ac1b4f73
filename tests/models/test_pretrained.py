"""torchvision's weights for the trunk: from torch hub's cache, from a file, fetched; one line for
what is wrong.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import experiments
from support.networks import COLOUR, build, outline
from torch import Tensor

from fedbench.algorithms.algorithm import build as build_algorithm
from fedbench.core.errors import BadInput
from fedbench.core.flat_model import FlatModel
from fedbench.core.torchvision_operators import import_torchvision
from fedbench.models import ResNet18, Vgg16, VitB32, pretrained
from fedbench.runs.identity import identity, run_id


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "hub" / "checkpoints"


@pytest.fixture
def publish(hub, monkeypatch, tmp_path):
    """Publish a state dict as torchvision's checkpoint, at an address of this machine; gives its
    file.
    """

    def publish(state: dict[str, Tensor], cached: bool = True) -> Path:
        partial = tmp_path / "partial"
        torch.save(state, partial)
        name = f"resnet18-{hashlib.sha256(partial.read_bytes()).hexdigest()[:8]}.pth"
        file = (hub if cached else tmp_path) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.rename(file)
        monkeypatch.setattr(
            pretrained, "checkpoint_address", lambda architecture: f"file://{tmp_path}/{name}"
        )
        return file

    return publish


class Code:
    """What a file of weights must not bring."""


def checkpoint(seed: int = 5) -> dict[str, Tensor]:
    """What torchvision publishes is older than the batch counters of batch norm."""
    torch.manual_seed(seed)
    state = import_torchvision().models.resnet18().state_dict()
    state["bn1.running_mean"] += 1.0
    return {name: value for name, value in state.items() if "num_batches" not in name}


def refusal(settings: ResNet18 | VitB32) -> str:
    model = (
        outline(settings, COLOUR).to_empty(device="cpu")
        if isinstance(settings, VitB32)
        else build(settings, COLOUR)
    )
    with pytest.raises(BadInput) as error:
        settings.load_weights(model)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_names_are_torchvisions():
    assert pretrained.checkpoint_address("resnet18").endswith("/resnet18-f37072fd.pth")
    assert pretrained.checkpoint_address("vit_b_32").endswith("/vit_b_32-d86f8d99.pth")


@pytest.mark.parametrize("extra", [True, False])
def test_the_trunk_is_loaded_and_the_rest_is_not(publish, extra):
    state = checkpoint()
    publish(state)
    settings = ResNet18(extra=extra, pretrained=True, projection=16)
    before, flat = build(settings, COLOUR), FlatModel(build(settings, COLOUR))
    settings.load_weights(flat.module)
    assert (
        flat.module.conv1.weight.untyped_storage().data_ptr() == flat.w.untyped_storage().data_ptr()
    )
    for name, value in flat.module.state_dict().items():
        own = name.split(".")[0].startswith(("fc", "projection")) or "num_batches" in name
        assert torch.equal(value, before.state_dict()[name] if own else state[name]), name


def test_old_names_of_the_transformer_are_understood(publish, monkeypatch):
    models = import_torchvision().models
    narrow = {"patch_size": 32, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12}
    monkeypatch.setattr(
        models, "vit_b_32", lambda image_size: models.VisionTransformer(image_size, **narrow)
    )
    torch.manual_seed(5)
    state = models.vit_b_32(224).state_dict()
    old = {
        name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): v
        for name, v in state.items()
    }
    publish(old)
    settings = VitB32(pretrained=True)
    model = build(settings, COLOUR)
    settings.load_weights(model)
    for name in state:
        assert name.startswith("heads.") or torch.equal(model.state_dict()[name], state[name]), name


def test_what_is_not_there_is_one_line(hub, fedbench):
    for model, name in (
        ("resnet18", "resnet18-f37072fd.pth"),
        ("vit_b32", "vit_b_32-d86f8d99.pth"),
    ):
        run = fedbench("rounds=1", f"model={model}", "model.pretrained=true")
        assert run.status == 2
        line = f"fedbench: model.pretrained=true: {name} is not in {hub}; download it "
        assert run.err.startswith(line), run.err
        assert run.err.endswith(f"/{name}), or name the file with model.weights=FILE\n")
        assert run.err.count("\n") == 1
    assert not hub.exists()
    assert not Path("results").exists()


def test_it_is_fetched_with_permission_only(publish, hub):
    published = publish(checkpoint(), cached=False)
    assert "is not in" in refusal(ResNet18(pretrained=True))
    settings = ResNet18(pretrained=True, download=True)
    settings.load_weights(build(settings, COLOUR))
    assert (hub / published.name).read_bytes() == published.read_bytes()
    published.unlink()
    settings.load_weights(build(settings, COLOUR))
    ResNet18(pretrained=True).load_weights(build(settings, COLOUR))


def test_what_cannot_be_fetched_is_one_line(publish, hub):
    published = publish(checkpoint(), cached=False)
    published.write_bytes(published.read_bytes()[:-1])
    settings = ResNet18(pretrained=True, download=True)
    assert "failed (invalid hash value" in refusal(settings)
    published.unlink()
    line = refusal(settings)
    assert line.startswith(f"model.download=true: downloading file://{published} failed (")
    assert line.endswith(f"try again, or put the file into {hub}")
    assert [file for file in hub.iterdir() if file.suffix == ".pth"] == []


def test_a_damaged_file_is_one_line(publish):
    file = publish(checkpoint())
    file.write_bytes(file.read_bytes()[:-100])
    line = refusal(ResNet18(pretrained=True))
    assert f"{file} has SHA-256 " in line
    assert line.endswith(
        f", not {file.stem[-8:]}; delete it, and download it again with model.download=true"
    )


def test_a_file_elsewhere(tmp_path, hub):
    state = checkpoint()
    torch.save(state, tmp_path / "a.pth")
    save_file(state, tmp_path / "a.safetensors")
    for name in ("a.pth", "a.safetensors"):
        settings = ResNet18(pretrained=True, weights=str(tmp_path / name))
        model = build(settings, COLOUR)
        settings.load_weights(model)
        assert torch.equal(model.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])


def test_wrong_files_elsewhere_are_one_line(tmp_path):
    state = checkpoint()
    lacking = {name: value for name, value in state.items() if not name.startswith("layer4.1")}
    cases = {
        "absent": (None, "no such file"),
        "text": ("not tensors", "text must be a whole file of weights"),
        "code": (Code(), "code must be a whole file of weights"),
        "list": ([1, 2], "list must hold named tensors and nothing else"),
        "nested": ({"model": state}, "nested must hold named tensors and nothing else"),
        "vgg": (
            outline(Vgg16(), COLOUR).to_empty(device="cpu").state_dict(),
            "vgg does not fit: size mismatch for c",
        ),
        "empty": ({}, "empty lacks conv1.weight, bn1.weight, bn1.bias and "),
        "lacking": (
            lacking,
            (
                "lacking lacks layer4.1.conv1.weight, layer4.1.bn1.weight, layer4.1.bn1.bias and 7"
                " more;"
            ),
        ),
        "more": (
            state | {"layer1.9.x": torch.zeros(1)},
            "more has the unknown layer1.9.x; its names must be torchvision's",
        ),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
        elif content is not None:
            torch.save(content, path)
        line = refusal(ResNet18(pretrained=True, weights=str(path)))
        assert line.startswith(f"model.weights={path}: "), line
        assert message in line, line


def test_the_weights_are_part_of_a_runs_identity(publish, tmp_path):
    def number(*words: str) -> str:
        config = experiments.config("model=resnet18", *words)
        algorithm = build_algorithm(
            config.algo, config.scalars.client, config.scalars.server.weights
        )
        return run_id(identity(config, algorithm, "cpu", "fingerprint"))

    plain = number()
    assert number("model.download=true") == plain, "permission changes no number"
    first = publish(checkpoint())
    ids = [plain, number("model.pretrained=true")]
    assert number("model.pretrained=true", "model.download=true") == ids[-1]
    copy = tmp_path / "copy.pth"
    copy.write_bytes(first.read_bytes())
    ids.append(number("model.pretrained=true", f"model.weights={first}"))
    assert number("model.pretrained=true", f"model.weights={copy}") == ids[-1], (
        "by contents, not by name"
    )
    publish(checkpoint(seed=6))
    ids.append(number("model.pretrained=true"))
    assert len(set(ids)) == len(ids)


def test_a_frozen_trunk_is_neither_trained_nor_sent(publish):
    """Its batch norm keeps its statistics, too; the layers on top learn as in the whole network."""
    publish(checkpoint())
    words = ("model=resnet18", "model.pretrained=true", "data.subset=24", "client.steps=2")
    words += ("partition.clients=2", "partition.alpha=100", "rounds=1", "client.weight_decay=0.1")
    whole = experiments.federation(*words)
    frozen = experiments.federation(*words, "model.frozen=true")
    assert [layer.name for layer in frozen.model.layers] == ["fc1", "fc2", "fc3"]
    assert frozen.model.size == sum(layer.stop - layer.start for layer in whole.model.layers[-3:])
    assert len(frozen.model.b) == len(frozen.model.counters) == 0
    before = {name: value.clone() for name, value in frozen.model.state_dict().items()}
    (record,) = frozen.rounds()
    frozen.load_global()
    after = frozen.model.state_dict()
    changed = {name.split(".")[0] for name in after if not torch.equal(before[name], after[name])}
    assert changed == {"fc1", "fc2", "fc3"}
    assert record.numbers["bytes_up"] == 4 * 2 * frozen.model.size
    assert experiments.parts(*words).id != experiments.parts(*words, "model.frozen=true").id

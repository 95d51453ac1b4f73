"""Every network on every dataset, on stand-ins: it trains a round, or one line says why it cannot.

Small networks in the ordinary tests, large ones in the long ones.
"""

from __future__ import annotations

import pytest
from support import experiments

from fedbench.config.validate import config_folder
from fedbench.core.errors import BadInput

DATASETS = sorted(
    file.stem for file in (config_folder() / "data").glob("[!_]*.yaml") if file.stem != "npz"
)
MODELS = sorted(file.stem for file in (config_folder() / "model").glob("*.yaml"))
SMALL = ("linear", "mlp", "lenet", "cnn5", "cnn_bn", "lstm")
SETTING = (
    "data.source=synthetic",
    "data.subset=24",
    "data.test_size=12",
    "partition=iid",
    "partition.clients=2",
    "rounds=1",
    "client.steps=1",
    "client.batch_size=4",
    "client.lr=0.01",
    "logger=none",
)
PIXELS = {
    "digits": 8,
    "mnist": 28,
    "fmnist": 28,
    "emnist": 28,
}  # a side; all others have 32 or more
LEAST_PIXELS = {"lenet": 12, "cnn5": 16, "vgg16": 32, "vgg19": 32}
LARGE = ("lc25000", "tinyimagenet")  # images; vgg16 differs from vgg19 only in its depth


def marks(data: str, model: str) -> list[pytest.MarkDecorator]:
    if model in SMALL and data not in LARGE:
        return []
    by_hand = model == "vgg19" or (data in LARGE and model.startswith("vgg"))
    return [pytest.mark.heavy, pytest.mark.by_hand] if by_hand else [pytest.mark.heavy]


PAIRS = [
    pytest.param(data, model, id=f"{data}-{model}", marks=marks(data, model))
    for data in DATASETS
    for model in MODELS
]


def refused(data: str, model: str) -> bool:
    """Words need the lstm and images do not fit it; some networks pool small images away or need a
    file of weights.
    """
    if (data == "qqp") != (model == "lstm"):
        return True
    if model.endswith(
        "_pretrained"
    ):  # trunks with weights are tested with made-up files in test_model_pretrained.py
        return True
    return PIXELS.get(data, 32) < LEAST_PIXELS.get(model, 0)


@pytest.mark.parametrize(("data", "model"), PAIRS)
def test_it_trains_or_says_why_not(data, model, tmp_path, monkeypatch, request):
    if model == "vit_b32" and data != "cifar100":  # one as large as it is
        request.getfixturevalue("small_vit")
    monkeypatch.setenv(
        "TORCH_HOME", str(tmp_path)
    )  # no weights at hand, whatever this machine has fetched
    words = (*SETTING, f"data={data}", f"model={model}")
    if refused(data, model):
        with pytest.raises(BadInput, match=r"^model"):
            experiments.prepare(experiments.config(*words))
        return
    made = experiments.assemble(experiments.prepare(experiments.config(*words)))
    before = made.state.w.clone()
    (record,) = made.rounds()
    assert not record.diverged
    assert record.score.predictions.shape == (12,)
    moved = made.state.w - before
    for layer in made.model.layers:
        assert moved[layer.start : layer.stop].abs().max() > 0, f"{layer.name} did not train"

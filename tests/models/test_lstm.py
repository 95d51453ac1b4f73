"""The network for pairs of sentences."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from support import experiments
from support.networks import SENTENCES, VOCABULARY, batch, build, close, outline, sentences
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from fedbench.core.flat_model import FlatModel
from fedbench.data.dataset import Dataset, DatasetSettings
from fedbench.models import Lstm
from fedbench.train import prepare
from fedbench.training.client import set_evaluation_mode


def test_the_states_are_those_of_packed_sentences_in_one_lstm_of_two_layers():
    model = build(Lstm(), SENTENCES).double()
    whole = nn.LSTM(100, 128, num_layers=2, batch_first=True).double()
    first, second = (
        {name.replace("l0", f"l{i}"): value for name, value in lstm.state_dict().items()}
        for i, lstm in enumerate((model.lstm1, model.lstm2))
    )
    whole.load_state_dict(first | second)
    x = sentences(9, 12).flatten(0, 1)
    packed = pack_padded_sequence(
        model.embedding(x[:, 1:]), x[:, 0], batch_first=True, enforce_sorted=False
    )
    assert close(model.encode(x), whole(packed)[1][0][1], 1e-12)


def test_padding_changes_nothing():
    model = build(Lstm(), SENTENCES).eval()
    x = sentences(6, 12)
    x[..., 0].clamp_(max=7)
    x[..., 1:] *= torch.arange(12) < x[..., :1]
    short, other = x[..., :8], x.clone()
    other[..., 9:] = 3  # nobody reads beyond the longest sentence
    assert torch.equal(model(x), model(short))
    assert torch.equal(model(x), model(other))


def test_a_device_is_not_asked_for_the_longest_sentence():
    """That would wait for it, in every step, and give steps of many shapes."""
    model, seen = outline(Lstm(), SENTENCES), []
    model.lstm1.register_forward_pre_hook(lambda module, given: seen.append(given[0].shape[1]))
    model(sentences(6, 12).to("meta"))
    assert seen == [12]


def test_sentences_of_one_word_and_of_none():
    model = build(Lstm(), SENTENCES)
    x = torch.zeros(3, *SENTENCES, dtype=torch.int64)
    x[:, :, 0], x[:, 0, 1] = 1, torch.tensor([5, 6, 7])
    output = model(x)
    assert output.isfinite().all()
    assert not torch.equal(output[0], output[1])
    empty = x.clone()
    empty[:, 1, 0] = 0
    assert torch.equal(model(empty), output), "no word is one word of padding"
    output.sum().backward()
    assert not model.embedding.weight.grad[0].any()
    assert not model.embedding.weight[0].any()
    assert all(model.embedding.weight.grad[word].any() for word in (5, 6, 7))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_any_integers_will_do(dtype):
    model, x = build(Lstm(), SENTENCES), batch(SENTENCES)
    assert torch.equal(model(x.to(dtype)), model(x))


def test_no_warnings_and_views_after_training_steps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flat = FlatModel(build(Lstm(), SENTENCES))
        for _ in range(2):
            flat.g.zero_()
            flat.module(batch(SENTENCES)).square().sum().backward()
            flat.w.sub_(flat.g, alpha=0.1)
        flat.twin()
    storage = flat.w.untyped_storage().data_ptr()
    assert all(
        weight.untyped_storage().data_ptr() == storage for weight in flat.module.lstm1._flat_weights
    )


@dataclass(frozen=True)
class Sentences(Dataset):
    vocabulary: int | None = None


@dataclass(frozen=True)
class Source(DatasetSettings):
    """Stands in for a dataset of sentence pairs. The class is told by the last word of the first
    sentence.
    """

    root: str | None = None

    def load(self, seed: int) -> Dataset:
        x = sentences(240, 6).numpy().astype(np.int32)
        y = (x[np.arange(len(x)), 0, x[:, 0, 0]] < VOCABULARY // 2).astype(np.int64)
        fields = {
            "name": "pairs",
            "classes": 2,
            "source": "synthetic",
            "mean": None,
            "std": None,
            "note": "",
        }
        return Sentences(train_x=x, train_y=y, test_x=x, test_y=y, **fields, vocabulary=VOCABULARY)


def test_it_learns_in_the_engine():
    words = (
        "model=lstm",
        "partition=iid",
        "partition.clients=2",
        "algo=fedavg",
        "logger=none",
        "rounds=8",
    )
    config = experiments.config(*words, "client.optimizer=adam", "client.lr=0.01")
    config = replace(config, data=Source(), model=replace(config.model, hidden=32, embedding=16))
    first = experiments.assemble(prepare(config))
    records = list(first.rounds())
    assert records[-1].numbers["train_loss"] < 0.8 * records[0].numbers["train_loss"]
    assert experiments.final_digest(
        experiments.assemble(prepare(config))
    ) == experiments.state_digest(first)


def test_cudnn_needs_training_mode_for_a_backward_pass_and_gets_it_for_lstms_alone():
    """cuDNN refuses a backward pass of recurrent layers in evaluation mode. Untested on a GPU."""
    network = nn.ModuleDict({"lstm": nn.LSTM(3, 4), "norm": nn.BatchNorm1d(4)})
    network["dropping"] = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    for device, training in (("cuda", True), ("cpu", False)):
        network.train()
        set_evaluation_mode(network, torch.device(device))
        assert network["lstm"].training == training
        assert not network["norm"].training
        assert not network["dropping"].training  # dropout would change the gradient

"""The network for pairs of sentences. Its input is a batch of integers [N, 2, 1 + L]."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from fedbench.core.errors import BadInput, bad_value
from fedbench.core.fields import count
from fedbench.core.model import Model
from fedbench.models.base import ModelSettings

# cuDNN warns that the weights are not in one piece of its own. They are views of the flat vector.
warnings.filterwarnings(
    "ignore", message="RNN module weights are not part of single contiguous chunk"
)

_PADDING = 0  # the number that is no word


class LstmNetwork(Model):
    """Encodes both sentences with the same embedding and LSTMs, and classifies the pair.

    With u and v for the states at their last words, the classifier's input is
    [u, v, |u - v|, u * v], as in InferSent (Conneau et al. 2017).
    """

    head_name = "fc3"

    def __init__(self, vocabulary: int, embedding: int, hidden: int, classes: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding, padding_idx=_PADDING)
        # Two modules, not one of two layers: a layer of the network is a module.
        self.lstm1 = nn.LSTM(embedding, hidden, batch_first=True)
        self.lstm2 = nn.LSTM(hidden, hidden, batch_first=True)
        self.fc1 = nn.Linear(4 * hidden, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        u, v = self.encode(x.flatten(0, 1)).view(len(x), 2, -1).unbind(1)
        pair = torch.cat([u, v, (u - v).abs(), u * v], dim=1)
        return functional.relu(self.fc2(functional.relu(self.fc1(pair))))

    def encode(self, sentences: Tensor) -> Tensor:
        """The state at the last word of every sentence [N, 1 + L]: its length, its words, padding.

        The state at a word does not depend on the words after it, so padding needs no mask, and
        columns that are padding in all sentences are left out. An empty sentence counts as one word
        of padding, whose embedding is zero.
        """
        lengths = sentences[:, 0].long().clamp(min=1)
        words = sentences[:, 1:].long()
        if words.device.type == "cpu":  # others would have to wait for the longest length
            words = words[:, : int(lengths.max())]
        states = self.lstm2(self.lstm1(self.embedding(words))[0])[0]
        return states[torch.arange(len(states), device=states.device), lengths - 1]


@dataclass
class Lstm(ModelSettings):
    """FedPGVC's network for QQP (section 6.4): two LSTM layers, two linear ones and a classifier.

    The paper says no more. The embedding, its width, the 128 units and how the two sentences are
    joined are choices of this project.
    """

    embedding: int = count(100)
    hidden: int = count(128)

    def build(self, shape: tuple[int, ...], classes: int) -> LstmNetwork:
        raise _needs_pairs(shape)

    def build_for_words(self, shape: tuple[int, ...], classes: int, vocabulary: int) -> LstmNetwork:
        if len(shape) != 2 or shape[0] != 2 or shape[1] < 2:
            raise _needs_pairs(shape)
        return LstmNetwork(vocabulary, self.embedding, self.hidden, classes)


def _needs_pairs(shape: tuple[int, ...]) -> BadInput:
    got = f"an example of this data is {'x'.join(map(str, shape))} numbers"
    return bad_value("model", "lstm", f"needs pairs of sentences, as data=qqp has them; {got}")

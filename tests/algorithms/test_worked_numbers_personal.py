"""Worked numbers of personal models: FedPer, FedRep, pFedSim."""

from __future__ import annotations

import pytest
import torch
from support import least_squares
from support.least_squares import close

from fedbench.algorithms.algorithm import Algorithm
from fedbench.algorithms.local_phases import HeadThenBody, Joint
from fedbench.algorithms.pfedsim import mixture, similarities


@pytest.mark.parametrize(
    ("local_train", "expected"),
    [
        (Joint(), [(0.801, 0.675, 0.2225), (0.666419, 0.82258, 0.01444375)]),
        (HeadThenBody(), [(0.894, 0.6, 0.35), (0.806216, 0.6906, 0.2203)]),
    ],
    ids=["fedper", "fedrep"],
)
def test_a_head_that_clients_keep(local_train, expected):
    """The server's body, then the heads of A and B."""
    made = least_squares.federation(Algorithm(local="head", local_train=local_train), rounds=2)
    for state, wanted in zip(least_squares.states(made), expected, strict=True):
        heads = [state.clients[k]["local"]["w"].item() for k in (0, 1)]
        close([state.w[0].item(), *heads], wanted)
        assert state.w[1].item() == 0.5  # the server's copy of the head is never touched


def test_pfedsim():
    classifiers = [[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0]], [[-1.0, 0.0], [0.0, -1.0]]]
    found = similarities(torch.tensor(classifiers, dtype=torch.float64))
    similar = 0.853553390593
    close(found.tolist(), [(1.0, similar, 0.0), (similar, 1.0, 0.0), (0.0, 0.0, 1.0)])
    own, other = 0.827417183455, 0.172582816545
    close(mixture(found).tolist(), [(own, other, 0.0), (other, own, 0.0), (0.0, 0.0, 1.0)])

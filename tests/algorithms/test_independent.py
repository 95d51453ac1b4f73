"""The command line's final weights are those of an independent implementation in numpy (see
independent.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hydra.types import RunMode
from safetensors.numpy import load_file, save_file
from support.independent import Client, Network, Vector
from support.independent_cases import CASES, Case
from support.independent_methods import Method, Setting, Training, pfedsim

TOLERANCE = 1e-5  # fedbench computes in float32
VISIBLE = 1e-3  # a method that differs less from FedAvg would not be tested
HIDDEN = [7, 5]
CLASSES = 4
CLIENTS = [
    # size and shares of the labels: FedLC needs missing classes, FedNCV and the weights need
    # different sizes
    (12, [0.5, 0.3, 0.1, 0.1]),
    (7, [0.0, 0.2, 0.7, 0.1]),
    (20, [0.25, 0.25, 0.25, 0.25]),
    (9, [0.1, 0.1, 0.1, 0.7]),
]


@dataclass
class Problem:
    """Four small clients, as arrays and as the files that fedbench reads."""

    folder: Path
    network: Network = field(init=False)
    clients: list[Client] = field(init=False)
    w: Vector = field(init=False)
    words: list[str] = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(35)
        centres = rng.normal(size=(CLASSES, 6))
        y = np.concatenate([rng.choice(CLASSES, size, p=shares) for size, shares in CLIENTS])
        y[:CLASSES] = np.arange(CLASSES)  # whatever was drawn, every class exists
        shifts = np.repeat(
            rng.normal(scale=0.5, size=(len(CLIENTS), 6)), [size for size, _ in CLIENTS], axis=0
        )
        x = (centres[y] + shifts + rng.normal(scale=0.7, size=(len(y), 6))).astype(np.float32)
        order = rng.permutation(len(y))  # a client's indices are no neighbours
        place = np.argsort(order)
        ends = np.cumsum([size for size, _ in CLIENTS])
        shards = [np.sort(own) for own in np.split(place, ends[:-1])]  # fedbench sorts them, too
        x, y = x[order], y[order]
        self.network = Network(6, HIDDEN, CLASSES)
        self.clients = [Client(self.network, x[own].astype(np.float64), y[own]) for own in shards]
        start = rng.normal(scale=0.4, size=self.network.size).astype(np.float32)
        for name in ("fc1.bias", "fc2.bias"):
            start[self.network.tensors[name][0]] = 0.5  # no unit that sleeps from the beginning
        self.w = start.astype(np.float64)
        np.savez(self.folder / "data.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
        (self.folder / "clients.json").write_text(json.dumps([own.tolist() for own in shards]))
        save_file(self.network.named(start), self.folder / "start.safetensors")
        self.words = [
            "data=npz",
            f"data.path={self.folder / 'data.npz'}",
            "partition=file",
            f"partition.path={self.folder / 'clients.json'}",
            "model=mlp",
            f"model.hidden={HIDDEN}".replace(" ", ""),
            f"model.weights={self.folder / 'start.safetensors'}",
            "client.batch_size=full",
            "runtime.workers=1",
        ]

    def expected(self, case: Case) -> Vector:
        if case.method is None:
            return pfedsim(self.clients, self.w, case.setting)
        return self.training(case.method, case.setting).run()

    def training(self, method: Method, setting: Setting) -> Training:
        return Training(self.clients, self.w, setting, method)


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Problem:
    return Problem(tmp_path_factory.mktemp("independent"))


def setting_words(setting: Setting) -> list[str]:
    """Only what differs from fedbench's defaults: reading a word takes Hydra longer than a local
    step takes.
    """
    words = {
        "client.momentum": setting.momentum,
        "client.weight_decay": setting.weight_decay,
        "client.lr_decay.factor": None if setting.rate_factor == 1.0 else setting.rate_factor,
        "server.lr": None if setting.server_rate == 1.0 else setting.server_rate,
        "rounds": setting.rounds,
        "client.steps": setting.steps,
        "client.lr": setting.rate,
    }
    return [f"{key}={value}" for key, value in words.items() if value]


def distance(a: Vector, b: Vector) -> float:
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_final_weights(case, problem, fedbench, monkeypatch):
    # More than half of the time of so small a run: the picture, and composing all twice to learn
    # that it is no sweep.
    monkeypatch.setattr("fedbench.runs.writer.save_picture", lambda *_: None)
    monkeypatch.setattr("hydra._internal.hydra.Hydra.get_mode", lambda *_, **__: RunMode.RUN)
    ran = fedbench(*problem.words, *setting_words(case.setting), *case.words.split())
    assert ran.status == 0, ran.err
    found = problem.network.flat(load_file(ran.folder / "model.safetensors"))
    assert distance(found, problem.expected(case)) < TOLERANCE


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_case_is_not_fedavg_unless_it_must_be(case, problem):
    plain = problem.training(Method(), case.setting).run()
    difference = distance(problem.expected(case), plain)
    assert difference < 1e-12 if case.is_fedavg else difference > VISIBLE


def test_no_case_can_be_mistaken_for_another(problem):
    """Else a variant that silently does what another one does would pass."""
    expected = {name: problem.expected(case) for name, case in CASES.items() if not case.is_fedavg}
    names = list(expected)
    for place, name in enumerate(names):
        for other in names[:place]:
            assert distance(expected[name], expected[other]) > 10 * TOLERANCE, (name, other)


def test_clients_do_unequal_work_where_steps_are_redistributed(problem):
    for name, case in CASES.items():
        if case.method is not None and case.method.gsnr:
            training = problem.training(case.method, case.setting)
            training.run()
            assert any(len(set(counts)) > 1 for counts in training.allocated), name
            assert any(0 in counts for counts in training.allocated) == name.endswith(
                "without some"
            ), name


def test_gradients_are_the_slopes_of_the_losses(problem):
    """The one thing that every case rests on, by central differences, for each of the losses."""
    for method in (
        Method(),
        Method(margin=1.0),
        Method(margin=1.0, without_truth=True),
        Method(contrast=2.0),
    ):
        training = problem.training(method, Setting())
        training.memories[1].model = problem.w[::-1].copy()
        client, loss, y = problem.clients[1], training.loss(1), np.roll(problem.w, 1)
        gradient = client.per_example(y, loss)[1]
        for entry in range(0, problem.network.size, 7):
            nudge = 1e-6 * (np.arange(problem.network.size) == entry)
            slope = (
                client.per_example(y + nudge, loss)[0] - client.per_example(y - nudge, loss)[0]
            ) / 2e-6
            np.testing.assert_allclose(gradient[:, entry], slope, atol=1e-7)

"""A model that cannot fit into memory is refused before it is built: the kernel would kill it."""

from __future__ import annotations

import torch

from fedbench.training import preflight

PARAMETERS = 55_210  # of the digits' network
NEEDED = 3 * 4 * PARAMETERS  # bytes: the model, and flat vectors of parameters and gradients
QUICK = ("rounds=1", "client.epochs=1", "partition.clients=4", "runtime.workers=1")


def test_a_model_that_does_not_fit_is_never_built(fedbench, tmp_path, monkeypatch):
    built = []
    original = torch.nn.Linear.__init__

    def watched(self, *arguments, **settings):
        original(self, *arguments, **settings)
        built.append(self.weight.device.type)

    monkeypatch.setattr(torch.nn.Linear, "__init__", watched)
    monkeypatch.setattr(preflight, "physical_memory", lambda: NEEDED - 1)
    refused = fedbench(*QUICK)
    assert refused.status == 2
    assert refused.err.count("\n") == 1
    assert "too large for this machine's memory (a model of 55,210 parameters needs" in refused.err
    assert set(built) == {"meta"}
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_just_fits_is_run(fedbench, monkeypatch):
    assert preflight.physical_memory() > 2**20
    monkeypatch.setattr(preflight, "physical_memory", lambda: NEEDED)
    assert fedbench(*QUICK).status == 0

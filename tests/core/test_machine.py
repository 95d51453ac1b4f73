"""Answers of other operating systems. macOS itself is not tested."""

from __future__ import annotations

import os
import socket

import pytest

from fedbench.core import machine


def test_the_cores_of_a_system_that_does_not_know_which_a_process_may_use(monkeypatch):
    assert machine.available_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.available_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.available_cores() == 1


@pytest.mark.parametrize(
    ("interfaces", "found"),
    [(["eth0", "lo"], "lo"), (["lo0", "en0"], "lo0"), (["eth0"], None)],
)
def test_the_loopback_interface_has_several_names(monkeypatch, interfaces, found):
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(interfaces)))
    assert machine.loopback_interface() == found


def test_peak_memory_is_in_bytes(monkeypatch):
    here = machine.peak_memory()
    assert 2**24 < here < 2**40
    monkeypatch.setattr("sys.platform", "darwin")
    assert machine.peak_memory() <= here // 1000

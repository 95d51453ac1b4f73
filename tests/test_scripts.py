"""The scripts behind `make bench`, `make chaos` and `make reproduce-tables` do what they say, on
tiny sizes.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import re
import sys
import time
from pathlib import Path

import pytest
from support.native import needs_kernels

from fedbench.core.optimizers import Sgd
from fedbench.models.cpu_kernels import KernelChoice
from fedbench.training.client import Trainer

SCRIPTS = Path(__file__).parents[1] / "scripts"


def load(name: str, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_both_sides_of_the_bench_do_the_same_number_of_steps(monkeypatch, number):
    bench = load("bench", monkeypatch)
    small = {
        "clients": 4,
        "images": 20,
        "batch": 10,
        "cohort": 2 if bench.WORKLOADS[number].cohort else None,
    }
    workload = dataclasses.replace(bench.WORKLOADS[number], **small)
    data, group = bench.random_data(workload, 80), bench.Group()
    bare, federation = (
        bench.Bare(workload, data, group),
        bench.make_federation(workload, data, group),
    )
    steps = []
    monkeypatch.setattr(bare.optimizer, "step", lambda: steps.append(1))
    bare.round()
    record = next(federation.rounds())
    assert len(steps) == sum(federation.plan_round(0).steps)
    assert sum(p.numel() for p in bare.module.parameters()) == federation.model.size
    assert (record.score is not None) == bool(workload.test)


def test_the_bench_judges_a_ratio(monkeypatch, capfd):
    bench = load("bench", monkeypatch)
    workload = dataclasses.replace(bench.WORKLOADS[0], clients=2, images=20, test=20, limit=1e9)
    assert bench.bench_workload(workload, repeats=2, workers=2)
    assert not bench.bench_workload(dataclasses.replace(workload, limit=1e-9), repeats=2, workers=1)
    printed = capfd.readouterr().out
    assert "ok" in printed
    assert "TOO SLOW" in printed


@needs_kernels
def test_the_bench_says_first_what_it_measures(monkeypatch, capfd):
    bench = load("bench", monkeypatch)
    small = {"clients": 2, "images": 20, "test": 20, "cohort": None, "limit": 1e9}
    loads = [dataclasses.replace(load, **small) for load in bench.WORKLOADS]
    monkeypatch.setattr(bench, "WORKLOADS", loads)
    monkeypatch.setattr(bench, "BY_NAME", {load.name: load for load in loads})
    monkeypatch.setattr(bench, "SCALING_LIMIT", 1e9)
    names = ["W1", "W4", "scaling"]
    monkeypatch.setattr(sys, "argv", ["bench.py", *names, "--repeats", "1", "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert not ended.value.code
    facts, *lines = capfd.readouterr().out.splitlines()
    assert re.fullmatch(
        r"fedbench [\d.]+, commit (\w{10}|unknown)( with changes)?; .+, \d+ cores; torch \d\S+;"
        r" .+; native kernels",
        facts,
    )
    assert [line.split()[0] for line in lines] == names


def test_the_bench_measures_nothing_without_native_kernels(monkeypatch, capfd):
    bench = load("bench", monkeypatch)
    monkeypatch.setattr(bench, "choose_kernels", lambda *_, **__: KernelChoice("torch", "no AVX2"))
    monkeypatch.setattr(bench, "bench_workload", lambda *_: pytest.fail("it measures"))
    monkeypatch.setattr(sys, "argv", ["bench.py", "W1"])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == "bench: W1 has no native kernels here: no AVX2"


@pytest.mark.parametrize("words", [[], ["W1", "start"]])
def test_the_bench_runs_what_is_named_and_all_without_a_name(monkeypatch, words):
    bench, done = load("bench", monkeypatch), []
    monkeypatch.setattr(bench, "facts", lambda: "facts")
    monkeypatch.setattr(bench, "bench_workload", lambda load, *_: done.append(load.name) or True)
    for name in ("client", "command", "scaling", "methods", "start", "memory", "rivals"):
        monkeypatch.setattr(bench, f"bench_{name}", lambda *_, name=name: done.append(name) or True)
    monkeypatch.setattr(sys, "argv", ["bench.py", *words])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert not ended.value.code
    others = ["client", "command", "command", "scaling", "methods", "start", "memory"]
    assert done == (words or ["W1", "W2", "W3", "W4", *others])  # rivals: only when asked for


def test_the_bench_times_what_is_around_a_clients_passes(monkeypatch, capfd):
    """By a clock that only passes, optimizer steps and the bare loop's rounds move."""
    bench, clock = load("bench", monkeypatch), [0.0]

    def takes(seconds: float, work):
        def timed(*given):
            clock[0] += seconds
            return work(*given)

        return timed

    small = dataclasses.replace(bench.BY_NAME["W3"], clients=4, cohort=2, times=1)
    monkeypatch.setitem(bench.BY_NAME, "W3", small)
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(Trainer, "_forward_backward", takes(0.020, Trainer._forward_backward))
    monkeypatch.setattr(Sgd, "step", takes(0.001, Sgd.step))
    monkeypatch.setattr(bench.Bare, "round", takes(0.016, bench.Bare.round))
    monkeypatch.setattr(bench, "CLIENT_LIMIT", 0.26)
    assert bench.bench_client(repeats=2)  # two steps a client, two clients a round
    assert "0.25 x bare" in (line := capfd.readouterr().out)
    assert "2.00 of 42.00 ms, bare 8.00 ms, 2 repeats" in line
    monkeypatch.setattr(bench, "CLIENT_LIMIT", 0.24)
    assert not bench.bench_client(repeats=1)


@pytest.mark.parametrize("broken", ["first", "second"])
def test_the_bench_ends_when_one_of_those_that_take_turns_fails(monkeypatch, capfd, broken):
    """The others would wait for their turn for ever."""
    bench = load("bench", monkeypatch)

    def contestant(name: str, workers: int):
        return bench.Contestant(workers, lambda group: int if name != broken else int("x"))

    contestants = {name: contestant(name, 2) for name in ("first", "second")}
    with pytest.raises(SystemExit, match=f"bench: {broken} failed"):
        bench.compete(contestants, repeats=2)
    assert "ValueError: invalid literal" in capfd.readouterr().err
    works = {name: contestant("works", workers) for workers, name in enumerate(contestants, 1)}
    assert bench.compete(works, repeats=2).keys() == contestants.keys()


@pytest.mark.heavy
def test_the_bench_times_the_whole_command(monkeypatch, capfd):
    bench = load("bench", monkeypatch)
    workload = dataclasses.replace(bench.BY_NAME["W3"], clients=4, images=20, cohort=2)
    monkeypatch.setitem(bench.BY_NAME, "W3", workload)
    monkeypatch.setitem(bench.COMMAND_ROUNDS, "W3", 3)
    monkeypatch.setitem(bench.COMMAND_LIMITS, "W3", 1e9)
    assert bench.bench_command("W3", repeats=1, workers=1)
    assert "x engine" in capfd.readouterr().out


def test_the_bench_knows_every_method_that_has_a_limit(monkeypatch, capfd):
    bench, methods = load("bench", monkeypatch), load("bench_methods", monkeypatch)
    workload = dataclasses.replace(bench.WORKLOADS[0], clients=2, images=20, test=20)
    data = bench.random_data(workload, 40)
    make = lambda group, algorithm: bench.make_federation(workload, data, group, algorithm)  # noqa: E731
    monkeypatch.setattr(
        methods, "LIMITS", dict.fromkeys(methods.LIMITS, 1e9) | {"algo=fedprox": 1e-9}
    )
    assert not methods.bench_methods(make, repeats=1, workers=1, steps=2)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == len(methods.LIMITS)
    assert [("TOO SLOW" in line) for line in lines] == ["fedprox" in line for line in lines]


@pytest.mark.parametrize(
    ("words", "found", "status", "line"),
    [
        ("4", [""], 0, "survived 4 of 4 faults"),
        ("0", [""], 1, "only 0 faults were tried, 1 at least are asked for"),
        ("4 --minutes 0", [""], 1, "only 0 faults were tried"),
        ("4 --at-least 5", [""], 1, "only 4 faults were tried, 5 at least"),
        ("4 --at-least 0", ["refused"], 1, "only 0 faults were tried, 1 at least"),
        ("4", ["too late", ""], 1, "2 faults came too late, 2 in time"),
        ("4", ["too late", "", "", ""], 0, "survived 3 of 3 faults"),
        ("4", ["", "it hangs"], 1, "survived 2 of 4 faults"),
    ],
)
def test_a_soak_that_did_not_happen_is_not_a_success(
    monkeypatch, capfd, words, found, status, line
):
    chaos, verdicts = load("chaos", monkeypatch), itertools.cycle(found)
    monkeypatch.setattr(chaos, "survive", lambda case: next(verdicts))
    monkeypatch.setattr(sys, "argv", ["chaos.py", *words.split()])
    assert chaos.main() == status
    assert line in capfd.readouterr().out


def test_the_soak_hangs_the_leader_where_only_the_leader_writes(monkeypatch):
    chaos = load("chaos", monkeypatch)
    drawn = [chaos.draw(0, number, [1, 2, 3]) for number in range(13 * 400)]
    hangs = [case for case in drawn if case.kind == "hang"]
    places = {case.fault["place"] for case in hangs if case.fault["rank"] == 0}
    assert places == {*chaos.EVERY_RANK, *chaos.LEADER} - {"rename"}
    assert {case.before for case in hangs} == {2, 3}  # nobody waits for a worker that is alone

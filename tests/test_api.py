"""The Python interface: runs are objects, problems are exceptions, nothing is left behind."""

from __future__ import annotations

import ast
import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from support import experiments, own_files
from support.waiting import LIMIT, wait_until

import fedbench
from fedbench import api
from fedbench.core.files import checksum_of

QUICK = ("rounds=2", "client.epochs=1", "partition.clients=4", "data.subset=60", "logger=none")
PACKAGE = Path(fedbench.__file__).parent


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch, data_root):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDBENCH_DATA", str(data_root))


def handlers() -> list:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


# The names


def test_the_import_takes_no_time():
    slow = "{'torch', 'pandas', 'hydra', 'numpy'}"
    program = f"import sys, fedbench; sys.exit(bool({slow} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_type_checkers_see_the_same_names():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    seen = {
        alias.name: node.module
        for node in stub.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == fedbench._HOMES
    assert seen.keys() <= set(dir(fedbench))
    for name in seen:
        assert getattr(fedbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'jog'"):
        _ = fedbench.jog


# One run


def test_a_run_is_an_object_and_leaves_the_caller_as_it_was(capsys):
    before = handlers(), dict(os.environ), torch.random.get_rng_state().tolist(), os.getcwd()
    run = fedbench.run(["algo=moon", "runtime.workers=2", *QUICK])
    assert before == (
        handlers(),
        dict(os.environ),
        torch.random.get_rng_state().tolist(),
        os.getcwd(),
    )
    printed = capsys.readouterr().out
    assert "round 2/2  accuracy" in printed
    assert run.summary["status"] == "finished"
    assert run.config["algo"]["name"] == "moon"
    assert run.metrics.test_accuracy.iloc[-1] == run.summary["final_accuracy"]
    assert len(run.clients) == 2 * 4
    # The model has the accuracy that the run printed.
    made = experiments.prepare(experiments.config("data=digits", "data.subset=60", "logger=none"))
    x, y = torch.from_numpy(made.data.test_x).permute(0, 3, 1, 2), made.data.test_y
    assert (run.model(x).argmax(dim=1).numpy() == y).mean() == run.summary["final_accuracy"]
    # Again, from another thread: the run is finished already, and nothing is printed.
    again: list[fedbench.Run] = []
    words = ["algo=moon", *QUICK]
    thread = threading.Thread(target=lambda: again.append(fedbench.run(words, quiet=True)))
    thread.start()
    thread.join()
    assert again == [run]
    assert capsys.readouterr() == ("", "")


@pytest.fixture
def ctrl_c():
    """As in a program that was just started: the command line, which tests call, ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_ends_the_call_with_a_run_that_can_be_resumed(capsys):
    def press() -> None:
        wait_until(lambda: len(list(Path().glob("results/runs/*/*/metrics.csv"))) == 1)
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt) as ended:
        fedbench.run([*QUICK, "rounds=100000", "checkpoint.every=100000", "runtime.workers=1"])
    pressing.join()
    assert isinstance(ended.value, fedbench.Interrupted)
    assert "resumes from the last checkpoint" in str(ended.value)
    words = "stopping after this round, with a checkpoint (Ctrl-C again stops at once)\n"
    assert words in capsys.readouterr().err
    assert len(list(Path().glob("results/runs/*/*/checkpoint-*"))) == 1


@pytest.mark.parametrize(
    "words",
    [
        "rounds=2",
        [2],
        ["-m", "seed=0,1"],
        ["experiment=fedpgvc/table2"],
        ["hydra.mode=MULTIRUN"],
        ["+hydra.run.dir=x"],
    ],
)
def test_what_is_no_single_run_is_refused(words):
    with pytest.raises(fedbench.BadInput, match=r"must be a (list|setting)"):
        fedbench.run(words)


@pytest.mark.parametrize(
    ("status", "message", "kind", "told"),
    [
        (2, "rounds=0: must be an integer", fedbench.BadInput, "rounds=0"),
        (1, "results=r: the disk is full", fedbench.MachineFault, "disk is full"),
        (1, "Traceback (most recent call last):\nKeyError: 3", RuntimeError, "KeyError: 3"),
        (-9, "", fedbench.MachineFault, "ended by SIGKILL"),
        (130, "interrupted", KeyboardInterrupt, "resumes"),
    ],
)
def test_an_exit_status_is_an_exception(status, message, kind, told):
    problem = api._problem(status, message)
    assert type(problem) is (fedbench.Interrupted if kind is KeyboardInterrupt else kind)
    assert isinstance(problem, kind)
    assert told in str(problem)


CALLER = """
import os, signal, sys, threading, torch
import fedbench
torch.set_num_threads(4)
(torch.randn(1000, 1000) @ torch.randn(1000, 1000)).sum()
assert len(os.listdir("/proc/self/task")) > 3, "no thread pool was started"
run = fedbench.run(sys.argv[1:])
print(run.summary["digest"], torch.get_num_threads())
"""


@pytest.mark.heavy
def test_a_caller_whose_thread_pool_is_alive_gets_its_run(tmp_path):
    """In a process that was forked from this caller, two threads of PyTorch would hang."""
    words = [*QUICK, "runtime.workers=2"]
    ended = subprocess.run(
        [sys.executable, "-c", CALLER, *words, "runtime.threads=2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    assert ended.returncode == 0, ended.stderr
    digest, threads = ended.stdout.splitlines()[-1].split()
    assert threads == "4"
    (summary,) = Path().glob("results/runs/*/*/summary.json")
    assert json.loads(summary.read_text())["digest"] == digest


@pytest.mark.heavy
def test_errors_of_a_real_run_are_exceptions(tmp_path):
    with pytest.raises(fedbench.BadInput, match=r"^rounds=0: must be an integer of at least 1$"):
        fedbench.run(["rounds=0"])
    own = tmp_path / "own" / "algo"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults: [fedprox]\nmu: 0.5\n")
    run = fedbench.run(["algo=mine", *QUICK], config_dir="own")
    assert run.config["algo"]["mu"] == 0.5
    assert run.model is not None


OWN_MODEL = """
    import math
    from dataclasses import dataclass

    import torch
    from fedbench import Model, ModelSettings
    from layers import activation

    class Own(Model):
        head_name = "fc"

        def __init__(self, inputs, classes):
            super().__init__()
            self.fc = torch.nn.Linear(inputs, classes)

        def features(self, x):
            return activation(x.flatten(start_dim=1))

    @dataclass
    class Settings(ModelSettings):
        def build(self, shape, classes):
            return Own(math.prod(shape), classes)
"""
LAYERS = "def activation(x): return {}\n"
MODEL_YAML = "_target_: mynetwork.Settings\nweights: null\nprojection: null\n"


def test_a_model_is_computed_by_the_code_of_its_run(fedbench, request):
    """Not by that of the files, or of a notebook's memory, when they differ."""
    own = Path("own").absolute()
    write = partial(own_files.write, own)
    write(mynetwork=OWN_MODEL, layers=LAYERS.format("x"), model__own=MODEL_YAML)
    request.addfinalizer(lambda: own_files.forget(own))
    words = ("--config-dir", "own", "model=own", *QUICK[:-1])
    first = fedbench(*words).folder
    x = torch.full((1, 1, 8, 8), 2.0)
    output = api.Run(str(first), "own").model(x)
    write(layers=LAYERS.format("100 * x"))
    with pytest.raises(
        api.BadInput, match=r"model: the run was made by other code of layers \(\w+, now"
    ):
        _ = api.Run(first, "own").model
    own_files.forget(own)
    second = fedbench(*words).folder
    assert second != first
    assert api.Run(second, "own").model(x).abs().max() > output.abs().max()
    # The file is the first run's again, and the memory of this process the second one's.
    write(layers=LAYERS.format("x"))
    assert torch.equal(api.Run(first, Path("own")).model(x), output)
    # Something else imported a module before its file was edited: its code is not known.
    own_files.forget(own)
    sys.path.insert(0, str(own))
    write(layers=LAYERS.format("7 * x"))
    importlib.import_module("mynetwork")
    write(layers=LAYERS.format("x"))
    assert torch.equal(api.Run(first, "own").model(x), output)
    with pytest.raises(
        api.BadInput, match=r"model=own: there is no such file in conf/model; config_dir "
    ):
        _ = api.Run(first).model


@pytest.mark.heavy
def test_a_run_ends_with_its_caller():
    program = "import sys, fedbench; fedbench.run(sys.argv[1:])"
    words = [*QUICK, "rounds=100000", "checkpoint.every=100000", "runtime.workers=2"]
    caller = subprocess.Popen([sys.executable, "-c", program, *words])
    wait_until(lambda: len(list(Path().glob("results/runs/*/*/metrics.csv"))) == 1)
    caller.kill()
    caller.wait()
    wait_until(lambda: len(list(Path().glob("results/runs/*/*/checkpoint-*"))) == 1)


def test_a_caller_whose_output_nobody_reads_gets_its_lines():
    """And a message that is no error after all is shown."""

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    pipe = io.StringIO("round 1/2\nround 2/2\nrun: folder\n")
    reader = api._Reader(pipe, Closed(), api.RESULT)
    reader.join()
    assert reader.held == ["run: folder\n"]
    shown = io.StringIO()
    reader = api._Reader(io.StringIO("fedbench: a note\n"), shown, api.ERROR)
    reader.join()
    assert shown.getvalue() == ""
    reader.show_held()
    assert shown.getvalue() == "fedbench: a note\n"


# Many runs


def made_up(folder: Path, number: int, status: str = "finished") -> None:
    """A folder that looks like a run's."""
    config = {
        "seed": number,
        "rounds": 2,
        "results": "results",
        "client": {"lr": 0.1, "steps": None},
        "model": {"type": "Mlp", "hidden": [4, 4]},
        "algo": {"name": "fedprox", "mu": number / 10},
        "choices": {"algo": "fedprox", "model": "mlp", "hydra/launcher": "basic"},
    }
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    summary = {"status": status, "final_accuracy": 0.5, "rounds": 2, "files": {}}
    summary["heterogeneity"] = {"size_gini": 0.25}
    if status != "unfinished":
        text = json.dumps({**summary, "checksum": checksum_of(summary)})
        (folder / "summary.json").write_text(text)


def test_all_runs_are_one_table():
    for number, status in enumerate(("finished", "diverged", "unfinished", "damaged", "no yaml")):
        made_up(Path(f"results/runs/label/{number}"), number, status)
    Path("results/runs/label/3/summary.json").write_text("{")
    Path("results/runs/label/4/config.yaml").write_text("a: [")
    table = fedbench.load_runs("results")
    assert table.status.tolist() == ["finished", "diverged", "unfinished", "damaged", "damaged"]
    assert table.columns[:4].tolist() == ["id", "label", "status", "seed"]
    assert table.columns[-1] == "folder"
    first = table.iloc[0]
    assert (first["algo"], first["algo.mu"], first["model.hidden"]) == ("fedprox", 0.0, (4, 4))
    assert (first["final_accuracy"], first["rounds_done"]) == (0.5, 2)
    assert first["heterogeneity.size_gini"] == 0.25
    assert not {"hydra/launcher", "files", "checksum"} & set(table.columns)
    assert table[table.status == "unfinished"].final_accuracy.isna().all()
    assert len(table.groupby(["model.hidden", "algo.mu"])) == 4
    with pytest.raises(fedbench.BadInput, match="results=nowhere: must be a folder"):
        fedbench.load_runs("nowhere")


def test_the_promised_columns_are_there_before_any_run_is_finished():
    page = (PACKAGE.parents[1] / "docs" / "python.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("| `final_accuracy`")]
    always = (
        "id",
        "label",
        "status",
        "seed",
        *re.findall(r"`(\w+)`", row.split(" | ")[0]),
        "folder",
    )
    assert "train_seconds" in always
    Path("empty").mkdir()
    assert tuple(fedbench.load_runs("empty")) == always
    made_up(Path("results/runs/label/0"), 0, "unfinished")
    table = fedbench.load_runs("results")
    assert set(always) < set(table.columns)
    assert table[table.status == "finished"].final_accuracy.tolist() == []
    Path("results/runs/label/0/config.yaml").write_text("a: [")
    damaged = fedbench.load_runs("results")
    assert tuple(damaged) == always
    assert damaged.status.tolist() == ["damaged"]


def test_a_thousand_runs_take_two_files_each(monkeypatch):
    for number in range(1000):
        made_up(Path(f"results/runs/label-{number % 7}/{number}"), number)
    reads = []
    original = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: reads.append(path) or original(path))
    table = fedbench.load_runs("results")
    assert sorted(table.seed) == list(range(1000))
    assert len(reads) == 2 * 1000

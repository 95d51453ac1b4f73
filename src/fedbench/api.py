"""The Python interface: `fedbench.run`, `fedbench.load_runs` and `fedbench.Run`.

A run is computed by the command line, in a process of its own. So it is the same run, to the bit;
it leaves the caller's signal handlers, environment, random numbers and Hydra as they are; and it
can be called from any thread of a notebook that has computed with PyTorch before. (A run forks its
workers. A fork of a process whose thread pool is alive inherits its locks but not its threads, and
may wait for them for ever.)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import IO, Any, TextIO

import pandas as pd
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf
from safetensors.torch import load_file

from fedbench.config.instantiate import instantiate
from fedbench.config.own_code import add_folders, code_on_disk
from fedbench.core.caller import CALLER
from fedbench.core.errors import (
    BAD_INPUT,
    FINISHED,
    INTERRUPTED,
    BadInput,
    Interrupted,
    MachineFault,
    require,
)
from fedbench.core.files import config_folder
from fedbench.core.model import Model
from fedbench.parallel.processes import under_torchrun
from fedbench.runs.folder import SUMMARY
from fedbench.runs.table import load_runs as load_runs
from fedbench.runs.table import read_config

RESUME = "the same call (without force=true) resumes from the last checkpoint"
LAST_LINES_SECONDS = 30  # for the lines of a process that has ended; another may hold its pipe
RESULT, ERROR = "run: ", "fedbench: "  # what the lines of the command line begin with


@dataclass(frozen=True)
class Run:
    """The folder of one run, read when asked for: `Run("results/runs/<label>/<id>")`.

    `config_dir` is needed for the `model` of a run whose model's configuration is your own.
    """

    folder: Path
    config_dir: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))
        if self.config_dir is not None:
            object.__setattr__(self, "config_dir", Path(self.config_dir))

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole configuration: config.yaml."""
        return read_config(self.folder)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Status, accuracies, digest, versions ...: summary.json, which a finished run has."""
        summary: dict[str, Any] = json.loads((self.folder / SUMMARY).read_text())
        return summary

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each evaluated round: metrics.csv."""
        return pd.read_csv(self.folder / "metrics.csv")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """A row for each round and client: clients.csv."""
        return pd.read_csv(self.folder / "clients.csv")

    @cached_property
    def model(self) -> Model:
        """The network with the final weights, in evaluation mode: an `nn.Module`.

        Of a method whose clients keep a part of their models there is no global model: that part
        is the clients' weighted mean here, as it is in model.safetensors.

        Raises BadInput where the run's own network was made by other code than there is now.
        """
        choice = self.config["choices"]["model"]
        target = _model_class(choice, self.config_dir)
        _check_code(target, self.summary.get("own_code", {}))
        own = {key: value for key, value in self.config["model"].items() if key != "type"}
        settings = instantiate(OmegaConf.create({"_target_": target, **own}), "model", "network")
        given = self.summary["model"]
        model: Model = settings.network(
            tuple(given["shape"]),
            given["classes"],
            given["projection"],
            vocabulary=given["vocabulary"],
        )
        model.load_state_dict(load_file(self.folder / "model.safetensors"))
        return model.eval()


def _model_class(choice: str, config_dir: Path | None) -> str:
    """The name of the class of a run's model. It is the one that the chosen file names now: a run's
    folder, which may come from anybody, names none.
    """
    words = [f"model={choice}"]
    if config_dir is not None:
        add_folders([str(config_dir)])
        words.append(f"hydra.searchpath=[{json.dumps(f'file://{config_dir.absolute()}')}]")
    before = GlobalHydra.instance().hydra  # of a caller who uses Hydra, too
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            return str(compose("config", overrides=words).model["_target_"])
    except MissingConfigException as error:
        where = "conf/model" if config_dir is None else f"conf/model and {config_dir}/model"
        raise BadInput(
            f"model={choice}: there is no such file in {where}; config_dir must be the folder with"
            " your own configurations, fedbench.Run(folder, config_dir)"
        ) from error
    finally:
        GlobalHydra.instance().hydra = before


def _check_code(target: str, made_by: dict[str, str]) -> None:
    """Refuse to compute with other code of a user's own network than the run had."""
    now = code_on_disk(target, "model._target_")
    differing = [name for name, code in now.items() if made_by.get(name) != code]
    if differing:
        hashes = f"{made_by.get(differing[0], 'not there')}, now {now[differing[0]]}"
        raise BadInput(
            f"model: the run was made by other code of {', '.join(differing)} ({hashes}); it"
            " needs the files as they were then"
        )


# One run


def run(
    overrides: Sequence[str] = (), *, config_dir: str | Path | None = None, quiet: bool = False
) -> Run:
    """Do what `fedbench <overrides>` does, and return the run.

        fedbench.run(["algo=scaffold", "rounds=5"]).summary["final_accuracy"]

    A finished run is not repeated, and an interrupted one is resumed. `config_dir` is a folder with
    configurations of your own; `quiet` prints nothing.

    Raises BadInput for a wrong key or value, MachineFault when the machine ended the run (a full
    disk, a killed worker), RuntimeError with a traceback when something else failed, and
    Interrupted, which is a KeyboardInterrupt, after Ctrl-C: the run then ends after its current
    round with a checkpoint, at the second Ctrl-C at once. A diverged run is a result.
    """
    _check_overrides(overrides)
    options = [] if config_dir is None else ["--config-dir", str(config_dir)]
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbench", *options, *overrides],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="backslashreplace",
        env=_environment(),
        process_group=0,  # Ctrl-C in a terminal reaches the caller alone, who passes it on
    )
    try:
        output = _Reader(process.stdout, None if quiet else sys.stdout, RESULT)
        errors = _Reader(process.stderr, None if quiet else sys.stderr, ERROR)
        interruptions = _wait(process)
    finally:
        process.kill()  # nothing is left of it after whatever else was raised
        process.wait()
    output.join(LAST_LINES_SECONDS)
    errors.join(LAST_LINES_SECONDS)
    if interruptions:
        raise Interrupted(RESUME)
    if process.returncode != FINISHED:
        message = "".join(errors.held).removeprefix(ERROR).strip()
        raise _problem(process.returncode, message)
    errors.show_held()
    last = output.held[-1] if output.held else ""
    if not last.startswith(RESULT):
        raise BadInput(f"{' '.join(overrides)}: must be one run, but the configuration is a sweep")
    folder = Path(last.removeprefix(RESULT).rstrip("\n"))
    return Run(folder.absolute(), None if config_dir is None else Path(config_dir))


def _check_overrides(overrides: Sequence[str]) -> None:
    """Refuse what is no single run. Everything else is checked by the run itself."""
    rule = 'must be a list of overrides, such as ["algo=scaffold", "rounds=5"]'
    texts = not isinstance(overrides, str) and all(isinstance(word, str) for word in overrides)
    require(texts, "overrides", overrides, rule)
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        one_run = not word.startswith("-") and key != "experiment" and key[:5] != "hydra"
        if not one_run:
            raise BadInput(
                f"{word}: must be a setting of one run; sweeps, studies and Hydra's settings belong"
                " to the command line"
            )
    if under_torchrun():
        raise BadInput("fedbench.run: must not be called under torchrun; use the command line")


def _environment() -> dict[str, str]:
    """The caller's, with the places where the caller finds modules that are not installed."""
    installed = (sys.prefix, sys.base_prefix)
    added = [path for path in sys.path if path and not path.startswith(installed)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(added),
        "PYTHONIOENCODING": "utf-8:backslashreplace",
        CALLER: str(os.getpid()),
    }


class _Reader(Thread):
    """Shows the lines of a pipe while they come, and keeps those from a certain one on.

    A thread of its own, because Ctrl-C reaches the main thread alone: no line is lost.
    """

    def __init__(self, pipe: IO[str] | None, screen: TextIO | None, first_held: str) -> None:
        super().__init__(daemon=True)
        self.held: list[str] = []
        self._pipe = pipe
        self._screen = screen
        self._first_held = first_held
        self.start()

    def run(self) -> None:
        assert self._pipe is not None
        with self._pipe as lines:
            for line in lines:
                if self.held or line.startswith(self._first_held):
                    self.held.append(line)
                else:
                    self._show(line)

    def show_held(self) -> None:
        """After all: they were no message of an error."""
        for line in self.held:
            self._show(line)

    def _show(self, line: str) -> None:
        if self._screen is None:
            return
        try:
            print(line, end="", file=self._screen, flush=True)
        except (OSError, ValueError):  # nobody reads the caller's output any more
            self._screen = None


def _wait(process: subprocess.Popen[str]) -> int:
    """Wait for the end; returns how often Ctrl-C was pressed. The third time kills the process."""
    for interruptions in range(3):
        try:
            process.wait()
            return interruptions
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT if interruptions < 2 else signal.SIGKILL)
    process.wait()
    return 3


def _problem(status: int, message: str) -> BaseException:
    """The exception for an exit status and what was printed last on standard error."""
    if status in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):
        return Interrupted(RESUME)
    if status == BAD_INPUT:
        return BadInput(message)
    if status < 0:
        name = signal.Signals(-status).name
        return MachineFault(f"the run's process was ended by {name}; {RESUME}")
    return RuntimeError(message) if "Traceback" in message else MachineFault(message)

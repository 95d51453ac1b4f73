"""What the jobs of a sweep report to the process that started them, whatever launcher runs them.

Hydra's launchers may run a job in another process or on another machine, and `hydra.main` returns
nothing. So each job writes `<hydra.sweep.dir>/<job number>/outcome.json` when it begins and when it
ends, and the parent reads these files. The callback below is part of every configuration; Hydra
pickles it with the jobs, so that they know where to report.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from fedbench.core.errors import BAD_INPUT, FINISHED, INTERRUPTED, UNEXPECTED
from fedbench.core.files import remove_made, write_atomically

OUTCOME = "outcome.json"
STOP = "stop"  # in the sweep's folder: jobs that have not begun do not begin
BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
POLL_SECONDS = 0.1
ENDINGS = {
    None: "did not report its end",
    UNEXPECTED: "failed",
    BAD_INPUT: "was refused",
    INTERRUPTED: "was interrupted",
}


@dataclass
class Outcome:
    """How a job ended. `status` is None while it runs, and stays None if its process is killed."""

    number: int = 0
    words: list[str] = field(default_factory=list)
    status: int | None = None
    reason: str = ""  # one line, unless it finished
    run: str = ""  # the run's folder
    objective: float | None = None
    log: str = ""  # the file to which its process writes; empty: the parent's terminal
    host: str = ""
    pid: int = 0

    def describe(self, common: set[str]) -> str:
        """Which job ended how, and where its log is; without the words that all jobs share."""
        words = " ".join(word for word in self.words if word not in common)
        name = f"job {self.number} ({words})" if words else f"job {self.number}"
        reason = f": {self.reason}" if self.reason else ""
        return f"{name} {ENDINGS[self.status]}{reason}; log: {short_path(self.log) or 'above'}"


class SweepCallback(Callback):
    """Where the jobs of a sweep report. The parent reads the reports here, and stops the jobs."""

    current: ClassVar[SweepCallback | None] = None  # None: a single run
    run_folder: ClassVar[Path | None] = None  # hydra.run.dir of a single run, once it is composed

    def __init__(self) -> None:
        self.folder = Path()
        self.results = ""
        self.launcher = ""
        self.sweeper = ""
        self.variables: list[str] = []  # of the environment: "oc.env:NAME"
        self.errors = ""  # the file behind the parent's standard error
        self.parent = ("", 0)
        self.made: list[Path] = []  # what was not there before, innermost first
        self.stopping = False

    def on_run_start(self, config: DictConfig, **others: Any) -> None:
        _keep_values_out(config)
        with suppress(OmegaConfBaseException, ValueError):  # Hydra raises the same error
            SweepCallback.run_folder = Path(config.hydra.run.dir).absolute()

    def on_multirun_start(self, config: DictConfig, **others: Any) -> None:
        _keep_values_out(config)
        self.variables = sorted({*re.findall(r"oc\.env:\s*\w+", OmegaConf.to_yaml(config))})
        try:
            self.folder = Path(config.hydra.sweep.dir).absolute()
            self.results = str(config.results)
        except (OmegaConfBaseException, ValueError):
            return  # the sweeper raises the same error
        self.launcher = str(config.hydra.launcher.get("_target_"))
        self.sweeper = str(config.hydra.sweeper.get("_target_"))
        self.errors = _file_behind_standard_error()
        self.parent = _this_process()
        places = (self.folder / "multirun.yaml", self.folder, *self.folder.parents)
        SweepCallback.current = self
        with suppress(OSError, ValueError):  # a NUL character in a path is a ValueError
            self.made = [place for place in places if not os.path.lexists(place)]
            for file in (self.folder / STOP, *self.folder.glob(f"*/{OUTCOME}")):
                file.unlink(missing_ok=True)  # of an earlier sweep in the same folder
        if not self.basic:
            self._listen()

    def on_job_start(self, config: DictConfig, **others: Any) -> None:
        SweepCallback.current = self if self.parent[1] else None

    @property
    def basic(self) -> bool:
        """Whether Hydra's own launcher runs the jobs one after the other, in the parent."""
        return self.launcher == BASIC

    @property
    def in_parent(self) -> bool:
        """Whether this process is the parent. Some launchers run jobs in it: joblib, n_jobs=1."""
        return _this_process() == self.parent

    # In a job.

    def begin(self, outcome: Outcome) -> bool:
        """Report that a job begins. False: the sweep was stopped, and the job must not begin."""
        if not self.basic:
            _take_signals(leave_terminal=not self.in_parent)
        if outcome.log == self.errors:
            outcome.log = ""
        self.write(outcome)
        # The parent writes this file before it looks for jobs to stop: one sees the other.
        return not (self.folder / STOP).exists()

    def write(self, outcome: Outcome) -> None:
        """Report an outcome. A parent in the same process knows it without the file."""
        content = json.dumps(asdict(outcome), indent=1) + "\n"
        try:
            write_atomically(self.folder / str(outcome.number) / OUTCOME, content, durable=False)
        except OSError:
            if not self.in_parent:
                raise  # the launcher reports it

    # In the parent.

    def outcomes(self) -> dict[int, Outcome]:
        """The outcomes of all jobs that have begun, by number."""
        found = {}
        for file in self.folder.glob(f"*/{OUTCOME}") if self.folder.is_dir() else ():
            with suppress(OSError, ValueError, TypeError):
                outcome = Outcome(**json.loads(file.read_text()))
                found[outcome.number] = outcome
        return dict(sorted(found.items()))

    def cannot_write(self, error: Exception) -> bool:
        """Whether a sweep ended before its first job because its folder could not be written."""
        missing_choice = isinstance(error, HydraException)  # which is an OSError, too
        failed = isinstance(error, OSError) and not missing_choice and concerns(error, self.folder)
        unwritable = failed or "embedded null" in str(error)
        first = self.basic and not self.outcomes()
        return unwritable and (first or not self.folder.is_dir())

    def setting_of_folder(self) -> tuple[str, str]:
        """The key that says where the sweep's folder is, and its value."""
        if Path(self.results).absolute() in self.folder.parents:
            return "results", self.results
        return "hydra.sweep.dir", str(self.folder)

    def running(self) -> list[Outcome]:
        """The jobs on this machine that have begun and not ended."""
        return [one for one in self.outcomes().values() if one.status is None and _is_alive(one)]

    def stop(self) -> None:
        """Ask running jobs for a checkpoint, and keep the others from beginning."""
        with suppress(OSError):
            (self.folder / STOP).touch()
        self._signal()

    def stop_and_wait(self, report: Callable[[str], None]) -> None:
        """After a launcher has failed: no job keeps running without a parent."""
        if self.running() and not self.stopping:
            report(f"stopping {len(self.running())} other jobs, with a checkpoint")
        if not self.stopping:
            self.stopping = True
            self.stop()
        while self.running():
            time.sleep(POLL_SECONDS)

    def _signal(self) -> None:
        for one in self.running():
            with suppress(OSError):
                os.kill(one.pid, signal.SIGINT)

    def _listen(self) -> None:
        """Let Ctrl-C, SIGTERM and a closed terminal stop the jobs; the launcher waits for them."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
                signal.signal(number, self._handle)
        # Ctrl-C reaches all processes of a terminal, and submitit's controllers would kill their
        # jobs. They inherit the mask of this thread; the other thread is the one in which this
        # process gets its signals.
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stopping:
            self._signal()  # the second signal ends a job at once
            raise KeyboardInterrupt
        self.stopping = True
        print(
            "stopping the jobs, with a checkpoint (Ctrl-C again stops at once)",
            file=sys.stderr,
            flush=True,
        )
        self.stop()

    def tidy(self) -> None:
        """Remove what a sweep wrote whose jobs were all refused."""
        for number in self.outcomes():
            folder = self.folder / str(number)
            remove_made([folder / OUTCOME, folder])
        remove_made(self.made)


def this_job() -> Outcome:
    """The outcome of the job in this process, before it begins."""
    hydra: Any = HydraConfig.get()
    number = hydra.job.num if "num" in hydra.job else None  # a single run has none
    host, pid = _this_process()
    log = _file_behind_standard_error()
    words: Any = OmegaConf.to_container(hydra.overrides.task, resolve=False)  # as they were typed
    return Outcome(number or 0, words, log=log, host=host, pid=pid)


def severest(statuses: list[int | None]) -> int:
    """The exit status of a sweep. A job that did not report its end has failed."""
    found = {UNEXPECTED if status is None else status for status in statuses}
    return next(
        (status for status in (INTERRUPTED, UNEXPECTED, BAD_INPUT) if status in found), FINISHED
    )


def concerns(error: OSError, folder: Path) -> bool:
    """Whether an error is about this folder, what is in it, or what it is in."""
    if error.filename is None:
        return True
    place = Path(error.filename).absolute()
    return place == folder or place in folder.parents or folder in place.parents


def short_path(path: str | Path) -> str:
    """A path relative to the working directory, if it lies below it."""
    here, path = os.getcwd(), str(path)
    return os.path.relpath(path) if path.startswith(f"{here}{os.sep}") else path


def _this_process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _is_alive(outcome: Outcome) -> bool:
    host, pid = _this_process()
    if outcome.host != host or outcome.pid == pid:
        return False
    try:
        os.kill(outcome.pid, 0)
        state = Path(f"/proc/{outcome.pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except (OSError, IndexError):  # there is no /proc, or the process belongs to another user
        return True
    return state != "Z"


def _take_signals(leave_terminal: bool) -> None:
    """Let SIGINT end a job. A job in its own process leaves Ctrl-C to the parent, which sends it
    once.
    """
    if leave_terminal:
        with suppress(OSError):
            os.setpgid(0, 0)
    submitit_handles_it = leave_terminal and signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    if not submitit_handles_it:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _file_behind_standard_error() -> str:
    """The file to which this process writes its messages: a launcher's log. Empty: a terminal."""
    try:
        path = os.readlink("/proc/self/fd/2")
    except OSError:  # there is no /proc
        return ""
    return path if os.path.isfile(path) else ""


def _keep_values_out(config: DictConfig) -> None:
    """Put names in place of the values that `hydra.job.env_copy` copies, which Hydra writes."""
    with open_dict(config.hydra.job):
        for name in config.hydra.job.env_copy:
            config.hydra.job.env_set[name] = f"${{oc.env:{name}}}"

"""Start fedbench with a planted fault, and compare what its runs leave."""

from __future__ import annotations

import csv
import itertools
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from hydra.core.plugins import Plugins

from fedbench.config.validate import config_folder
from support import inject
from support.waiting import LIMIT, wait_until

COUNTER = itertools.count()
Plugins.instance()  # found once here, instead of in every process that is forked from this one
ALGORITHMS = sorted(file.stem for file in (config_folder() / "algo").glob("*.yaml"))
MODIFIERS = sorted(file.stem for file in (config_folder() / "modifier").glob("*.yaml"))
WORDS = [f"algo={name}" for name in ALGORITHMS] + [f"modifier=[{name}]" for name in MODIFIERS]
# Batch norm and a partial cohort: everything that a checkpoint must hold is in use. A checkpoint
# every other round.
SETTING = (
    "data=mnist",
    "data.source=synthetic",
    "data.subset=120",
    "model=lenet",
    "model.batch_norm=true",
    "partition.clients=4",
    "cohort=3",
    "client.epochs=1",
    "client.batch_size=16",
    "rounds=5",
    "checkpoint.every=2",
    "logger=none",
)


@dataclass
class Ended:
    status: int
    out: str
    err: str

    @property
    def rounds(self) -> int:
        """How many rounds this process finished."""
        return sum(line.startswith("round ") for line in self.out.splitlines())

    @property
    def resumed_after(self) -> int:
        """The round after which this process went on; 0 when it began anew."""
        lines = [line for line in self.out.splitlines() if line.startswith("resuming after round ")]
        return int(lines[0].split()[-1]) if lines else 0


def result(folder: Path) -> tuple[str, list[dict[str, str]], dict[str, list], str]:
    """Everything about a run that must not depend on how it was computed."""
    with open(folder / "metrics.csv") as file:
        rows = [
            {key: value for key, value in row.items() if key != "seconds"}
            for row in csv.DictReader(file)
        ]
    with np.load(folder / "predictions.npz") as stored:
        predictions = {name: stored[name].tolist() for name in stored.files}
    digest = json.loads((folder / "summary.json").read_text())["digest"]
    return digest, rows, predictions, (folder / "clients.csv").read_text()


@dataclass
class Started:
    """A process group whose output goes to two files."""

    pid: int
    out: Path
    err: Path

    def ended(self) -> bool:
        """Whether it has; nobody is waited for."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def said(self, words: str) -> bool:
        return self.out.exists() and words in self.out.read_text()

    def end(self) -> Ended:
        """Wait for it; nothing of it is left afterwards, and whatever would have been is an
        error.
        """
        try:
            wait_until(self.ended)
            orphans = wait_until_empty(self.pid)
        except AssertionError as error:
            texts = self.out.read_text() + self.err.read_text()
            raise AssertionError(f"still running: {texts}") from error
        finally:
            self.kill()
            _, code = os.waitpid(self.pid, 0)
        assert not orphans, f"processes that nobody ended: {orphans}"
        return Ended(os.waitstatus_to_exitcode(code), self.out.read_text(), self.err.read_text())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def start(
    fault: dict,
    *words: str,
    environment: dict[str, str] | None = None,
    board: inject.Board | None = None,
) -> Started:
    """`fedbench WORDS` with a planted fault, forked from this process: nothing has to be imported
    again. Ranks that are started one by one share a board.
    """
    from fedbench import cli as program
    from fedbench.parallel.ranks import this_rank

    number = next(COUNTER)
    out, err = (Path(f"{name}-{os.getpid()}-{number}.txt").absolute() for name in ("out", "err"))
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Started(pid, out, err)
    code = 99
    try:
        os.setsid()
        for path, stream in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["fedbench", *words]
        os.environ.update(environment or {})
        this_rank.cache_clear()  # it is another process, perhaps one of several ranks
        inject.board = board or inject.Board()  # what an earlier run wrote there is not of this one
        inject.prepare(fault)
        program.main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def run(*words: str, **fault: object) -> Ended:
    return start(fault, *words).end()


@cache
def uninterrupted(*words: str) -> tuple:
    """The result of a run that nobody disturbs, computed once for all tests of a process."""
    ended = run(*SETTING, *words, "runtime.workers=1", "results=whole")
    assert ended.status == 0, ended.err
    return result(folder_of("whole"))


def folder_of(results: str) -> Path:
    (folder,) = Path(results).glob("runs/*/*/")
    return folder


def checkpoints(results: str) -> dict[int, Path]:
    """By the round after which they were written, oldest first."""
    found = {
        int(folder.name.rpartition("-")[2]): folder
        for folder in folder_of(results).glob("checkpoint-*")
    }
    return dict(sorted(found.items()))


def two_checkpoints() -> tuple[str, ...]:
    """A run that was killed when it had all but ended; returns the words that go on with it."""
    setting = (*SETTING, "algo=scaffold", "results=broken", "runtime.workers=1")
    assert run(*setting, place="final", kind="kill").status == -signal.SIGKILL
    assert sorted(checkpoints("broken")) == [2, 4]
    return setting


GROUP, SESSION = 2, 3  # columns of /proc/<pid>/stat after the name


def members(group: int) -> list[int]:
    """The living processes of a group, zombies aside."""
    return _processes(GROUP, group)


def session(leader: int) -> list[int]:
    """The living processes of a session, zombies aside."""
    return _processes(SESSION, leader)


def _processes(column: int, wanted: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (
                (entry / "stat").read_text().rpartition(")")[2].split()
                if entry.name.isdigit()
                else []
            )
        except OSError:  # it has just ended
            continue
        if fields and int(fields[column]) == wanted and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until_empty(group: int) -> list[int]:
    """The processes of a group that are still there after a while: none, it is hoped."""
    with suppress(AssertionError):
        wait_until(lambda: not members(group), LIMIT / 10)
    return members(group)


def one_line(text: str) -> str:
    """The only line that fedbench itself wrote to standard error."""
    lines = [line for line in text.splitlines() if line.startswith("fedbench: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


def whole_and_resumed(fedbench, *setting: str, call: int = 4) -> tuple:
    """A run by one worker, and the same by two that were killed in an evaluation, and resumed."""
    whole = fedbench(*setting, "results=whole", "runtime.workers=1")
    assert whole.status == 0, whole.err
    broken = (*setting, "results=broken", "runtime.workers=2")
    killed = run(*broken, place="evaluation", call=call, kind="parent")
    assert killed.status == -signal.SIGKILL, killed.err
    resumed = fedbench(*broken)
    assert "resuming after round" in resumed.out
    assert result(resumed.folder) == result(whole.folder)
    return whole, resumed

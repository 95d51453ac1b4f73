"""The logger group: Weights & Biases mirrors a run's folder; nothing is ever read back from it."""

from __future__ import annotations

import mmap
import netrc
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedbench.core.errors import require
from fedbench.core.fields import check_fields, choice

MODES = ("auto", "online", "offline")
REFUSED_BY_WANDB = set("/\\#?%:")  # in names of projects and entities
LONGEST_NAME = 128
INIT_SECONDS = 30  # how long W&B's server may take to answer before a run logs offline
# Set when W&B did not answer: later runs of a sweep do not wait for it again. A worker finds out,
# so the flag is in memory that forked processes share.
unreachable = mmap.mmap(-1, 1)


class Logger(Protocol):
    """Mirrors the numbers of one run."""

    def log(self, row: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any], picture: Path) -> None: ...

    def close(self) -> None:
        """Without a result: the run was interrupted, and can be resumed."""


@dataclass
class NoLogger:
    """`logger=none`: nothing beside the run's folder."""

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Logger:
        return self

    def log(self, row: dict[str, Any]) -> None:
        pass

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Wandb:
    """`logger=wandb`: configuration, a row for each round, summary and picture of the partition.

    With credentials it logs online, else offline.
    """

    project: str = "fedbench"
    entity: str | None = None
    group: str | None = None
    mode: str = choice("auto", MODES)

    def __post_init__(self) -> None:
        check_fields(self, "logger")
        for field in ("project", "entity", "group"):
            name = getattr(self, field)
            refused = set() if field == "group" else REFUSED_BY_WANDB
            fits = name is None or (0 < len(name) <= LONGEST_NAME and name.isprintable())
            rule = f"must be a name of 1 to {LONGEST_NAME} characters"
            if refused:
                rule += f" without {' '.join(sorted(refused))}"
            require(fits and not refused & set(name or ""), f"logger.{field}", name, rule)

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Logger:
        mode = self.mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if has_credentials() else "offline")
        return _WandbRun(self, mode, run_id, label, config, folder)


class MirroredRun:
    """What loggers share: a run continues without one that fails.

    `mirror` is the logger's own object, or None when it cannot be used, or has failed.
    """

    name: str  # for messages
    mirror: Any

    def attempt(self, action: Callable[[Any], object]) -> None:
        if self.mirror is None:
            return
        try:
            action(self.mirror)
        except Exception as error:
            self.mirror = None
            told = f"{self.name} failed ({_first_line(error)})"
            print(f"{told}; the run's folder has everything", flush=True)


class _WandbRun(MirroredRun):
    name = "W&B"

    def __init__(
        self,
        settings: Wandb,
        mode: str,
        run_id: str,
        label: str,
        config: dict[str, Any],
        folder: Path,
    ):
        import wandb  # takes a second, so only when it is used

        self.wandb = wandb
        arguments = {
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group,
            "id": run_id,
            "name": label,
            "config": config,
            "dir": str(folder.resolve()),  # its service may have been started in another folder
            "resume": "allow",
        }
        self.mirror = start(mode, **arguments)
        self.attempt(lambda run: self._settle(run, folder / "wandb", run_id))

    def _settle(self, run: Any, folder: Path, run_id: str) -> None:
        """Say where W&B logs, and keep one offline folder of a run.

        W&B cannot resume offline and opens another folder. Whoever resumes logs the earlier rounds
        again, so the newest has everything.
        """
        if not run.offline:
            print(f"W&B: {_without_secrets(run.url)}", flush=True)
            return
        own = Path(run.dir).parent
        for other in folder.glob(f"offline-run-*-{run_id}"):
            if other.name != own.name:
                shutil.rmtree(other, ignore_errors=True)
        print(f"W&B: offline; wandb sync {folder / own.name} sends it", flush=True)

    def log(self, row: dict[str, Any]) -> None:
        metrics = {key: value for key, value in row.items() if key != "round"}
        self.attempt(lambda run: run.log(metrics, step=int(row["round"])))

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        if picture.is_file():
            self.attempt(lambda run: run.log({"partition": self.wandb.Image(str(picture))}))
        self.attempt(lambda run: run.summary.update(summary))
        self.close()

    def close(self) -> None:
        """Return when everything is in W&B's file.

        `finish` does not wait: W&B's service writes the last records a moment later, or never if
        this process has ended by then. `teardown` waits for the service.
        """
        self.attempt(lambda run: run.finish())
        self.attempt(lambda run: self.wandb.teardown())


def _first_line(error: Exception) -> str:
    return _without_secrets(next(iter(str(error).splitlines()), type(error).__name__))


def _without_secrets(line: str) -> str:
    """Without passwords (http://user:password@host) and keys: what is printed ends up in logs."""
    line = re.sub(r"//[^/\s]*@", "//***@", line)
    key = os.environ.get("WANDB_API_KEY")
    return line.replace(key, "***") if key else line


def start(mode: Any, **arguments: Any) -> Any:
    """A W&B run: offline without a network or with a wrong key, None if W&B cannot be used."""
    import wandb

    if mode == "online" and unreachable[0]:
        mode = "offline"
    for chosen in dict.fromkeys((mode, "offline")):
        try:
            wandb.setup(wandb.Settings(silent=True))  # else it prints the address with its password
            settings = wandb.Settings(console="off", silent=True)
            if chosen != "offline":
                settings.init_timeout = INIT_SECONDS
            return wandb.init(mode=chosen, settings=settings, **arguments)
        except Exception as error:  # whatever it is: a run must not end because of its mirror
            instead = "logging offline"
            if chosen == "offline":
                instead = "the run's folder has everything"
            print(f"W&B cannot be used ({_first_line(error)}); {instead}", flush=True)
        unreachable[0] = True
        with suppress(Exception, SystemExit):
            wandb.teardown()  # its service would refuse the id of the failed run
        os.environ.pop("WANDB_SERVICE", None)  # use a new service, not one of another process
    return None


def has_credentials() -> bool:
    """An API key in the environment or in the user's netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False

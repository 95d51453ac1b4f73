"""The logger group: Weights & Biases mirrors the run folder; nothing is ever read back from it."""

from __future__ import annotations

import mmap
import netrc
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedbench.core.errors import nearest, require

MODES = ("auto", "online", "offline")
REFUSED_BY_WANDB = set("/\\#?%:")  # in names of projects and entities
LONGEST_NAME = 128
INIT_SECONDS = 30  # how long W&B's server may take to answer before a run logs offline
# Set when W&B did not answer: the later runs of a sweep do not wait for it again. It is shared with
# the workers that are forked from this process, one of which finds out.
unreachable = mmap.mmap(-1, 1)


class Tracker(Protocol):
    def log(self, row: dict[str, float]) -> None: ...

    def finish(self, summary: dict[str, Any], picture: Path) -> None: ...

    def close(self) -> None:
        """Without a result: the run was interrupted and will go on."""


@dataclass
class Silent:
    """Only the run folder."""

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Tracker:
        return _SilentTracker()


class _SilentTracker:
    def log(self, row: dict[str, float]) -> None:
        pass

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Wandb:
    """Config, a row a round, the summary and the partition picture: online with credentials,
    offline without.
    """

    project: str = "fedbench"
    entity: str | None = None
    group: str | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        require(self.mode in MODES, "logger.mode", self.mode, nearest(self.mode, MODES))
        for field in ("project", "entity", "group"):
            name = getattr(self, field)
            signs = set() if field == "group" else REFUSED_BY_WANDB
            good = name is None or (
                0 < len(name) <= LONGEST_NAME and name.isprintable() and not signs & set(name)
            )
            without = f", without {' '.join(sorted(signs))}," if signs else ""
            require(
                good,
                f"logger.{field}",
                name,
                f"a name of 1 to {LONGEST_NAME} characters{without} is allowed",
            )

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Tracker:
        mode = self.mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if has_credentials() else "offline")
        return _WandbTracker(self, mode, run_id, label, config, folder)


class _WandbTracker:
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
        self.run = start(mode, **arguments)

    def log(self, row: dict[str, float]) -> None:
        metrics = {key: value for key, value in row.items() if key != "round"}
        self._try(lambda run: run.log(metrics, step=int(row["round"])))

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        if picture.is_file():
            self._try(lambda run: run.log({"partition": self.wandb.Image(str(picture))}))
        self._try(lambda run: run.summary.update(summary))
        self.close()

    def close(self) -> None:
        """When it returns, everything is in W&B's file.

        `finish` only asks for that: W&B's service writes the last records a moment later, and not
        at all if this process, a worker, has ended by then. `teardown` waits until the service is
        done.
        """
        self._try(lambda run: run.finish())
        self._try(lambda run: self.wandb.teardown())

    def _try(self, action: Callable[[Any], object]) -> None:
        """The run goes on without W&B when it fails on the way."""
        if self.run is None:
            return
        try:
            action(self.run)
        except Exception as error:
            self.run = None
            print(
                f"W&B failed ({_first_line(error)}); the run folder has everything all the same",
                flush=True,
            )


def _first_line(error: Exception) -> str:
    line = next(iter(str(error).splitlines()), type(error).__name__)
    key = os.environ.get("WANDB_API_KEY")
    line = re.sub(
        r"//[^/\s]*@", "//***@", line
    )  # http://user:password@host; what is printed ends up in logs
    return line.replace(key, "***") if key else line


def start(mode: str, **arguments: Any) -> Any:
    """A W&B run; offline when there is no network, or the key is wrong; None when W&B cannot be
    used at all.
    """
    import wandb

    if mode == "online" and unreachable[0]:
        mode = "offline"
    for chosen in dict.fromkeys((mode, "offline")):
        try:
            wandb.setup(
                wandb.Settings(silent=True)
            )  # else it prints the address as it is, with a password in it
            settings = wandb.Settings(console="off", silent=True)
            if chosen != "offline":  # without a server there is nobody to lose patience with
                settings.init_timeout = INIT_SECONDS
            return wandb.init(mode=chosen, settings=settings, **arguments)
        except Exception as error:  # whatever it is: a run must not end because nobody mirrors it
            instead = (
                "the files here have everything all the same"
                if chosen == "offline"
                else "logging offline"
            )
            print(f"W&B cannot be used ({_first_line(error)}); {instead}", flush=True)
        unreachable[0] = True
        with suppress(Exception, SystemExit):
            # its service still holds the id of the run that failed, and would refuse it
            wandb.teardown()
        os.environ.pop(
            "WANDB_SERVICE", None
        )  # one that another process started lives on: a new one is to be used
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

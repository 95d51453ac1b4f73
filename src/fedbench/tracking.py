"""The logger group: Weights & Biases mirrors the run folder; nothing is ever read back from it."""

from __future__ import annotations

import netrc
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fedbench.errors import nearest, require

MODES = ("auto", "online", "offline")


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
    """Config, a row a round, the summary and the partition picture: online with credentials, offline without."""

    project: str = "fedbench"
    entity: str | None = None
    group: str | None = None
    mode: str = "auto"

    def __post_init__(self) -> None:
        require(self.mode in MODES, "logger.mode", self.mode, nearest(self.mode, MODES))

    def start(self, run_id: str, label: str, config: dict[str, Any], folder: Path) -> Tracker:
        mode = self.mode
        if mode == "auto":
            mode = os.environ.get("WANDB_MODE") or ("online" if has_credentials() else "offline")
        return _WandbTracker(self, mode, run_id, label, config, folder)


class _WandbTracker:
    def __init__(self, settings: Wandb, mode: str, run_id: str, label: str, config: dict[str, Any], folder: Path):
        import wandb  # takes a second, so only when it is used

        self.wandb = wandb
        arguments = {
            "project": settings.project,
            "entity": settings.entity,
            "group": settings.group,
            "id": run_id,
            "name": label,
            "config": config,
            "dir": str(folder),
            "resume": "allow",
        }
        self.run = start(mode, **arguments)

    def log(self, row: dict[str, float]) -> None:
        self.run.log({key: value for key, value in row.items() if key != "round"}, step=int(row["round"]))

    def finish(self, summary: dict[str, Any], picture: Path) -> None:
        if picture.is_file():
            self.run.log({"partition": self.wandb.Image(str(picture))})
        self.run.summary.update(summary)
        self.run.finish()

    def close(self) -> None:
        self.run.finish()


def start(mode: str, **arguments: Any) -> Any:
    """A W&B run; offline when there is no network, or the key is wrong."""
    import wandb

    try:
        return wandb.init(mode=mode, settings=_quiet(wandb), **arguments)
    except (wandb.errors.CommError, wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
        reason = str(error).splitlines()[0]
        print(f"W&B cannot be reached ({reason}); logging offline", flush=True)
        return wandb.init(mode="offline", settings=_quiet(wandb), **arguments)


def _quiet(wandb: Any) -> Any:
    return wandb.Settings(console="off", silent=True, init_timeout=30)


def has_credentials() -> bool:
    """An API key in the environment or in the user's netrc file."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    try:
        return netrc.netrc().authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False

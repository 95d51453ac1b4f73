"""A run's folder: its lock, and whether the run in it is finished.

A run is finished when its folder has summary.json, which is written last. The summary has the sizes
and checksums of the files beside it, and a checksum of itself, so that a file that was changed or
cut later is noticed.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedbench.core.errors import BadInput, bad_value
from fedbench.core.files import checksum, checksum_of, remove_leftovers, remove_made
from fedbench.parallel.failures import full_disk
from fedbench.runs.checkpoint import remove_checkpoints

SUMMARY = "summary.json"
CHECKED = (  # the files with a checksum, as far as a run has them; pictures can be drawn again
    "config.yaml",
    "partition.json",
    "partition.csv",
    "local_test.json",
    "metrics.csv",
    "clients.csv",
    "local_tests.csv",
    "predictions.npz",
    "softmax.npz",
    "conformal.csv",
    "model.safetensors",
    *("partition.csv.gz", "clients.csv.gz", "local_tests.csv.gz", "conformal.csv.gz"),  # archived
)
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: `results/runs/<label>/<id>`."""

    path: Path

    def finished(self) -> dict[str, Any] | None:
        """The summary of a finished run whose files have the right sizes; else None."""
        return self.examine(by_content=False)[0]

    def examine(self, by_content: bool) -> tuple[dict[str, Any] | None, str]:
        """The summary of a finished, undamaged run; else None, and what is damaged.

        A run that is not finished is not damaged. Comparing sizes costs nothing; comparing contents
        takes 1.4 s for a gigabyte.
        """
        try:
            summary = json.loads((self.path / SUMMARY).read_text())
            damage = self._damage(summary, by_content)
        except OSError as error:
            name = Path(error.filename or SUMMARY).name
            if not isinstance(error, FileNotFoundError):
                return None, f"{name} cannot be read ({error.strerror})"
            return None, "" if name == SUMMARY else f"{name} is missing"
        except UNREADABLE as error:
            return None, f"{SUMMARY} cannot be read ({type(error).__name__})"
        return (None, damage) if damage else (summary, "")

    def _damage(self, summary: dict[str, Any], by_content: bool) -> str:
        content = {key: value for key, value in summary.items() if key != "checksum"}
        if summary["checksum"] != checksum_of(content):
            return f"{SUMMARY} is not what was written"
        for name, written in summary["files"].items():
            size = (self.path / name).stat().st_size
            if size != written["size"]:
                return f"{name} has {size:,} bytes instead of {written['size']:,}"
            if by_content and checksum(self.path / name) != written["checksum"]:
                return f"{name} is not what was written"
        return ""

    def with_checksums(self, summary: dict[str, Any]) -> dict[str, Any]:
        """A summary with the checksums of the files as they are now, and of itself."""
        files = [self.path / name for name in CHECKED if (self.path / name).is_file()]
        written = {
            file.name: {"size": file.stat().st_size, "checksum": checksum(file)} for file in files
        }
        content = {**summary, "files": written}
        return {**content, "checksum": checksum_of(content)}

    def lock(
        self, force: bool = False, patience: float = -1, report: bool = True
    ) -> FileLock | None:
        """Make the folder and wait until no other process works on this run.

        The kernel releases the lock of a process that dies. With a `patience` of so many seconds it
        raises Timeout after them; `report` prints that it waits. None: the folder cannot be
        written, and need not be, because the run is finished.
        """
        file = self.path.parent / f".{self.path.name}.lock"
        places = (file, self.path, *self.path.parents)
        made = [place for place in places if not os.path.exists(place)]
        lock = FileLock(file)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            if report:
                print(f"another process is doing this run; waiting for it: {self.path}", flush=True)
            lock.acquire(timeout=patience)
        except OSError as error:
            if full_disk(error):
                raise
            if not force and self.examine(by_content=True)[0] is not None:
                return None
            remove_made(made)
            raise self._cannot_be_written(error) from error
        return lock

    def _cannot_be_written(self, error: OSError) -> BadInput:
        rule = "must be a folder that can be written"
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            rule = "must be a folder on a file system with locks (flock)"
        return bad_value("results", self.path.parents[2], f"{rule} ({error.strerror})")

    def clear(self) -> None:
        """Remove everything, as `force=true` asks for; first what says that the run is finished."""
        (self.path / SUMMARY).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def clean(self) -> None:
        """Remove what a finished run does not need, also after a process that was killed.

        A run that is not finished needs its checkpoints: nothing of it is removed.
        """
        summary = self.finished()
        if summary is None:
            return
        remove_checkpoints(self.path, summary.get("kept_checkpoint"))
        remove_leftovers(self.path)


def ends_at_its_last_round(summary: dict[str, Any]) -> bool:
    """Whether a finished run neither diverged nor was ended early: more rounds could follow."""
    return summary["status"] == "finished" and not summary.get("stopped")

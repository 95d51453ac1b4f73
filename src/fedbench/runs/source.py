"""Which code runs: a hash of the program's files and their commit, both as they were when this
process began.

They are taken once, in the process that was started, and inherited by every rank and every worker
of a study: whoever edits a file while a sweep goes on changes neither the code in memory nor what
is written about it.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]  # of the package


def hash_of(folder: Path) -> str:
    """Of the program itself, but for what only reads finished runs: other code may compute other
    numbers.
    """
    result = hashlib.blake2b(digest_size=6)
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder)
        if name.parts[0] != "study":
            result.update(f"{name}\0".encode() + file.read_bytes())
    return result.hexdigest()


_HASH = hash_of(
    FOLDER
)  # while fedbench is imported: later, the files may no longer be what is in memory


def source_hash() -> str:
    return _HASH


@cache
def source_commit() -> dict[str, Any]:
    """The commit of the code that runs, and whether it had uncommitted changes; None is unknown.

    The first call decides for this process and all that are forked from it, so programs make it
    when they start.
    """
    return commit_of(FOLDER.parents[1])


def commit_of(checkout: Path) -> dict[str, Any]:
    """Nothing is known of an installed wheel, without git, or of a checkout that git does not
    trust.
    """
    if not (
        checkout / ".git"
    ).exists():  # git would look further up, and find somebody else's repository
        return {"commit": None, "dirty": None}
    changes = _git(checkout, "status", "--porcelain")
    return {
        "commit": _git(checkout, "rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
    }


def _git(checkout: Path, *words: str) -> str | None:
    """What git says; None when it fails."""
    # GIT_DIR and its like name another repository: a hook that starts a run has them.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "--no-optional-locks", "-C", str(checkout), *words]
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
    except OSError:  # no git on this machine
        return None
    return ended.stdout.strip() if ended.returncode == 0 else None

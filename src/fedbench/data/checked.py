"""Checksums of files that are too large to be read at every start.

What was read once is remembered beside the files, with their sizes and times of change. A file that
has either of them changed is read again; so is every file, at every start, where the folder cannot
be written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedbench.data.files import file_hash, unreadable, whole_file

REMEMBERED = ".checked.json"


def checksums_of(files: Iterable[Path]) -> dict[str, str]:
    """By name, "blake2b:digest" of files in one folder."""
    files = list(files)
    known, found = _remembered(files[0].parent), {}
    for path in files:
        facts, noted = _facts(path), known.get(path.name)
        if (
            not isinstance(noted, dict)
            or {key: noted.get(key) for key in facts} != facts
            or "checksum" not in noted
        ):
            noted = {**facts, "checksum": f"blake2b:{file_hash(path, str(path))}"}
        found[path.name] = noted
    if found != known:
        with suppress(OSError), whole_file(files[0].parent / REMEMBERED) as file:
            file.write((json.dumps(found, indent=2) + "\n").encode())
    return {name: noted["checksum"] for name, noted in found.items()}


def _facts(path: Path) -> dict[str, int]:
    try:
        facts = path.stat()
    except OSError as error:
        raise unreadable(str(path), error) from error
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _remembered(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / REMEMBERED).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

"""Progress of a download or a preparation, on standard error: a bar on a terminal, a line
elsewhere.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(
    title: str, total: int | None, done: int = 0, unit: str = "images"
) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many more are done."""
    if not sys.stderr.isatty():
        amount = "" if total is None else f", {total:,} {unit}"
        print(
            f"{title}{amount}" + (f", goes on after {done:,}" if done else ""),
            file=sys.stderr,
            flush=True,
        )
        yield lambda more: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), amount, BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total, completed=done)
        yield lambda more: progress.advance(task, more)

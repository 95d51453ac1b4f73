"""Standard streams as a person may leave them: closed, or in an encoding that knows only a part of
all names.
"""

from __future__ import annotations

import io
import os
import sys


def make_usable() -> None:
    """What is printed never ends a run: closed streams lead nowhere, and characters that cannot be
    shown are escaped.

    A closed stream is opened again, because its number would go to the next file, and what a
    library prints into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process lives
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")

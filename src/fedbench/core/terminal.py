"""What a terminal may lack."""

from __future__ import annotations

import io
import sys


def escape_what_the_terminal_cannot_show() -> None:
    """A name in characters that the terminal's encoding lacks must not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

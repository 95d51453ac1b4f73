"""What a terminal may lack: characters, and somebody who still reads."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO


def escape_what_the_terminal_cannot_show() -> None:
    """A name in characters that the terminal's encoding lacks must not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def streams_without_readers() -> Iterator[None]:
    """Let a program go on silently when nobody reads its output any more: `fedbench ... | head`."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _lasting(sys.stdout), _lasting(sys.stderr)
    try:
        yield
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):  # a full disk, which Python reports at its end
                stream.flush()
        sys.stdout, sys.stderr = streams


def _lasting(stream: Any) -> Any:
    return (
        stream if stream is None or isinstance(stream, _LastingStream) else _LastingStream(stream)
    )


class _LastingStream:
    """A text stream that drops what it is given after its reader has closed the pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        """Put /dev/null behind the file's number: for what is buffered, and for later writers."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""Fetch published files: an interrupted download goes on where it stopped, and a checksum ends
it.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedbench.core.errors import BadInput
from fedbench.data.prepare.catalog import Published
from fedbench.data.prepare.progress_bar import bar

_CHUNK = 1 << 20
_TIMEOUT = 60  # seconds without a byte
_PARTIAL_CONTENT, _RANGE_NOT_SATISFIABLE = 206, 416


def fetch(published: Published, folder: Path) -> Path:
    """The file in `folder`, from an earlier call or from its publisher. OSError when the network
    does not help.
    """
    final, partial = folder / published.file, folder / f"{published.file}.part"
    if not final.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _receive(published, partial)
        if not matches(partial, published):
            partial.unlink()
            raise BadInput(
                f"{published.url}: what came is not the published file ({published.checksum}); try"
                " again"
            )
        partial.replace(final)
    return final


def matches(path: Path, published: Published) -> bool:
    """Whether a file is byte for byte the published one."""
    algorithm, _, expected = published.checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == expected


def _receive(published: Published, partial: Path) -> None:
    import urllib.error  # only a download needs it, and it brings half the network library
    import urllib.request

    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(published.url, headers={"User-Agent": "fedbench"})
    if done:
        request.add_header("Range", f"bytes={done}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE:  # all of it came before: the checksum tells
            return
        raise
    with answer, partial.open("ab") as file:
        if answer.status != _PARTIAL_CONTENT and done:  # a server that cannot go on starts again
            file.truncate(0)
            done = 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else done + int(length)
        with bar(published.file, total, done, unit="bytes") as advance:
            while chunk := answer.read(_CHUNK):
                file.write(chunk)
                done += len(chunk)
                advance(len(chunk))
    if total is not None and done < total:
        raise OSError(f"{published.url} broke off after {done:,} of {total:,} bytes")

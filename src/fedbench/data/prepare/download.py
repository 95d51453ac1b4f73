"""Fetch published files with pooch, which checks each against its known checksum."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from fedbench.core.errors import BadInput
from fedbench.data.prepare.catalog import PublishedFile

_TIMEOUT = 60  # seconds without a byte


def fetch(published: Sequence[PublishedFile], folder: Path) -> Path:
    """The published file in `folder`, or the folder if there are several files.

    What an earlier call downloaded is used again. OSError when the network fails.
    """
    import pooch  # only a download needs it

    pooch.get_logger().setLevel("WARNING")
    downloader = pooch.HTTPDownloader(
        progressbar=sys.stderr.isatty(), timeout=_TIMEOUT, headers={"User-Agent": "fedbench"}
    )
    for file in published:
        try:
            pooch.retrieve(file.url, file.checksum, file.name, folder, downloader=downloader)
        except ValueError as error:  # pooch's own message has both checksums, and no advice
            raise BadInput(
                f"{file.url}: what came is not the published file ({file.checksum}); try again"
            ) from error
    return folder / published[0].name if len(published) == 1 else folder


def matches(path: Path, published: PublishedFile) -> bool:
    """Whether a file is byte for byte the published one."""
    import pooch

    algorithm, _, expected = published.checksum.partition(":")
    return pooch.file_hash(str(path), algorithm) == expected

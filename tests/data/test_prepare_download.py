"""Fetching published files: checked, gone on with after a break, cleared away; archives put there
by hand.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support import original_files as originals
from support.data_settings import data_settings, refusal

from fedbench.data.prepare.catalog import ENTRIES, Published
from fedbench.models.torchvision_operators import import_torchvision


class Server:
    """A publisher on this machine: serves one file, understands ranges, and can break off."""

    def __init__(self, content: bytes) -> None:
        self.content, self.limit, self.ranges = content, None, True
        self.invited: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                wanted = self.headers.get("Range")
                outer.invited.append(wanted)
                start = (
                    int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and outer.ranges else 0
                )
                if start >= len(outer.content):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(outer.content) - start))
                self.end_headers()
                self.wfile.write(outer.content[start : outer.limit])

            def log_message(self, *words: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/QQP-clean.zip"


@pytest.fixture
def publisher(tmp_path, monkeypatch) -> Iterator[Server]:
    """QQP's archive, at an address of this machine."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    archive = originals.packed(originals.qqp(tmp_path / "given"), tmp_path / "QQP-clean.zip")
    server = Server(archive.read_bytes())
    checksum = f"sha256:{hashlib.sha256(server.content).hexdigest()}"
    published = (Published("QQP-clean.zip", server.address, checksum),)
    monkeypatch.setitem(ENTRIES, "qqp", replace(ENTRIES["qqp"], published=published))
    thread = threading.Thread(target=server.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.server.shutdown()
    server.server.server_close()
    thread.join()


def test_a_download_is_checked_prepared_and_cleared_away(fedbench_data, publisher, tmp_path):
    status, _, err = fedbench_data("qqp", "--download", "--any-size")
    assert status == 0, err
    folder = tmp_path / "root" / "qqp"
    names = {".lock", "info.json", "train.npz", "test.npz", "vocabulary.txt"}
    assert {path.name for path in folder.iterdir()} == names
    assert json.loads((folder / "info.json").read_text())["source"] == publisher.address
    assert data_settings("qqp", root=str(tmp_path / "root"), download=True).load(0).vocabulary > 2


@pytest.mark.parametrize("ranges", [True, False])
def test_a_download_that_broke_off_goes_on(ranges, fedbench_data, publisher, tmp_path):
    publisher.limit, publisher.ranges = 1000, ranges
    status, _, err = fedbench_data("qqp", "--download", "--any-size")
    assert status == 2
    assert "goes on where it stopped" in err
    assert [path.name for path in (tmp_path / "root" / "qqp" / ".download").iterdir()] == [
        "QQP-clean.zip.part"
    ]
    publisher.limit = None
    assert fedbench_data("qqp", "--download", "--any-size")[0] == 0
    assert publisher.invited == [None, "bytes=1000-"]


def test_something_else_than_the_published_file_is_refused(fedbench_data, publisher, tmp_path):
    publisher.content = b"<html>moved</html>"
    status, _, err = fedbench_data("qqp", "--download", "--any-size")
    assert status == 2
    assert "what came is not the published file (sha256:" in err
    assert not list((tmp_path / "root" / "qqp" / ".download").iterdir())


def test_no_network_is_one_line_for_a_run_too(publisher, tmp_path):
    publisher.content = b""  # answers with an error
    text = refusal(lambda: data_settings("qqp", root=str(tmp_path / "root"), download=True).load(0))
    assert text.startswith("data.download: qqp into")
    assert "failed" in text
    assert "data.source=synthetic" in text


def test_files_put_there_by_hand_are_used_and_kept(fedbench_data, publisher, tmp_path):
    by_hand = tmp_path / "root" / "qqp" / "download"
    by_hand.mkdir(parents=True)
    (by_hand / "QQP-clean.zip").write_bytes(publisher.content)
    assert fedbench_data("qqp", "--any-size")[0] == 0
    assert publisher.invited == []
    assert (by_hand / "QQP-clean.zip").exists()


def test_addresses_and_checksums_are_torchvisions():
    datasets = import_torchvision().datasets
    (emnist,) = ENTRIES["emnist"].published
    assert (emnist.url, emnist.checksum) == (datasets.EMNIST.url, f"md5:{datasets.EMNIST.md5}")
    for published, part in zip(ENTRIES["svhn"].published, ("train", "test"), strict=True):
        url, file, md5 = datasets.SVHN.split_list[part]
        assert (published.url, published.file, published.checksum) == (url, file, f"md5:{md5}")


def test_a_given_archive_of_torchvisions_must_be_the_published_one(fedbench_data, tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    archive.write_bytes(b"somebody's pickle")
    status, _, err = fedbench_data("cifar10", "--from", archive)
    assert (status, err.count("\n")) == (2, 1)
    assert "not the published cifar-10-python.tar.gz (md5 " in err
